"""Power flow problems: their data, both spellings on the same dispatch, and the layer's promise on them."""

import json
from importlib import resources

import pytest
import torch

import hardnet as hn
from hardnet_lab.problems.suites.acopf import NEAR, RANGE, Grid, PowerBalance, PowerFlow, draw_loads


@pytest.fixture(scope="module")
def flow():
    return PowerFlow("case9", 400)


def test_loads_are_those_that_were_recorded(flow):
    again = draw_loads(Grid("case9"), 3)
    assert torch.equal(draw_loads(Grid("case9"), 2), again[:2])
    assert not flow.test[:, flow.input_dim].isnan().any()  # refused at construction where the checksum differs


def test_the_last_bit_of_a_root_makes_no_other_data(monkeypatch):
    """It depends on the processor: what is recorded belongs to what was drawn."""
    root = torch.Tensor.sqrt
    expected = PowerFlow("case9", 400)
    monkeypatch.setattr(torch.Tensor, "sqrt", lambda own: torch.nextafter(root(own), torch.tensor(9.0).double()))
    found = PowerFlow("case9", 400)
    assert not found.test.equal(expected.test)
    assert found.checksum == expected.checksum


def test_loads_follow_the_stated_distribution():
    grid = Grid("case57")
    loads = draw_loads(grid, 300)
    buses = grid.load[:57].nonzero().squeeze(-1)
    factor = loads[:, buses] / grid.load[buses]
    assert factor.min() >= RANGE[0]
    assert factor.max() <= RANGE[1]
    tangent = loads[:, 57 + buses] / loads[:, buses]
    assert (tangent.abs() <= 0.75 + 1e-12).all()  # a power factor of 0.8 and more
    assert torch.equal(tangent.sign().amax(0) * tangent.abs().amax(0).sign(), grid.load[57 + buses].sign())
    silent = torch.ones(57, dtype=torch.bool)
    silent[buses] = False
    assert not loads[:, :57][:, silent].any()


def test_loads_of_the_largest_grid_stay_near_its_own():
    grid = Grid("case300")
    factor = draw_loads(grid, 20) / grid.load
    assert (factor - 1).nan_to_num().abs().max() <= NEAR["case300"] + 1e-12


def test_both_spellings_measure_the_same_dispatch(flow):
    whole = PowerBalance("case9", 400)
    x = flow.inputs(flow.test[:5])
    u = flow.grid.chosen(flow.grid.nominal).expand(5, -1)
    y = flow.dispatch(u, x)
    torch.testing.assert_close(flow.value(u, x), whole.value(y, x), rtol=0, atol=0)
    for one, other in zip(flow.residuals(u, x), whole.residuals(y, x), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["retract", "nearest"])
def test_the_nearest_dispatch_holds(mode):
    problem = PowerBalance("case9", 400)
    x = problem.inputs(problem.test[:8])
    random = torch.Generator().manual_seed(0)
    raw = problem.grid.nominal + 0.05 * torch.randn(8, problem.output_dim, generator=random, dtype=torch.float64)
    y = hn.layers.NonlinearLayer(problem.constraint, mode=mode)(raw, x)
    equalities, inequalities = problem.residuals(y, x)
    assert equalities.max() <= 1e-8
    assert inequalities.max() == 0  # coordinates of a box hold exactly


def test_the_nearest_dispatch_is_that_of_ipopt():
    """Distances from perturbed optima, found once by IPOPT on other code (default_rng(0), 0.01, then 0.05)."""
    numpy = pytest.importorskip("numpy")
    problem = PowerBalance("case9", 400)
    random = numpy.random.default_rng(0)
    noise = [torch.from_numpy(size * random.standard_normal(problem.output_dim)) for size in (0.01, 0.05)]
    raw = problem.grid.nominal + torch.stack(noise)
    found = hn.layers.NonlinearLayer(problem.constraint, mode="nearest").solve(raw, problem.grid.load.expand(2, -1))
    distance = (found.y - raw).norm(dim=-1)
    torch.testing.assert_close(distance, torch.tensor([0.039739, 0.217226]).double(), rtol=0, atol=2e-6)
    assert found.status.tolist() == [0, 0]


def test_controls_after_the_layer_give_a_feasible_dispatch(flow):
    x = flow.inputs(flow.test[:8])
    random = torch.Generator().manual_seed(0)
    low, high = flow.grid.chosen(flow.grid.lower), flow.grid.chosen(flow.grid.upper)
    raw = low + (high - low) * torch.rand(8, flow.output_dim, generator=random, dtype=torch.float64)
    raw.requires_grad_()
    u = hn.layers.NonlinearLayer(flow.constraint, mode="retract")(raw, x)
    assert max(part.max().item() for part in flow.residuals(u, x)) <= 1e-8
    flow.value(u, x).sum().backward()
    assert raw.grad is not None
    assert raw.grad.isfinite().all()
    assert raw.grad.any()


def test_controls_far_outside_their_bounds_are_brought_back(flow):
    x = flow.inputs(flow.test[:2])
    raw = flow.grid.chosen(flow.grid.nominal) + torch.tensor([[10.0], [-10.0]], dtype=torch.float64)
    u = hn.layers.NonlinearLayer(flow.constraint, mode="retract")(raw, x)
    assert max(part.max().item() for part in flow.residuals(u, x)) <= 1e-8


@pytest.mark.parametrize("case", ["case9", "case57", "case118"])
def test_recorded_optima_say_what_made_them(case):
    folder = resources.files("hardnet_lab.problems.suites") / "data"
    optima = json.loads((folder / f"acopf-{case}.json").read_text())
    assert len(optima["optimum"]) == 100
    assert optima["worst_violation"] < 1e-8
    assert "pypower" in json.loads((folder / f"grid-{case}.json").read_text())["source"]
    assert json.loads((folder / f"loads-{case}.json").read_text())["drawn"] >= 300
