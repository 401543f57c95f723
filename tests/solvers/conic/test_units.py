"""Curved sets in any unit and from any distance: the same answer, as exact at y as float64 can hold it."""

import math

import pytest
import torch

from hardnet.functional import project_intersection
from hardnet.functional.conic import solve_intersection
from hardnet.solvers import Intervals, Quadratics, SecondOrder, SemiDefinite, Status
from tests.draws import draw
from tests.solvers.convex import D, ball, families, half_plane

FAMILIES = families(12, 4)
EPS = 2.0**-52


def disc_and_line(raw, s):
    """The nearest point of ``|y| <= s, y_0 <= s/2``: on the arc, on the chord, or in a corner."""
    x, y = raw.tolist()
    long = math.hypot(x, y)
    if x <= s / 2 and long <= s:
        return x, y
    if x / long <= 0.5:
        return s * (x / long), s * (y / long)
    half = s * math.sqrt(0.75)
    return s / 2, max(-half, min(half, y))


@pytest.mark.parametrize("exponent", [-12, -9, -5, 0, 5, 9, 12, 100, -100])
def test_disc_and_half_plane_in_every_unit(exponent):
    s = 10.0**exponent
    blocks = [ball([0.0, 0], s), half_plane([-1.0, 0], -s / 2)]
    raw = s * torch.cat([2 * draw(40, 2), torch.tensor([[3.0, 2]], dtype=D)])
    found = solve_intersection(raw, blocks)
    assert found.status.tolist() == [Status.SOLVED] * 41
    expected = torch.tensor([disc_and_line(point, s) for point in raw], dtype=D)
    # Newton ends at a residual of a few roundings of the unit, at most 4 |raw|, and corners are well conditioned
    assert ((found.y - expected).abs().amax(-1) / s).max().item() <= 200 * EPS
    assert (torch.linalg.vector_norm(found.y, dim=-1) / s).max().item() <= 1 + 16 * EPS
    assert bool((found.y[:, 0] <= s / 2 * (1 + 16 * EPS)).all())


@pytest.mark.parametrize("distance", [1e2, 1e5, 1e7, 1e10, 1e13, 1e16])
def test_disc_and_half_plane_from_every_distance(distance):
    blocks = [ball([0.0, 0], 1.0), half_plane([-1.0, 0], -0.5)]
    angles = torch.linspace(0, 2 * math.pi, 24, dtype=D)[:-1]
    raw = distance * torch.stack([angles.cos(), angles.sin()], dim=-1)
    raw = torch.cat([raw, distance * torch.tensor([[3.0, 1e-3], [3.0, -1e-9], [1e-7, 2.0]], dtype=D)])
    found = solve_intersection(raw, blocks)
    assert found.status.tolist() == [Status.SOLVED] * len(raw)
    expected = torch.tensor([disc_and_line(point, 1.0) for point in raw], dtype=D)
    # along the chord y moves with raw, so a rounding of raw is the most that can be asked for there
    slack = torch.where(expected[:, 0] == 0.5, (1 + raw[:, 1].abs()).clamp_max(4), 1.0)
    assert ((found.y - expected).abs().amax(-1) / slack).max().item() <= 400 * EPS
    assert torch.linalg.vector_norm(found.y, dim=-1).max().item() <= 1 + 16 * EPS


def rescaled(block, s):
    """The same block with every length multiplied by s."""
    if isinstance(block, Intervals):
        return Intervals(block.A, block.lower * s, block.upper * s)
    if isinstance(block, SecondOrder):
        return SecondOrder(block.A, block.b * s, block.c, block.d * s)
    if isinstance(block, SemiDefinite):
        return SemiDefinite(block.F0 * s, block.F)
    return Quadratics(block.P / s, block.q, block.r * s)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("exponent", [-40, 40])
def test_a_power_of_two_as_unit_changes_no_bit(name, exponent):
    s, raw, blocks = 2.0**exponent, 5 * draw(12, 4, seed=5), FAMILIES[name]
    plain = solve_intersection(raw, blocks)
    found = solve_intersection(s * raw, [rescaled(block, s) for block in blocks])
    assert found.status.tolist() == plain.status.tolist() == [Status.SOLVED] * 12
    assert torch.equal(found.y / s, plain.y)


