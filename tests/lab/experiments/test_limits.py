"""Limits: the shipped numbers are the known ones, and the programs that made them find them again."""

import json
from pathlib import Path

import pytest
import torch

from hardnet.errors import HardNetError
from hardnet_lab.experiments import limits
from hardnet_lab.experiments.limits import cut, improve, replayed
from hardnet_lab.experiments.optimal import optimal_control, optimal_programs
from hardnet_lab.problems import PROBLEMS, Programs, Unicycle

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("name", "value"), [("opt", -14.277), ("opt-dc3", -11.592), ("opt-convex", -15.047)])
def test_the_shipped_limits(name, value):
    content = limits.load(name)
    assert content is not None
    assert content["limit"]["value"] == pytest.approx(value, abs=6e-4)
    _check(name, content)


def _check(name, content):
    best = content["rows"][0]
    assert sum(best["per_sample"]) / len(best["per_sample"]) == pytest.approx(content["limit"]["value"], abs=1e-7)
    assert best["metrics"]["max_violation"][0] < 1e-9
    assert {"command", "versions", "device", "date"} <= set(content["environment"])
    assert content == json.loads((ROOT / "results" / "limits" / f"limits-{name}.json").read_text())


def test_the_best_known_controls_are_below_every_recorded_policy_that_holds():
    content = limits.load("cbf")
    _check("cbf", content)
    rows = {row["method"]: row for row in content["rows"]}
    assert rows["open-loop"]["metrics"]["cost"][0] == pytest.approx(488.02, abs=6e-3)
    better = zip(rows["optimal"]["per_sample"], rows["open-loop"]["per_sample"], strict=True)
    assert all(ours <= theirs + 1e-6 for ours, theirs in better)
    files = [*ROOT.glob("results/paper/cbf/*.json"), *ROOT.glob("results/paper/best/cbf/*.json")]
    recorded = [json.loads(file.read_text()) for file in files if file.name != "run.json"]
    valid = [entry for entry in recorded if max(entry["metrics"]["max_violation"]) <= 1e-9]
    assert valid
    assert all(min(entry["metrics"]["cost"]) >= content["limit"]["value"] for entry in valid)


def test_the_controllers_of_the_control_problem():
    content = limits.load("cbf")
    assert content is not None
    costs = {row["method"]: row["metrics"]["cost"][0] for row in content["rows"]}
    expected = {"nominal": 656.283, "cbf-qp": 968.355, "cbf-qp-published": 948.324, "aff-zero": 981.586}
    for method, cost in expected.items():
        assert costs[method] == pytest.approx(cost, abs=5e-4)


def test_problems_without_a_limit_have_none():
    assert limits.load("pwc") is None


def test_the_optimum_of_two_programs_is_found_again():
    pytest.importorskip("casadi")
    problem = Programs()
    best = optimal_programs(problem, problem.test[:2])
    shipped = limits.load("opt")
    assert shipped is not None
    torch.testing.assert_close(
        best.value, torch.tensor(shipped["rows"][0]["per_sample"][:2]).double(), atol=1e-5, rtol=0
    )
    assert problem.evaluate(lambda _: best.point, problem.test[:2])["max_violation"] < 1e-9


def test_the_optimal_control_of_a_state_is_found_again_and_replays():
    pytest.importorskip("casadi")
    problem = Unicycle()
    best = optimal_control(problem, problem.test[:1], [torch.zeros(1, 50, 2, dtype=torch.float64)])
    shipped = limits.load("cbf")
    assert shipped is not None
    rows = {row["method"]: row["per_sample"][0] for row in shipped["rows"]}
    assert best.value.item() == pytest.approx(rows["open-loop"], abs=1e-4)
    whole = replayed(problem, problem.test[0], best.point[0, :100].reshape(50, 2).clamp(-100, 100))
    assert whole.cost == pytest.approx(best.value.item(), rel=1e-9)
    found = improve(problem, problem.test[0], cut(whole, (2,)))
    assert rows["optimal"] - 1e-4 <= found.cost < whole.cost
    assert found.violation <= 1e-8


def test_controls_that_break_a_barrier_are_no_run():
    problem = Unicycle()
    straight = torch.tensor([80.0, 0.0], dtype=torch.float64).expand(50, 2)
    assert replayed(problem, problem.test[0], straight) is None


def test_an_unknown_name_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(HardNetError, match="names: expected some of opt, opt-dc3, opt-convex, cbf, got nonsense"):
        limits.compute(tmp_path / "out", ["nonsense"])
    assert not (tmp_path / "out").exists()


def test_the_nearest_safe_output_is_a_projection():
    problem = PROBLEMS["cbf"]()
    assert isinstance(problem, Unicycle)
    random = torch.Generator().manual_seed(0)
    raw = 30 * torch.randn(84, 2, generator=random, dtype=torch.float64)
    y = limits.nearest_safe(problem, problem.test, raw)
    assert problem.constraint.violation(y, problem.test).max() < 1e-9
    inside = y + torch.randn(84, 2, generator=random, dtype=torch.float64)
    allowed = problem.constraint.violation(inside, problem.test).amax(-1) == 0
    assert allowed.any()
    angle = ((raw - y) * (inside - y)).sum(-1)[allowed]
    assert angle.max() < 1e-6  # every point of a convex set lies behind the tangent plane at the projection
