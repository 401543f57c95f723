"""Small curved sets by compiled code, against the same steps on batches of tensors."""

import pytest
import torch

from hardnet.functional import conic, project_intersection
from hardnet.functional import conic as conic_gradient
from hardnet.functional.conic import solve_intersection
from hardnet.kernels.cpu.conic import project, takes
from hardnet.kernels.cpu.launch import HAS_NUMBA
from hardnet.kernels.limits import MOST_CONIC_ORDER
from hardnet.solvers import Quadratics, SemiDefinite, Status
from hardnet.solvers.conic.blocks import Balls, gather
from tests.draws import draw
from tests.solvers.convex import D, ball, cone, families, half_plane, matrix, quadratic, rows

pytestmark = pytest.mark.skipif(not HAS_NUMBA, reason="numba compiles these")
BATCH, N = 16, 5
FAMILIES = families(BATCH, N) | {
    "two cones and two matrices": [cone(1, N, 2), cone(1, N, 4), matrix(BATCH, N, 2), matrix(1, N, 4, seed=7)],
    "balls and rows": [
        Balls(torch.zeros(1, N, dtype=D), torch.ones(1, dtype=D)),
        Balls(0.1 * draw(BATCH, N, seed=11), torch.full((BATCH,), 1.2, dtype=D)),
        rows(BATCH, N, 2),
    ],
    "constants beside samples": [quadratic(1, N, 2), rows(BATCH, N, 3), quadratic(BATCH, N, N, seed=9)],
}


@pytest.fixture
def without_compiled_code(monkeypatch):
    def switch():
        for module in (conic, conic_gradient):
            monkeypatch.setattr(module, "takes", lambda *_: False)

    return switch


def gradients(raw, blocks):
    """Gradients of ``y . w`` with respect to raw and every number."""
    kinds = [type(block) for block in blocks]
    leaves = [field.detach().clone().requires_grad_() for block in blocks for field in block]
    raw = raw.clone().requires_grad_()
    y = project_intersection(raw, gather(kinds, leaves))
    weight = torch.linspace(-1, 1, y.shape[-1], dtype=D)
    return torch.autograd.grad((y * weight).sum(), [raw, *leaves])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_the_same_projection_and_gradient_as_tensor_operations(name, spread, without_compiled_code):
    raw, blocks = spread * draw(BATCH, N, seed=3), FAMILIES[name]
    found, derived = solve_intersection(raw, blocks), gradients(raw, blocks)
    assert found.status.tolist() == [Status.SOLVED] * BATCH
    without_compiled_code()
    plain, expected = solve_intersection(raw, blocks), gradients(raw, blocks)
    # both stop at a residual of rounding in the unit of raw, and the objective is strongly convex with modulus one
    assert (found.y - plain.y).abs().max().item() < 1e-11 * spread
    for one, other in zip(derived, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6 * spread)


@pytest.mark.parametrize("name", ["cone", "matrix", "quadratic", "all"])
def test_a_sample_does_not_depend_on_its_mates(name):
    raw, blocks = 3 * draw(BATCH, N, seed=4), FAMILIES[name]
    together = solve_intersection(raw, blocks)
    for index in (0, 7, BATCH - 1):
        own = [type(block)(*(field[index : index + 1] for field in block)) for block in blocks]
        alone = solve_intersection(raw[index : index + 1], own)
        assert torch.equal(alone.y[0], together.y[index])
        assert torch.equal(alone.dual[0], together.dual[index])


def test_two_threads_give_the_bits_of_one():
    raw, block, before = 3 * draw(2**14, 3, seed=8), cone(1, 3, 6), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = solve_intersection(raw, [block])
        torch.set_num_threads(2)
        assert torch.equal(solve_intersection(raw, [block]).y, alone.y)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("k", [1, 2, 5, MOST_CONIC_ORDER, MOST_CONIC_ORDER + 1])
def test_matrices_of_every_order(k, without_compiled_code):
    raw, block = 4 * draw(6, 3, seed=k), matrix(6, 3, k, seed=20 + k)
    found = solve_intersection(raw, [block])
    without_compiled_code()
    assert (found.y - solve_intersection(raw, [block]).y).abs().max().item() < 1e-11
    assert found.status.tolist() == [Status.SOLVED] * 6


