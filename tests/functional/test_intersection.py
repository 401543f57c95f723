"""The differentiable projection onto intersections: gradients of raw and every number, policies, dtypes."""

import pytest
import torch

from hardnet.errors import (
    BoundsError,
    ConvergenceError,
    DTypeError,
    InfeasibleError,
    NonFiniteError,
    SampleError,
    ShapeError,
)
from hardnet.functional import project_intersection
from hardnet.solvers import Intervals, Quadratics
from tests.draws import draw
from tests.solvers.convex import D, ball, families, half_plane


def bowl(block):
    """The same block, with a P that stays positive semidefinite under finite differences."""
    return block._replace(P=block.P + 0.1 * torch.eye(block.P.shape[-1], dtype=D)) if "P" in block._fields else block


FAMILIES = {name: [bowl(block) for block in blocks] for name, blocks in families(3, 4).items()}


def slope(function, leaf, direction, step=1e-6):
    """The directional derivative of a scalar function by central differences."""
    with torch.no_grad():
        return (function(leaf + step * direction) - function(leaf - step * direction)).item() / (2 * step)


def direction_for(key, leaf):
    """A random direction in which the number stays valid; the bounds of an equality move together (see below)."""
    step = draw(*leaf.shape, seed=6)
    return step + step.mT if key in ("P", "F", "F0") else step


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_agree_with_finite_differences(name):
    blocks, weight = FAMILIES[name], draw(3, 4, seed=4)
    keys = ["raw", *(key for block in blocks for key in block._fields)]
    leaves = [2 * draw(3, 4, seed=3), *(field.clone() for block in blocks for field in block)]
    leaves = [leaf.requires_grad_() for leaf in leaves]

    def loss(leaves):
        rest = iter(leaves[1:])
        rebuilt = [type(block)(*(next(rest) for _ in block)) for block in blocks]
        return (project_intersection(leaves[0], rebuilt) * weight).sum()

    found = torch.autograd.grad(loss(leaves), leaves)
    for j, (key, leaf) in enumerate(zip(keys, leaves, strict=True)):
        if key in ("lower", "upper") and leaf.shape == (1, 1):
            continue
        step = direction_for(key, leaf)
        expected = slope(lambda moved, j=j: loss([*leaves[:j], moved, *leaves[j + 1 :]]), leaf, step)
        assert (found[j] * step).sum().item() == pytest.approx(expected, rel=1e-5, abs=1e-6), key


def test_an_equality_moves_as_a_whole():
    raw, total = 2 * draw(3, 2), torch.tensor([0.3], dtype=D, requires_grad=True)
    ones = torch.ones(1, 2, dtype=D)

    def first(total):
        return project_intersection(raw, [Intervals(ones, total, total), ball([0.0, 0], 1.0)])[:, 0].sum()

    (found,) = torch.autograd.grad(first(total), total)
    assert found.item() == pytest.approx(slope(first, total, torch.ones(1, dtype=D)), rel=1e-6)


def test_the_implicit_formula_for_two_curved_constraints():
    raw = torch.tensor([[2.0, 0.3]], dtype=D)
    blocks = [ball([0.0, 0], 1.0), ball([1.0, 0], 1.0)]
    jacobian = torch.autograd.functional.jacobian(lambda r: project_intersection(r, blocks), raw)
    normal = raw[0] / raw.norm()  # only the first ball is active: (R / |q|)(I - q q')
    expected = (torch.eye(2, dtype=D) - torch.outer(normal, normal)) / raw.norm()
    torch.testing.assert_close(jacobian[0, :, 0], expected, atol=1e-12, rtol=0)
    corner = torch.tensor([[0.5, 3.0]], dtype=D)
    jacobian = torch.autograd.functional.jacobian(lambda r: project_intersection(r, blocks), corner)
    assert jacobian.abs().max().item() < 1e-12  # a vertex of two arcs does not move


def test_inside_is_kept_bit_for_bit_with_the_identity_as_gradient():
    raw = (0.05 * draw(3, 4)).requires_grad_()
    y = project_intersection(raw, FAMILIES["all"])
    assert torch.equal(y, raw)
    (grad,) = torch.autograd.grad(y.sum(), raw)
    torch.testing.assert_close(grad, torch.ones_like(grad))


def test_projecting_twice_changes_nothing():
    y = project_intersection(2 * draw(3, 4), FAMILIES["all"])
    torch.testing.assert_close(project_intersection(y, FAMILIES["all"]), y, atol=1e-14, rtol=0)


