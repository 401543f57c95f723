"""The pieces of the nonlinear solver: small solves, the elastic step, and what a solution says of itself."""

import torch

from hardnet.solvers import project_affine
from hardnet.solvers.algebra.small import ELIMINATED_ROWS, solve_definite
from hardnet.solvers.nonlinear.rows import Input, Rows
from hardnet.solvers.nonlinear.solve import NonlinearStatus, solve_nonlinear
from hardnet.solvers.nonlinear.step import Metric, StepRows, solve_step
from tests.draws import draw
from tests.nonlinear_problems import F64, real, sphere


def rows_of(g, raw, lower=0.0, upper=0.0):
    m = g(raw, None).shape[-1]
    bounds = (torch.full((len(raw), m), bound, dtype=F64) for bound in (lower, upper))
    return Rows(g, None, Input.of(None, raw.shape[:1]), m, raw.new_zeros(0, raw.shape[-1]), *bounds)


def test_small_and_large_matrices_are_solved_and_indefinite_ones_are_seen():
    for n in (1, 3, ELIMINATED_ROWS, ELIMINATED_ROWS + 1, 20):
        root = draw(30, n, n, seed=n)
        matrix, right = root @ root.mT + torch.eye(n, dtype=F64), draw(30, n, 2, seed=1)
        matrix[0] = -matrix[0]
        solved, pivot = solve_definite(matrix, right)
        torch.testing.assert_close((matrix @ solved)[1:], right[1:], rtol=0, atol=1e-9)
        assert pivot[0] <= 0
        assert (pivot[1:] > 0).all()


def test_a_stiff_step_is_the_projection_onto_the_linearized_rows():
    J, low = draw(50, 4, 6, seed=2), draw(50, 4, seed=3)
    high = low + draw(50, 4, seed=4).relu()
    step, dual = solve_step(StepRows(J, low, high, torch.zeros(50, 4, dtype=F64)))
    exact = project_affine(torch.zeros(50, 6, dtype=F64), J, low, high)
    torch.testing.assert_close(step, exact.y, rtol=0, atol=1e-10)
    torch.testing.assert_close(dual, exact.dual, rtol=0, atol=1e-9)


def test_a_step_in_a_metric_satisfies_its_kkt_conditions():
    root, J, q = draw(40, 5, 5, seed=5), draw(40, 3, 5, seed=6), draw(40, 5, seed=7)
    W = root @ root.mT + 0.1 * torch.eye(5, dtype=F64)
    low = draw(40, 3, seed=8)
    solved = torch.linalg.solve(W, torch.cat([J.mT, -q.unsqueeze(-1)], -1))
    soft, center = torch.full((40, 3), 0.3, dtype=F64), draw(40, 3, seed=9)
    step, dual = solve_step(StepRows(J, low, low + 1, soft, center), Metric(W, solved[..., :-1], solved[..., -1]))
    stationary = (W @ step.unsqueeze(-1) + J.mT @ dual.unsqueeze(-1)).squeeze(-1) + q
    assert stationary.abs().max() < 1e-9
    value = (J @ step.unsqueeze(-1)).squeeze(-1) - soft.square() * (dual - center)
    assert (torch.maximum(value - low - 1, low - value).max()) < 1e-9


def test_contradicting_rows_give_way_evenly():
    """Two parallel rows that ask for 0 and 1 on one output: an elastic step ends half way."""
    J = torch.ones(1, 2, 1, dtype=F64)
    bound = real([[0.0, 1.0]])
    step, _ = solve_step(StepRows(J, bound, bound, torch.full((1, 2), 1e-2, dtype=F64)))
    torch.testing.assert_close(step, real([[0.5]]), rtol=0, atol=1e-3)


def test_it_reports_iterations_and_status():
    raw = real([[3.0, 4.0], [0.6, 0.8], [torch.nan, 1.0]])
    found = solve_nonlinear(rows_of(sphere, raw), raw)
    assert found.status.tolist() == [NonlinearStatus.OK, NonlinearStatus.OK, NonlinearStatus.INVALID]
    assert found.iterations[0] >= 1
    assert found.iterations[1] == 0
    assert torch.equal(found.y[1], raw[1])
    assert found.violation[0] <= 1e-14
    assert found.residual[0] <= 1e-10


def test_a_sample_has_the_same_bits_whoever_its_mates_are():
    raw = 2 * draw(64, 3, seed=11)
    whole = solve_nonlinear(rows_of(sphere, raw), raw)
    other = torch.cat([raw[:32], -3 * raw[32:] + 1])
    assert torch.equal(solve_nonlinear(rows_of(sphere, other), other).y[:32], whole.y[:32])
    assert torch.equal(solve_nonlinear(rows_of(sphere, raw[5:12]), raw[5:12]).y, whole.y[5:12])


def test_far_and_tiny_starts_reach_a_sphere():
    raw = torch.cat([draw(20, 3, seed=12) * 10.0**k for k in (-6, -3, 0, 3, 6)])
    found = solve_nonlinear(rows_of(sphere, raw), raw)
    assert (found.violation <= 1e-10).all()
    direct = raw / torch.linalg.vector_norm(raw, dim=-1, keepdim=True)
    ok = found.status == NonlinearStatus.OK
    assert ok[20:80].all()  # nearer than 1e-6 all points are as near, farther than 1e6 rounding decides
    torch.testing.assert_close(found.y[ok], direct[ok], rtol=0, atol=1e-6)
