"""Bounds that are bounds: in every intersection a coordinate with a box of its own is exactly inside."""

import pytest
import torch

from hardnet import check
from hardnet.functional import project_intersection
from hardnet.layers import HardNetCvx
from hardnet.sets import LMI, Affine, Ball, Box, Equality, Quadratic, SecondOrderCone
from tests.draws import draw
from tests.solvers.convex import D

N = 6
LOWER, UPPER = -0.1 - 0.3 * draw(N, seed=1).abs(), 0.1 + 0.2 * draw(N, seed=2).abs()


def symmetric(n, k, seed):
    F = draw(n, k, k, seed=seed)
    return (F + F.mT) / 2


CURVED = {
    "ball": lambda: Ball(0.1 * draw(N, seed=3), 0.4),
    "quadratic": lambda: Quadratic(draw(N, N, seed=4) @ draw(N, N, seed=4).mT, 0.1 * draw(N, seed=5), -0.1),
    "cone": lambda: SecondOrderCone(draw(3, N, seed=6), 0.1 * draw(3, seed=7), 0.2 * draw(N, seed=8), 0.5),
    "matrix": lambda: LMI(0.5 * torch.eye(3, dtype=D), symmetric(N, 3, 9)),
    "ball and equality": lambda: Ball(torch.zeros(N, dtype=D), 0.5) & Equality(torch.ones(1, N, dtype=D), 0.05),
}


@pytest.mark.parametrize("dtype", [D, torch.float32])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("name", CURVED)
def test_a_box_holds_exactly_and_the_rest_to_rounding(name, size, dtype):
    both = (Box(LOWER, UPPER) & CURVED[name]()).to(dtype)
    raw = (size * draw(60, N, seed=10)).to(dtype)
    y = HardNetCvx(both)(raw)
    assert bool((y >= LOWER.to(dtype)).all())
    assert bool((y <= UPPER.to(dtype)).all())
    assert bool(check(both, y).ok) or dtype == torch.float32
    worst = check(both, y)
    assert bool((worst.violation <= 4 * worst.tolerance).all())


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rows_that_are_one_coordinate_hold_exactly_too(sign):
    positive = Affine(sign * torch.eye(N, dtype=D), **{"lower" if sign > 0 else "upper": torch.zeros(N, dtype=D)})
    both = positive & Ball(torch.full((N,), 0.1, dtype=D), 0.3)
    raw = 3 * draw(200, N, seed=11)
    y = HardNetCvx(both)(raw)
    assert y.min().item() >= 0
    assert bool(y.sqrt().isfinite().all())


def test_a_raw_output_one_rounding_outside_is_clamped():
    both = Box(LOWER, UPPER) & Ball(torch.zeros(N, dtype=D), 5.0)
    raw = UPPER.nextafter(torch.tensor(torch.inf, dtype=D)).unsqueeze(0)
    blocks = both.region(None, raw).blocks(raw)
    assert torch.equal(project_intersection(raw, blocks), UPPER.unsqueeze(0))
