"""The solver for intersections of curved sets: optimality, certificates, honest statuses."""

import pytest
import torch

from hardnet.functional.conic import solve_intersection
from hardnet.solvers import Intervals, Quadratics, SecondOrder, SemiDefinite, Status
from hardnet.solvers.conic import solve as conic
from hardnet.solvers.conic.blocks import Stack, project_second_order
from hardnet.solvers.conic.solve import Task, optimality
from tests.draws import draw
from tests.solvers.convex import D, ball, families, half_plane, quadratic

BATCH, N = 24, 5
FAMILIES = families(BATCH, N)


def leading(block):
    return type(block)(*(f if f.dim() > core else f[None] for f, core in zip(block, block.cores, strict=True)))


def stack_of(blocks, y):
    return Stack([leading(block).image() for block in blocks], y.shape[-1])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_every_sample_is_solved_to_rounding(name, spread):
    raw, blocks = spread * draw(BATCH, N, seed=5), FAMILIES[name]
    found = solve_intersection(raw, blocks)
    assert found.status.tolist() == [Status.SOLVED] * BATCH
    assert found.residual.max().item() < 1e-12
    stack = stack_of(blocks, raw)
    assert bool((stack.miss(found.y) <= 16 * 2.3e-16 * stack.size(found.y)).all())
    task = Task(raw, torch.ones(BATCH, 1, dtype=D), stack)
    assert (optimality(task, found.y, found.dual) / (1 + raw.abs().amax(-1))).max().item() < 1e-11
    assert found.iterations.max().item() > 0


@pytest.mark.parametrize("name", ["cone", "matrix", "all"])
def test_variational_inequality_on_feasible_points(name):
    raw, blocks = 3 * draw(BATCH, N, seed=6), FAMILIES[name]
    y = solve_intersection(raw, blocks).y
    for seed in range(5):
        point = solve_intersection(2 * draw(BATCH, N, seed=100 + seed), blocks).y
        assert ((raw - y) * (point - y)).sum(-1).max().item() < 1e-12


@pytest.mark.parametrize("name", ["cone", "matrix", "quadratic", "all"])
def test_firmly_non_expansive(name):
    u, v = 3 * draw(BATCH, N, seed=7), 3 * draw(BATCH, N, seed=8)
    a, b = (solve_intersection(raw, FAMILIES[name]).y for raw in (u, v))
    assert ((a - b) * (u - v)).sum(-1).sub((a - b).square().sum(-1)).min().item() > -1e-12


def test_the_cone_itself_has_a_closed_form_to_agree_with():
    raw, zero = 3 * draw(50, 4), torch.zeros(3, dtype=D)
    standard = SecondOrder(torch.eye(3, 4, dtype=D), zero, torch.eye(4, dtype=D)[3], zero[0])
    torch.testing.assert_close(solve_intersection(raw, [standard]).y, project_second_order(raw), atol=1e-14, rtol=0)


def test_the_unit_disc_as_a_matrix_inequality():
    F0, F = torch.eye(2, dtype=D), torch.tensor([[[1.0, 0], [0, -1]], [[0, 1], [1, 0]]], dtype=D)
    raw = 2 * draw(30, 2)
    expected = raw / torch.linalg.vector_norm(raw, dim=-1, keepdim=True).clamp_min(1)
    torch.testing.assert_close(solve_intersection(raw, [SemiDefinite(F0, F)]).y, expected, atol=1e-14, rtol=0)


def test_not_any_feasible_point_but_the_nearest():
    box = Intervals(torch.eye(2, dtype=D), torch.zeros(2, dtype=D), torch.ones(2, dtype=D))
    budget = half_plane([-1.0, -1.0], -1.0)
    y = solve_intersection(torch.tensor([1.6, 0.3], dtype=D), [box, budget]).y  # alternating projections: (0.85, 0.15)
    torch.testing.assert_close(y, torch.tensor([1.0, 0], dtype=D))


def test_equivariant_under_rotations():
    raw, block = 3 * draw(BATCH, N), quadratic(BATCH, N, 3)
    Q, _ = torch.linalg.qr(draw(N, N, seed=9))
    turned = type(block)(Q @ block.P @ Q.mT, block.q @ Q.mT, block.r)
    y = solve_intersection(raw, [block]).y
    torch.testing.assert_close(solve_intersection(raw @ Q.mT, [turned]).y, y @ Q.mT, atol=1e-11, rtol=0)


def test_scaling_and_duplicating_blocks_changes_nothing():
    raw, (cone, matrix) = 3 * draw(BATCH, N), (FAMILIES["cone"][0], FAMILIES["matrix"][0])
    scaled = type(cone)(*(1e3 * field for field in cone))
    y = solve_intersection(raw, [cone, matrix]).y
    torch.testing.assert_close(solve_intersection(raw, [matrix, scaled, cone]).y, y, atol=1e-11, rtol=0)


def test_a_sample_does_not_depend_on_its_mates():
    raw, blocks = 3 * draw(BATCH, N), FAMILIES["all"]
    whole = solve_intersection(raw, blocks).y
    part = [type(block)(*(field[:3] for field in block)) for block in blocks]
    torch.testing.assert_close(solve_intersection(raw[:3], part).y, whole[:3], atol=1e-12, rtol=0)
    other = raw.clone()
    other[1:] *= -2
    assert torch.equal(solve_intersection(other, blocks).y[0], whole[0])


