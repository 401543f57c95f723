"""Small symmetric systems and steps of the nonlinear solver by compiled code, against the same in plain torch."""

import pytest
import torch

from hardnet.solvers import nonlinear_step, small
from hardnet.solvers.nonlinear import solve_nonlinear
from hardnet.solvers.nonlinear_rows import Input, Rows
from hardnet.solvers.nonlinear_step import Metric, _in_torch
from hardnet.solvers.small import _eliminate
from tests.draws import draw
from tests.nonlinear_problems import F64, KNOWN

pytest.importorskip("numba")


@pytest.mark.parametrize("n", [1, 2, 7, 32])
def test_elimination_agrees_with_plain_torch(n):
    from hardnet.kernels.cpu.definite import solve

    root, right = draw(40, n, n, seed=n), draw(40, n, 3, seed=n + 1)
    matrix = root @ root.mT + 0.1 * torch.eye(n, dtype=F64)
    matrix[0], matrix[1, 0, 0] = -matrix[0], torch.nan
    solved, pivot = solve(matrix, right)
    expected, least = _eliminate(matrix, right)
    torch.testing.assert_close(pivot, least, rtol=1e-9, atol=1e-9, equal_nan=True)
    size = torch.linalg.cond(matrix[2:]).view(-1, 1, 1) * expected[2:].abs().amax((-1, -2), keepdim=True)
    assert ((solved[2:] - expected[2:]).abs() <= 64 * n * torch.finfo(F64).eps * size).all()
    strided = solve(matrix.mT.contiguous().mT, right)  # any strides
    assert torch.equal(strided[0].nan_to_num(), solved.nan_to_num())


def kinds():
    """Rows of every kind: two-sided, one-sided, absent, equalities."""
    J, low = draw(200, 4, 6, seed=2), draw(200, 4, seed=3)
    width = draw(200, 4, seed=4).abs()
    high = low + torch.where(draw(200, 4, seed=5) > 0.5, 0.0, width)
    low = torch.where(draw(200, 4, seed=6) > 1.0, -torch.inf, low)
    return J, low, torch.where(draw(200, 4, seed=7) > 1.0, torch.inf, high)


@pytest.mark.parametrize("metric", [False, True])
def test_steps_agree_with_plain_torch(metric):
    from hardnet.kernels.cpu.active_set import solve

    J, low, high = kinds()
    soft, centre, own = torch.full_like(low, 1e-2), None, None
    if metric:
        root, centre = draw(200, 6, 6, seed=8), draw(200, 4, seed=9)
        W = root @ root.mT + torch.eye(6, dtype=F64)
        solved = torch.linalg.solve(W, torch.cat([J.mT, draw(200, 6, 1, seed=10)], -1))
        own = Metric(W, solved[..., :-1], solved[..., -1])
    across, free = (None, None) if own is None else own[1:]
    expected = _in_torch(J, low, high, soft, own, centre, False, True, None)
    for guess in (None, expected[1]):
        step, dual, settled = solve(J, low, high, soft, across, free, centre, guess)
        assert settled.double().mean() >= 0.95
        torch.testing.assert_close(step[settled], expected[0][settled], rtol=0, atol=1e-9)
        torch.testing.assert_close(dual[settled], expected[1][settled], rtol=0, atol=1e-7)


def test_numbers_that_are_none_and_dependent_rows_are_not_settled():
    from hardnet.kernels.cpu.active_set import solve

    J, low, _ = kinds()
    low = torch.where(low.isfinite(), low, 0.0)
    J[0, 1, 2], J[1, 1], low[2, 0] = torch.nan, J[1, 0], torch.nan
    step, dual, settled = solve(J, low, low, torch.zeros_like(low), None, None, None, None)
    assert settled.tolist()[:3] == [False, False, False]
    assert settled[3:].all()
    assert (dual[:3] == 0).all()
    assert step[1].isfinite().all()


def test_a_sample_has_the_same_bits_in_any_batch():
    from hardnet.kernels.cpu.active_set import solve

    J, low, high = kinds()
    soft = torch.full_like(low, 1e-3)
    whole = solve(J, low, high, soft, None, None, None, None)
    part = solve(J[7:19], low[7:19], high[7:19], soft[7:19], None, None, None, None)
    assert all(torch.equal(one[7:19], two) for one, two in zip(whole, part, strict=True))


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_the_solver_without_compiled_code_finds_the_same_points(known, monkeypatch):
    m = known.g(known.raw, known.x).shape[-1]
    bound = torch.zeros(len(known.raw), m, dtype=F64)
    x = Input.of(known.x, known.raw.shape[:1])
    rows = Rows(known.g, None, x, m, known.raw.new_zeros(0, known.raw.shape[-1]), bound, bound)
    with_numba = solve_nonlinear(rows, known.raw)
    for module in (small, nonlinear_step):
        monkeypatch.setattr(module, "compiles", lambda A: False)
    without = solve_nonlinear(rows, known.raw)
    assert (without.status == 0).all()
    # both satisfy the KKT conditions to 1e-10
    torch.testing.assert_close(without.y, with_numba.y, rtol=0, atol=1e-8)
