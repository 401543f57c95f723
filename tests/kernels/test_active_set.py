"""Small symmetric systems and steps of the nonlinear solver by compiled code, against the same in plain torch."""

import pytest
import torch

from hardnet.solvers.algebra import small
from hardnet.solvers.algebra.small import _eliminate
from hardnet.solvers.nonlinear import nearest as nonlinear_kkt
from hardnet.solvers.nonlinear import step as nonlinear_step
from hardnet.solvers.nonlinear.rows import Derivatives, Input, Rows
from hardnet.solvers.nonlinear.solve import solve_nonlinear
from hardnet.solvers.nonlinear.step import Metric, StepRows, _in_torch
from tests.bounds import assert_within, of_factor
from tests.draws import draw
from tests.nonlinear_problems import F64, KNOWN

pytest.importorskip("numba")


@pytest.mark.parametrize("n", [1, 2, 7, 32])
def test_elimination_agrees_with_plain_torch(n):
    from hardnet.kernels.cpu.nonlinear_step import solve_definite as solve

    root, right = draw(40, n, n, seed=n), draw(40, n, 3, seed=n + 1)
    matrix = root @ root.mT + 0.1 * torch.eye(n, dtype=F64)
    matrix[0], matrix[1, 0, 0] = -matrix[0], torch.nan
    solved, pivot = solve(matrix, right)
    expected, least = _eliminate(matrix, right)
    rounding = 64 * n * torch.finfo(F64).eps * matrix.nan_to_num().abs().max().item()
    torch.testing.assert_close(pivot, least, rtol=0, atol=rounding, equal_nan=True)
    size = torch.linalg.cond(matrix[2:]).view(-1, 1, 1) * expected[2:].abs().amax((-1, -2), keepdim=True)
    assert ((solved[2:] - expected[2:]).abs() <= 64 * n * torch.finfo(F64).eps * size).all()
    strided = solve(matrix.mT.contiguous().mT, right)  # any strides
    assert torch.equal(strided[0].nan_to_num(), solved.nan_to_num())


def in_torch(monkeypatch):
    """Switch compiled code off, so that plain torch computes everything."""
    for module in (small, nonlinear_step, nonlinear_kkt):
        monkeypatch.setattr(module, "compiles", lambda *_: False)


def kinds():
    """Rows of every kind: two-sided, one-sided, absent, equalities."""
    J, low = draw(200, 4, 6, seed=2), draw(200, 4, seed=3)
    width = draw(200, 4, seed=4).abs()
    high = low + torch.where(draw(200, 4, seed=5) > 0.5, 0.0, width)
    low = torch.where(draw(200, 4, seed=6) > 1.0, -torch.inf, low)
    return J, low, torch.where(draw(200, 4, seed=7) > 1.0, torch.inf, high)


@pytest.mark.parametrize("metric", [False, True])
def test_steps_agree_with_plain_torch(metric):
    from hardnet.kernels.cpu.nonlinear_step import solve_step as solve

    J, low, high = kinds()
    soft, center, own = torch.full_like(low, 1e-2), None, None
    if metric:
        root, center = draw(200, 6, 6, seed=8), draw(200, 4, seed=9)
        W = root @ root.mT + torch.eye(6, dtype=F64)
        solved = torch.linalg.solve(W, torch.cat([J.mT, draw(200, 6, 1, seed=10)], -1))
        own = Metric(W, solved[..., :-1], solved[..., -1])
    across, free = (None, None) if own is None else own[1:]
    expected = _in_torch(StepRows(J, low, high, soft, center), own, False, True, None)
    gram = J @ (J.mT if across is None else across) + torch.diag_embed(soft.square())
    part = of_factor(gram, 1)  # some of its rows and columns have a better condition
    step, dual, settled = solve(J, low, high, soft, across, free, center)
    assert settled.all()
    assert_within(step, expected[0], part, most=1e-9)
    assert_within(dual, expected[1], part, most=1e-8)


def test_steps_of_many_rows_agree_with_the_projection_that_they_are():
    """Equalities, two-sided rows and rows without bounds."""
    from hardnet.kernels.cpu.nonlinear_step import solve_step as solve

    J, middle, width = draw(20, 60, 50, seed=1), draw(20, 60, seed=2), draw(20, 60, seed=3).abs()
    width[:, :20], width[:, 40:] = 0.0, torch.inf
    low, high, soft = middle - width, middle + width, torch.full_like(width, 1e-2)
    step, dual, settled = solve(J, low, high, soft, None, None, None)
    assert settled.all()
    assert (dual[:, 40:] == 0).all()
    expected = nonlinear_step._by_projection(StepRows(J, low, high, soft), None)
    bounded = J[:, :40] @ J[:, :40].mT + torch.diag_embed(soft[:, :40].square())
    part = of_factor(bounded, 1)  # some of its rows and columns have a better condition
    assert_within(dual, expected, part, most=1e-9)
    assert_within(step, -(J.mT @ expected.unsqueeze(-1)).squeeze(-1), part, most=1e-9)


