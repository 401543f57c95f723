"""SnareNet's and FSNet's optima against other solvers, and a training whose exact layer waits for the end."""

from dataclasses import replace

import pytest
import torch

import hardnet as hn
from hardnet.errors import HardNetError
from hardnet_lab.experiments import recipes as specs
from hardnet_lab.experiments.results import read_result
from hardnet_lab.experiments.run import Row, build_model, partly_enforced
from hardnet_lab.experiments.suites.catalog import BOXED, LOOSE, find_suite
from hardnet_lab.experiments.suites.references import solve_separable
from hardnet_lab.problems import Hidden
from hardnet_lab.problems.suites import reference
from hardnet_lab.problems.suites.programs import FSNet
from hardnet_lab.train import Silence, World, streams_of
from tests.lab.problems.suites.test_separable import small

CASES = [case for name in ("snarenet", "fsnet") for case in find_suite(name).cases]
LIMITS = {
    "snarenet-noncvx": -11.678,
    "snarenet-qcqp10": -28.434,
    "snarenet-qcqp50": -16.254,
    "snarenet-qcqp100": -13.197,
    "fsnet-convex-qp": -36.104,
    "fsnet-convex-qcqp": -26.834,
    "fsnet-nonconvex-qp": -19.668,
    "fsnet-nonsmooth-qp": -18.817,
    "fsnet-convex-socp": -14.566,
}
"""Mean optima of the test sets."""


def only(problem, count):
    problem.test = problem.test[:count]
    return problem.inputs(problem.test)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_recorded_optima_are_below_a_feasible_point_and_are_found_again(case):
    pytest.importorskip("casadi")
    known = reference(case.name)
    assert known is not None, "its optima are part of the package"
    problem = case.build()
    x = only(problem, 2)
    found = solve_separable(problem, x)
    recorded = problem.test[:, -1]
    assert (found.value - recorded).abs().max() < 1e-6, "IPOPT to 1e-10 in units of the objective, twice"
    assert problem.evaluate(lambda _: found.point, problem.test)["worst_violation"] < 1e-9
    start = x @ torch.linalg.pinv(problem.C).T
    inside = problem.constraint.violation(start, x).amax(-1) < 1e-9
    assert (recorded < problem.value(start, x))[inside].all()
    assert torch.tensor(known["optimum"]).mean().item() == pytest.approx(LIMITS[case.name], abs=6e-4)


def test_a_convex_optimum_is_the_projection_in_the_metric_of_its_objective():
    """``1/2 y'Qy + p'y`` is half the squared distance from ``-p / Q`` in the metric Q, up to a constant."""
    pytest.importorskip("casadi")
    problem = FSNet("convex", "qp")
    x = only(problem, 2)
    raw = (-problem.p / problem.Q).expand(2, -1)
    rows = torch.cat([problem.rows.G, problem.C, torch.eye(100, dtype=torch.float64)])
    side = torch.full((2, 100), 5.0, dtype=torch.float64)
    lower = torch.cat([torch.full((2, 50), -torch.inf, dtype=torch.float64), x, -side], -1)
    upper = torch.cat([problem.bound.expand(2, -1), x, side], -1)
    y = hn.functional.project_affine(raw, rows, lower, upper, metric=problem.Q)
    torch.testing.assert_close(solve_separable(problem, x).value, problem.value(y, x), rtol=0, atol=1e-6)


def test_cones_have_the_second_derivative_that_casadi_derives(monkeypatch):
    pytest.importorskip("casadi")
    problem = small("cones", box=5.0, curve="identity")
    x = problem.inputs(problem.test)
    written = solve_separable(problem, x)
    monkeypatch.setattr("hardnet_lab.experiments.suites.references._second_order", lambda *given: {})
    torch.testing.assert_close(written.value, solve_separable(problem, x).value, rtol=0, atol=1e-7)


TINY = replace(
    LOOSE, hidden=Hidden((16,), activation="silu", skip=True), epochs=20, settings=LOOSE.settings | {"batch_size": 10}
)


def test_affine_rows_are_trained_without_their_box_and_end_with_it(tmp_path):
    problem = small("affine", box=0.5)
    recipe = replace(BOXED, hidden=TINY.hidden, epochs=5, settings=BOXED.settings | {"batch_size": 10})
    model = build_model(problem, specs.all_methods()["projection"], streams_of([1]), recipe)
    assert [type(part).__name__ for part in partly_enforced(model, "rows").constraint.parts] == ["Affine", "Equality"]
    given = [1], 5, tmp_path, False, torch.device("cpu"), recipe
    row = Row("small", problem, specs.all_methods()["projection"], *given)
    assert max(read_result(row.run(Silence(), World(), lambda: False)).metrics["worst_violation"]) < 1e-12


@pytest.mark.parametrize("kind", ["sine", "squares"])
def test_a_loose_training_ends_with_every_row_enforced(tmp_path, kind):
    problem = small(kind, box=2.0)
    row = Row(
        "small", problem, specs.all_methods()["nonlinear"], [1, 2], 20, tmp_path, False, torch.device("cpu"), TINY
    )
    found = read_result(row.run(Silence(), World(), lambda: False))
    assert max(found.metrics["worst_violation"]) < 1e-9
    first, last = found.history["loss"][0], found.history["loss"][-1]
    assert all(before > after for before, after in zip(first, last, strict=True)), "the loss falls"
    assert "all enforced at the end" in found.differs


def test_the_network_is_trained_behind_its_equalities_alone():
    problem = small("squares")
    model = build_model(problem, specs.all_methods()["nonlinear"], streams_of([1]), TINY)
    loose, x = partly_enforced(model, "equalities"), problem.inputs(problem.train).unsqueeze(0)
    assert loose.net is model.net
    assert problem.residuals(loose(x), x)[0].max() < 1e-13
    with pytest.raises(HardNetError, match="needs equalities"):
        partly_enforced(hn.HardNet(torch.nn.Linear(2, 6), hn.Box(-1.0, 1.0)), "equalities")