def test_equal_eigenvalues_and_a_vertex():
    """``diag(y, y) >= 0`` and the apex of a cone: both eigenvalues vanish at once."""
    F = torch.eye(2, dtype=D).expand(1, 2, 2)
    y = solve_intersection(torch.tensor([[-2.0]], dtype=D), [SemiDefinite(torch.zeros(2, 2, dtype=D), F)]).y
    assert y.abs().item() < 1e-15
    apex = ball([0.0, 0.0], 0.0)
    assert solve_intersection(torch.tensor([[3.0, 4.0]], dtype=D), [apex]).y.abs().max().item() < 1e-7


def test_empty_and_thin_sets_have_the_same_status_as_without(without_compiled_code):
    raw = torch.tensor([[3.0, 1.0], [0.5, 0.2], [-4.0, 2.0]], dtype=D)
    sets = {
        "empty": [ball([-2.0, 0.0], 1.0), ball([2.0, 0.0], 1.0)],
        "one point": [ball([-1.0, 0.0], 1.0), ball([1.0, 0.0], 1.0)],
        "chord": [ball([0.0, 0.0], 1.0), half_plane([1.0, 0.0], 0.5), half_plane([-1.0, 0.0], -0.5)],
    }
    compiled = {name: solve_intersection(raw, blocks).status.tolist() for name, blocks in sets.items()}
    assert compiled["empty"] == [Status.INFEASIBLE] * 3
    without_compiled_code()
    assert compiled == {name: solve_intersection(raw, blocks).status.tolist() for name, blocks in sets.items()}


def test_an_invalid_sample_leaves_its_mates_alone():
    raw, block = 3 * draw(BATCH, N, seed=6), FAMILIES["matrix"][0]
    expected = solve_intersection(raw, [block])
    F0 = block.F0.clone()
    F0[4, 0, 0] = torch.nan
    found = solve_intersection(raw, [block._replace(F0=F0)])
    kept = torch.arange(BATCH) != 4
    assert found.status[4].item() == Status.INVALID
    assert torch.equal(found.y[kept], expected.y[kept])


def parts(blocks):
    """What compiled code takes: the kinds of the blocks and their fields."""
    return [type(block) for block in blocks], [field for block in blocks for field in block]


@pytest.mark.parametrize("name", FAMILIES)
def test_no_sample_is_left_to_the_solver(name):
    left = project(3 * draw(BATCH, N, seed=3), *parts(FAMILIES[name]), 1e-9)[-1]
    assert left is None


def test_an_empty_set_bad_numbers_and_an_indefinite_matrix_are_left_to_the_solver():
    disc = Balls(torch.zeros(3, 2, dtype=D), torch.tensor([1.0, -1.0, torch.nan], dtype=D))
    assert project(draw(3, 2) + 5, *parts([disc]), 1e-9)[-1].tolist() == [1, 2]
    bowl = Quadratics(torch.diag_embed(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=D)), torch.zeros(2, 2, dtype=D),
                      -torch.ones(2, dtype=D))  # fmt: skip
    assert project(draw(2, 2) + 5, *parts([bowl]), 1e-9)[-1].tolist() == [1]


@pytest.mark.parametrize("size", [1e-250, 1e-160, 1e160, 1e250])
def test_numbers_whose_squares_overflow_or_vanish(size):
    disc = Balls(torch.zeros(1, 2, dtype=D), torch.full((1,), size, dtype=D))
    line = half_plane([1.0, 0.0], 0.5 * size)
    inside, outside = torch.tensor([[0.6, 0.1]], dtype=D), torch.tensor([[3.0, 4.0]], dtype=D)
    found = solve_intersection(size * torch.cat([inside, outside]), [disc, line])
    assert found.status.tolist() == [Status.SOLVED] * 2
    assert torch.equal(found.y[0], size * inside[0])
    assert (found.y[1] / size - torch.tensor([0.6, 0.8], dtype=D)).abs().max().item() < 1e-14


def test_what_is_large_or_no_memory_is_left_to_tensor_operations():
    asked = lambda raw, blocks: takes(raw, *parts(blocks))
    small, wide = FAMILIES["all"], [rows(1, 40, 40)]
    assert asked(draw(BATCH, N), small)
    assert asked(draw(BATCH, N).float(), small)
    assert not asked(draw(BATCH, N).half(), small)
    assert not asked(draw(0, N), small)
    assert not asked(draw(2, 40), wide)
    assert not asked(draw(BATCH, N).to("meta"), small)