@pytest.mark.parametrize("m", [1, 3, 6, 40])
def test_equalities_alone_and_beside_a_row_that_does_not_count_have_the_same_steps(m):
    """Equalities alone are eliminated without ordering the rows."""
    from hardnet.kernels.cpu.nonlinear_step import solve_step as solve

    J, low = draw(50, m, m + 3, seed=m), draw(50, m, seed=m + 1)
    soft, free = torch.full_like(low, 1e-2), torch.full_like(low[:, :1], torch.inf)
    step, dual, settled = solve(J, low, low, soft, None, None, None)
    absent = [torch.cat([low, end], -1) for end in (-free, free)]
    wide = [torch.cat([J, draw(50, 1, m + 3, seed=m + 2)], 1), *absent, torch.cat([soft, soft[:, :1]], -1)]
    other, beside, _ = solve(*wide, None, None, None)
    assert settled.all()
    gram = J @ J.mT + torch.diag_embed(soft.square())
    part = of_factor(gram, 1)  # some of its rows and columns have a better condition
    expected = -torch.linalg.solve(gram, low.unsqueeze(-1)).squeeze(-1)
    assert_within(dual, expected, part, most=1e-9)
    assert_within(dual, beside[:, :m], part, most=1e-9)
    assert_within(step, other, part, most=1e-9)


def test_numbers_that_are_none_and_dependent_rows_are_not_settled():
    from hardnet.kernels.cpu.nonlinear_step import solve_step as solve

    J, low, _ = kinds()
    low = torch.where(low.isfinite(), low, 0.0)
    J[0, 1, 2], J[1, 1], low[2, 0] = torch.nan, J[1, 0], torch.nan
    step, dual, settled = solve(J, low, low, torch.zeros_like(low), None, None, None)
    assert settled.tolist()[:3] == [False, False, False]
    assert settled[3:].all()
    assert (dual[:3] == 0).all()
    assert step[1].isfinite().all()


def test_a_sample_has_the_same_bits_in_any_batch():
    from hardnet.kernels.cpu.nonlinear_step import solve_step as solve

    J, low, high = kinds()
    soft = torch.full_like(low, 1e-3)
    whole = solve(J, low, high, soft, None, None, None)
    part = solve(J[7:19], low[7:19], high[7:19], soft[7:19], None, None, None)
    assert all(torch.equal(one[7:19], two) for one, two in zip(whole, part, strict=True))


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_the_solver_without_compiled_code_finds_the_same_points(known, monkeypatch):
    m = known.g(known.raw, known.x).shape[-1]
    bound = torch.zeros(len(known.raw), m, dtype=F64)
    x = Input.of(known.x, known.raw.shape[:1])
    rows = Rows(known.g, None, x, m, known.raw.new_zeros(0, known.raw.shape[-1]), bound, bound)
    with_numba = solve_nonlinear(rows, known.raw)
    in_torch(monkeypatch)
    without = solve_nonlinear(rows, known.raw)
    assert (without.status == 0).all()
    # both satisfy the KKT conditions to 1e-10
    torch.testing.assert_close(without.y, with_numba.y, rtol=0, atol=1e-8)


@pytest.mark.parametrize("curved", [True, False])
def test_a_compiled_derivative_agrees_with_plain_torch(curved, monkeypatch):
    J, H, grad = draw(100, 3, 5, seed=40), draw(100, 5, 5, seed=41), draw(100, 5, seed=42)
    H, active = 0.3 * (H + H.mT), draw(100, 3, seed=43) > 0
    J[0, 1] = J[0, 0]  # dependent rows share their multiplier
    at, weak = Derivatives(J[:, :, 0], J, H if curved else None), torch.zeros(100, dtype=torch.bool)
    fast = nonlinear_kkt.solve_kkt(at, active, grad, weak)
    in_torch(monkeypatch)
    slow = nonlinear_kkt.solve_kkt(at, active, grad, weak)
    # W is eliminated first, which may multiply the condition of the whole system by that of W
    C = torch.where(active.unsqueeze(-1), J / torch.linalg.vector_norm(J, dim=-1, keepdim=True), 0.0)
    W = torch.eye(5, dtype=F64) + (H if curved else torch.zeros_like(H))
    corner = torch.diag_embed((~active).to(J))
    system = torch.cat([torch.cat([W, C.mT], -1), torch.cat([C, corner], -1)], -2)
    part = of_factor(system[1:], 1) * torch.linalg.cond(W).max().item()
    assert_within(fast[0], slow[0], part, most=1e-7)
    assert_within(fast[1][1:], slow[1][1:], part, most=1e-7)
    assert (fast[1][~active] == 0).all()