def test_chunks_change_nothing(monkeypatch):
    raw, blocks = 3 * draw(BATCH, N), FAMILIES["rows and cone"]
    whole = solve_intersection(raw, blocks)
    monkeypatch.setattr(conic, "_chunk", lambda stack, raw: 5)
    assert torch.equal(solve_intersection(raw, blocks).y, whole.y)


def test_several_batch_dimensions_and_none():
    raw, blocks = 3 * draw(2, 3, 2), [ball([0.0, 0], 1.0), half_plane([1.0, 0], 0.2)]
    found = solve_intersection(raw, blocks)
    assert found.y.shape == (2, 3, 2)
    assert found.status.shape == (2, 3)
    torch.testing.assert_close(solve_intersection(raw[1, 2], blocks).y, found.y[1, 2])
    assert solve_intersection(raw[:0], blocks).y.shape == (0, 3, 2)


def test_empty_sets_are_infeasible_and_mates_are_solved():
    center = torch.tensor([[0.0, 0], [3, 0], [0.5, 0]], dtype=D)
    moving = ball([0.0, 0], 1.0)._replace(b=-center)
    found = solve_intersection(draw(3, 2), [ball([0.0, 0], 1.0), moving])
    assert found.status.tolist() == [Status.SOLVED, Status.INFEASIBLE, Status.SOLVED]


def nearly_touching(n, gap, seed):
    """Sets that touch where gap is 0: a ball and a row, two balls, and a cone, a quadratic and a matrix with a row."""
    c, a = draw(n, seed=seed), draw(1, n, seed=seed + 1)
    a, eye = a / a.norm(), torch.eye(n, dtype=D)
    far = lambda height: Intervals(a, (a @ c + height + gap), torch.full((1,), torch.inf, dtype=D))
    round_ = SecondOrder(eye, -c, torch.zeros(n, dtype=D), torch.ones((), dtype=D))
    root = draw(n, n, seed=seed + 2) / n**0.5
    P = root @ root.mT + 0.3 * eye
    depth = (a[0] @ torch.linalg.solve(P, a[0])).sqrt()
    F = torch.zeros(n, n + 1, n + 1, dtype=D)
    F[range(n), range(n), n] = F[range(n), n, range(n)] = 1
    F0 = torch.eye(n + 1, dtype=D) - (c[:, None, None] * F).sum(0)
    return {
        "ball": [round_, far(1.0)],
        "balls": [round_, round_._replace(b=-c - (2 + gap) * a[0])],
        "cone": [round_._replace(c=-0.2 * a[0], d=1 + 0.2 * (a[0] @ c)), far(1 / 1.2)],
        "quadratic": [Quadratics(P, -P @ c, (c @ P @ c - 1) / 2), far(depth)],
        "matrix": [SemiDefinite(F0, F), far(1.0)],
    }


@pytest.mark.parametrize("gap", [0.1, 1e-3, 1e-4])
@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("name", ["ball", "balls", "cone", "quadratic", "matrix"])
def test_a_narrow_gap_is_infeasible_too_and_a_narrow_overlap_is_not(name, n, gap):
    for seed in range(0, 40, 10):
        raw = 3 * draw(10, n, seed=seed + 3)
        apart = solve_intersection(raw, nearly_touching(n, gap, seed)[name])
        assert apart.status.tolist() == [Status.INFEASIBLE] * 10
        over = solve_intersection(raw, nearly_touching(n, -gap, seed)[name])
        assert over.status.tolist() == [Status.SOLVED] * 10


def test_a_set_that_is_merely_far_away_is_not_called_empty():
    found = solve_intersection(draw(4, 2), [ball([1e6, 0], 1.0)])
    assert found.status.tolist() == [Status.SOLVED] * 4


def test_a_tangent_without_multipliers_is_reported_not_passed_off():
    found = solve_intersection(2 * draw(5, 2), [ball([0.0, 0], 1.0), half_plane([1.0, 0], 1.0)])
    assert found.status.tolist() == [Status.NOT_CONVERGED] * 5
    assert found.residual.min().item() > 1e-9
    torch.testing.assert_close(found.y, torch.tensor([1.0, 0], dtype=D).expand(5, 2), atol=1e-2, rtol=0)


def test_invalid_samples_stay_alone():
    raw, block = 3 * draw(4, 2), ball([0.0, 0], 1.0)
    raw[2, 0] = torch.nan
    found = solve_intersection(raw, [block, half_plane([1.0, 0], 0.0)])
    assert found.status.tolist() == [0, 0, Status.INVALID, 0]
    assert bool(found.y[2].isnan().all())
    crossed = Intervals(torch.eye(2, dtype=D), torch.ones(2, dtype=D), torch.zeros(2, dtype=D))
    assert solve_intersection(raw[:1], [crossed]).status.tolist() == [Status.INVALID]


def test_bounds_of_zero_hold_exactly():
    simplex = Intervals(
        torch.cat([torch.eye(4, dtype=D), torch.ones(1, 4, dtype=D)]),
        torch.tensor([0.0, 0, 0, 0, 1], dtype=D),
        torch.tensor([torch.inf] * 4 + [1.0], dtype=D),
    )
    found = solve_intersection(3 * draw(40, 4), [simplex, ball([0.0, 0, 0, 0], 0.8)])
    assert found.status.max().item() == Status.SOLVED
    assert found.y.min().item() >= 0
