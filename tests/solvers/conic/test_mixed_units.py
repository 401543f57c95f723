"""Outputs in units that differ by many powers of ten: the set is not empty because its points are far from raw."""

import pytest
import torch

import hardnet as hn
from hardnet.solvers import Status
from tests.draws import draw

D = torch.float64
RAW = draw(3, 4, seed=5)


def ellipsoid(kind, decades, seed, reach=0.5):
    """``|d (y - c)| <= reach`` whose center is as far away as the units of the outputs make it."""
    d = (
        10.0
        ** -torch.linspace(0, decades, 4, dtype=D)[torch.randperm(4, generator=torch.Generator().manual_seed(seed))]
    )
    c = (1 + draw(4, seed=seed).abs()) / d
    reach = torch.tensor(reach, dtype=D)
    if kind == "cone":
        return hn.SecondOrderCone(torch.diag(d), -d * c, torch.zeros(4, dtype=D), reach), d, c
    if kind == "cone of x":
        return hn.SecondOrderCone(torch.diag(d), lambda x: -d * c * x, torch.zeros(4, dtype=D), reach), d, c
    return hn.scaled(hn.Ball(d * c, reach), torch.zeros(4, dtype=D), d), d, c


def nearest(raw, d, c, reach=0.5):
    """``c + (raw - c) / (1 + mu d^2)`` with the mu for which the row is met, by bisection of its logarithm."""
    off = raw - c
    value = lambda mu: (d * off / (1 + mu * d.square())).square().sum(-1, keepdim=True) - reach**2
    low, high = torch.full_like(off[:, :1], -60.0), torch.full_like(off[:, :1], 90.0)
    for _ in range(200):
        middle = (low + high) / 2
        above = value(middle.exp()) > 0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return c + off / (1 + high.exp() * d.square())


@pytest.mark.filterwarnings("ignore:.*could not be proved:hardnet.errors.NotConvergedWarning")
@pytest.mark.parametrize("decades", [1, 3, 5, 6, 8])
@pytest.mark.parametrize("kind", ["cone", "cone of x", "scaled ball"])
def test_the_nearest_point_is_found_however_far(kind, decades):
    for seed in range(4):
        constraint, d, c = ellipsoid(kind, decades, seed)
        x = torch.ones(3, 1, dtype=D)
        layer = hn.layers.HardNetCvx(constraint)
        y, solved = layer(RAW, x), layer.solve(RAW, x).status == Status.SOLVED
        assert hn.check(constraint, y, x).ok
        assert solved.all() or decades == 8
        far, least = ((point - RAW).norm(dim=-1)[solved] for point in (y, nearest(RAW, d, c)))
        assert torch.allclose(far, least, rtol=1e-9)


@pytest.mark.parametrize("decades", [1, 3, 5, 6, 8])
def test_a_set_without_points_is_still_refused(decades):
    one, d, c = ellipsoid("cone of x", decades, 0)
    other = hn.SecondOrderCone(torch.diag(d), lambda x: -d * (c + 2 / d) * x, torch.zeros(4, dtype=D), 0.5)
    with pytest.raises(hn.errors.InfeasibleError, match="in samples 0, 1, 2"):
        hn.layers.HardNetCvx(one & other)(RAW, torch.ones(3, 1, dtype=D))
    with pytest.raises(hn.errors.InfeasibleError, match="an empty set"):
        hn.SecondOrderCone(torch.diag(d), -d * c, torch.zeros(4, dtype=D), -0.5)