def stretched(block, s, t):
    """The same block with every length multiplied by s, and what it bounds by t."""
    if isinstance(block, Intervals):
        return Intervals(block.A * t, block.lower * s * t, block.upper * s * t)
    if isinstance(block, SecondOrder):
        return SecondOrder(block.A * t, block.b * s * t, block.c * t, block.d * s * t)
    if isinstance(block, SemiDefinite):
        return SemiDefinite(block.F0 * s * t, block.F * t)
    return Quadratics(block.P * t / s, block.q * t, block.r * s * t)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("lengths", "values"), [(-360, -360), (200, 340), (-360, 360), (360, -360)])
def test_values_whose_squares_are_no_numbers(name, lengths, values):
    """Values of 2^-720 or 2^540: the answer, its status and its certificate do not depend on the unit."""
    s, t, raw, blocks = 2.0**lengths, 2.0**values, 5 * draw(12, 4, seed=5), FAMILIES[name]
    plain = solve_intersection(raw, blocks)
    moved = [stretched(block, s, t) for block in blocks]
    found = solve_intersection(s * raw, moved)
    assert found.status.tolist() == plain.status.tolist() == [Status.SOLVED] * 12
    assert ((found.y / s - plain.y).abs() <= 200 * EPS * raw.abs().amax()).all()
    for block, other in zip(blocks, moved, strict=True):
        here, there = block.excess(raw) / block.scale(raw), other.excess(s * raw) / other.scale(s * raw)
        torch.testing.assert_close(there, here, rtol=0, atol=64 * EPS)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("distance", [1e4, 1e7, 1e10])
def test_from_far_away_the_answer_is_right_or_not_called_solved(name, distance):
    raw, blocks = distance * draw(12, 4, seed=5), FAMILIES[name]
    found = solve_intersection(raw, blocks)
    solved = found.status == Status.SOLVED
    assert solved.float().mean().item() >= 0.9
    near = [solve_intersection(2 * draw(12, 4, seed=seed), blocks).y for seed in (7, 8, 9)]
    size = 1 + found.y.abs().amax(-1)
    way = (raw - found.y) / torch.linalg.vector_norm(raw - found.y, dim=-1, keepdim=True).clamp_min(1e-300)
    for point in [*near, torch.zeros_like(raw)]:
        gap = (way * (point - found.y)).sum(-1) / size  # at most zero, by the variational inequality
        assert gap[solved].max().item() <= 1e-9


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_do_not_depend_on_the_unit(name):
    raw, blocks, weight = 3 * draw(12, 4, seed=5), FAMILIES[name], draw(12, 4, seed=6)

    def gradient(s):
        leaf = (s * raw).requires_grad_()
        y = project_intersection(leaf, [rescaled(block, s) for block in blocks])
        return torch.autograd.grad((y * weight).sum(), leaf)[0]

    plain = gradient(1.0)
    for exponent in (-40, 40):
        torch.testing.assert_close(gradient(2.0**exponent), plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("distance", [1e3, 1e8])
def test_gradients_from_far_away_shrink_with_the_distance(distance):
    raw = (distance * torch.tensor([[-3.0, 2.0], [0.1, 5.0]], dtype=D)).requires_grad_()
    y = project_intersection(raw, [ball([0.0, 0], 1.0), half_plane([-1.0, 0], -0.5)])
    (grad,) = torch.autograd.grad(y[:, 0].sum(), raw)
    unit = raw / torch.linalg.vector_norm(raw, dim=-1, keepdim=True)
    across = torch.tensor([1.0, 0], dtype=D) - unit[:, :1] * unit
    torch.testing.assert_close(grad * torch.linalg.vector_norm(raw, dim=-1, keepdim=True), across, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_points_inside_keep_their_bits(seed):
    for name, blocks in FAMILIES.items():
        if name.startswith("balance"):
            continue
        raw = 0.05 * draw(12, 4, seed=seed)
        raw[:, 0] = -0.0
        y = project_intersection(raw, blocks)
        assert torch.equal(y.view(torch.int64), raw.view(torch.int64)), name
