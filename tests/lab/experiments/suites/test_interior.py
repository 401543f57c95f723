"""Our interior-point method against Clarabel and IPOPT, and the files of optima."""

import json

import pytest
import torch

from hardnet.errors import ConvergenceError
from hardnet_lab.experiments.optimal import Optimum, optimal_programs
from hardnet_lab.experiments.suites.catalog import Case
from hardnet_lab.experiments.suites.references import solve_convex, solve_interior, write_references
from hardnet_lab.problems.suites import SuitePrograms

CPU = torch.device("cpu")


def programs(convex):
    return SuitePrograms("programs-small", 20, 6, 12, samples=120, convex=convex)


@pytest.mark.parametrize(("convex", "other"), [(True, solve_convex), (False, optimal_programs)])
def test_two_solvers_find_the_same_optimum(convex, other):
    problem = programs(convex)
    x = problem.inputs(problem.test)
    ours, theirs = solve_interior(problem, x), other(problem, x)
    torch.testing.assert_close(ours.value, theirs.value, rtol=0, atol=1e-8)  # both stop at 1e-10 or below
    assert problem.evaluate(lambda _: ours.point, problem.test)["worst_violation"] < 1e-12


def test_a_file_of_optima_says_what_made_it(tmp_path):
    case = Case("programs-small", "small", lambda: programs(convex=True), (), solve_interior)
    lines = []
    (path,) = write_references([case], tmp_path, CPU, lines.append)
    content = json.loads(path.read_text())
    assert len(content["optimum"]) == len(programs(convex=True).test)
    assert content["checksum"] == programs(convex=True).checksum
    assert {"command", "versions", "date"} <= content["environment"].keys()
    assert "mean optimum" in lines[0]


def test_an_instance_without_an_answer_writes_nothing(tmp_path):
    open_one = lambda problem, x: Optimum(torch.full((len(x),), torch.inf), torch.zeros(len(x), 20), 0.0)
    case = Case("programs-small", "small", lambda: programs(convex=True), (), open_one)
    with pytest.raises(ConvergenceError, match="11 of 11 test instances"):
        write_references([case], tmp_path, CPU, lambda line: None)
    assert not list(tmp_path.iterdir())
