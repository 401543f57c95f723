"""The grid: costs known from elsewhere, derivatives against autograd, and the power flow against the balance."""

import pytest
import torch

from hardnet.errors import FileError
from hardnet_lab.problems.suites.acopf import NEAR, Grid, draw_loads

COSTS = {"case9": 5296.6862, "case57": 41737.7863, "case118": 129660.6850, "case300": 719725.0766}
"""Of the cheapest dispatch without limits on lines, by IPOPT on other code (MATPOWER's cases, in dollars an hour)."""


@pytest.fixture(params=COSTS, scope="module")
def grid(request):
    return Grid(request.param)


def test_the_nominal_dispatch_has_the_known_cost_and_is_feasible(grid):
    assert grid.price(grid.nominal).item() * grid.base**2 == pytest.approx(COSTS[grid.case], abs=1e-4)
    assert grid.balance(grid.nominal, grid.load).abs().max() < 1e-9  # IPOPT's tolerance
    assert (grid.nominal >= grid.lower - 1e-9).all()
    assert (grid.nominal <= grid.upper + 1e-9).all()


def test_the_power_flow_finds_the_nominal_dispatch_again(grid):
    found = grid.complete(grid.chosen(grid.nominal), grid.load)
    torch.testing.assert_close(found, grid.nominal, rtol=0, atol=1e-8)


def test_a_dispatch_completed_from_any_controls_is_in_balance(grid):
    x = draw_loads(grid, 4)
    low, high = grid.chosen(grid.lower), grid.chosen(grid.upper)
    random = torch.Generator().manual_seed(0)
    near = 0.03 if grid.case in NEAR else 1.0  # farther from its own controls, 300 buses have no power flow
    own = grid.chosen(grid.nominal)
    u = own + near * (low - own + (high - low) * torch.rand(4, grid.controls, generator=random, dtype=torch.float64))
    y = grid.complete(u, x)
    torch.testing.assert_close(grid.chosen(y), u, rtol=0, atol=0)
    size = y.abs().max() ** 2 * grid.B.abs().sum(-1).max()
    assert grid.balance(y, x).abs().max() < 1e3 * torch.finfo(torch.float64).eps * size


def test_slopes_are_those_of_autograd(grid):
    y, x = grid.nominal, grid.load
    numeric = torch.autograd.functional.jacobian(lambda z: grid.balance(z, x), y)
    torch.testing.assert_close(grid.balance_slopes(y, x), numeric, rtol=1e-9, atol=1e-9)
    u = grid.chosen(y)
    numeric = torch.autograd.functional.jacobian(lambda z: grid.follows(grid.complete(z, x)), u)
    torch.testing.assert_close(grid.following_slopes(u, x), numeric, rtol=1e-9, atol=1e-9)


def test_the_derivative_of_the_power_flow_is_that_of_differences():
    grid = Grid("case9")
    u, x = grid.chosen(grid.nominal), grid.load
    move = torch.linspace(-1, 1, grid.controls, dtype=torch.float64)
    step = 1e-5
    ends = [grid.follows(grid.complete(u + side * step * move, x)) for side in (1, -1)]
    # central differences are off by step^2 times a third derivative of order 1, and by rounding over the step
    torch.testing.assert_close(
        grid.following_slopes(u, x) @ move, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-7
    )


def test_a_case_that_is_not_there_is_refused():
    with pytest.raises(FileError, match="case14: expected a grid of this package"):
        Grid("case14")