def test_float32_in_is_float32_out_right_to_its_rounding():
    blocks = [type(block)(*(field.float() for field in block)) for block in FAMILIES["all"]]
    raw = (2 * draw(3, 4)).float().requires_grad_()
    y = project_intersection(raw, blocks)
    exact = project_intersection(raw.double(), [type(b)(*(f.double() for f in b)) for b in blocks])
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, exact.float(), rtol=2e-7, atol=2e-7)
    assert torch.autograd.grad(y.sum(), raw)[0].dtype == torch.float32
    assert torch.equal(project_intersection(y.detach(), blocks), y)


def test_infeasible_samples_are_named_or_nan():
    raw = draw(3, 2).requires_grad_()
    moving = ball([0.0, 0], 1.0)._replace(b=torch.tensor([[0.0, 0], [5, 0], [0, 0]], dtype=D))
    blocks = [ball([0.0, 0], 1.0), moving]
    with pytest.raises(InfeasibleError, match=r"the set is empty: .* in sample 1") as caught:
        project_intersection(raw, blocks)
    assert caught.value.samples == [1]
    y = project_intersection(raw, blocks, on_infeasible="nan")
    assert y.isnan().any(-1).tolist() == [False, True, False]
    (grad,) = torch.autograd.grad(y[[0, 2]].sum(), raw)
    assert bool(grad.isfinite().all())


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_a_sample_short_of_the_tolerance_is_refused_with_the_last_point_by_name(size):
    """A ball and the half-plane that touches it have one common point, so that the solver stops short of it.

    A point that misses ball and half-plane by v at the most is within ``sqrt((1 + v)^2 - (1 - v)^2) = 2 sqrt(v)``.
    """
    raw, blocks = torch.tensor([[2.0, 1]], dtype=D) * size, [ball([0.0, 0], size), half_plane([1.0, 0], size)]
    with pytest.raises(ConvergenceError, match=r"have an empty interior in sample 0") as caught:
        project_intersection(raw, blocks)
    assert caught.value.solution.status.tolist() == [2]
    y = project_intersection(raw, blocks, on_unsolved="best")
    missed = torch.stack([y.norm() / size - 1, 1 - y[0, 0] / size]).amax()
    assert missed <= 1e-6
    assert (y[0] / size - torch.tensor([1.0, 0.0], dtype=D)).norm() <= 2.001 * missed.sqrt()


def test_every_error_message():
    raw, block = draw(2, 2), ball([0.0, 0], 1.0)
    bad = raw.clone()
    bad[1, 0] = torch.nan
    with pytest.raises(NonFiniteError, match=r"raw: .* in sample 1"):
        project_intersection(bad, [block])
    assert project_intersection(bad, [block], on_invalid="nan").isnan().any(-1).tolist() == [False, True]
    with pytest.raises(NonFiniteError, match="the numbers of the set"):
        project_intersection(raw, [block._replace(d=torch.tensor(torch.nan, dtype=D))])
    crossed = Intervals(torch.eye(2, dtype=D), torch.ones(2, dtype=D), torch.zeros(2, dtype=D))
    with pytest.raises(BoundsError, match="lower <= upper"):
        project_intersection(raw, [crossed, block])
    saddle = Quadratics(
        torch.diag(torch.tensor([1.0, -1], dtype=D)), torch.zeros(2, dtype=D), torch.tensor(-1.0, dtype=D)
    )
    with pytest.raises(SampleError, match="P: expected a positive semidefinite matrix"):
        project_intersection(raw, [saddle, block])
    with pytest.raises(DTypeError, match="the dtype of raw"):
        project_intersection(raw.float(), [block])
    with pytest.raises(ShapeError, match="batch dimensions"):
        project_intersection(raw, [block._replace(b=torch.zeros(3, 2, dtype=D))])
    with pytest.raises(ShapeError, match="output dimension"):
        project_intersection(torch.tensor(1.0, dtype=D), [block])


def test_a_batch_of_one_bad_sample_is_nan():
    """The solver has no sample left then, and must not look at the numbers, which are all bad."""
    bowl = Quadratics(torch.full((1, 2, 2), torch.nan, dtype=D), torch.zeros(1, 2, dtype=D), -torch.ones(1, dtype=D))
    y = project_intersection(draw(1, 2), [bowl, half_plane([1.0, 0.0], 0.0)], on_invalid="nan")
    assert y.isnan().all()
