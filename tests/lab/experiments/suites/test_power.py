"""References of the power flow: IPOPT again on recorded loads, and its KKT point is where our layer stays."""

import pytest
import torch

import hardnet as hn
from hardnet_lab.experiments.suites.catalog import find_suite
from hardnet_lab.problems.suites.acopf import PowerBalance, PowerFlow

pytest.importorskip("casadi")


@pytest.mark.parametrize("case", ["case9", "case57"])
def test_ipopt_finds_the_recorded_optima_again(case):
    problem = PowerFlow(case, 800)
    x = problem.test[:2]
    solve = {one.short: one for one in find_suite("acopf").cases}[case].solve
    best = solve(problem, problem.inputs(x))
    torch.testing.assert_close(best.value, x[:, problem.input_dim], rtol=1e-7, atol=0)
    torch.testing.assert_close(problem.value(best.point, problem.inputs(x)), best.value, rtol=1e-6, atol=0)


def test_the_nearest_dispatch_is_that_of_ipopt():
    from hardnet_lab.experiments.suites.references import solve_with
    from hardnet_lab.problems.suites.acopf import read_grid

    problem = PowerBalance("case9", 400)
    x = problem.inputs(problem.test[:3])
    random = torch.Generator().manual_seed(1)
    raw = problem.grid.nominal + 0.05 * torch.randn(3, problem.output_dim, generator=random, dtype=torch.float64)
    exact = solve_with(problem.grid, read_grid("case9"), torch.cat([x, raw], 1), near=True)
    y = hn.layers.NonlinearLayer(problem.constraint, mode="nearest")(raw, x)
    torch.testing.assert_close(0.5 * (y - raw).square().sum(-1), exact.value, rtol=1e-6, atol=1e-9)


def test_the_tables_of_a_grid_are_made_again(tmp_path):
    pytest.importorskip("pypower")
    from hardnet_lab.experiments.results import read_json
    from hardnet_lab.experiments.suites.references import record_grid, record_loads
    from hardnet_lab.problems.suites.acopf import read_grid

    record_grid("case9", tmp_path)
    made, kept = read_json(tmp_path / "grid-case9.json"), read_grid("case9")
    assert made["branch"] == kept.branch.tolist()
    torch.testing.assert_close(torch.tensor(made["nominal"]).double(), kept.nominal, rtol=0, atol=1e-5)
    record_loads("case9", tmp_path, 3)
    assert read_json(tmp_path / "loads-case9.json")["without"] == []
