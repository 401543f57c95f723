"""DC3's programs: the published data, the split, the objective and its rows."""

import torch

from hardnet_lab.problems import Programs
from hardnet_lab.problems.suites import SuitePrograms
from hardnet_lab.problems.suites.programs import PINET_PARTS


def small(**options):
    return SuitePrograms("programs-small", 6, 3, 2, samples=40, **options)


def test_the_data_are_those_of_dc3():
    ours, theirs = SuitePrograms("programs-50"), Programs(dc3_order=True, convex=True)
    assert torch.equal(ours.inputs(ours.test), theirs.test)
    assert torch.equal(ours.inequalities.A, theirs.inequalities.A)
    assert ours.checksum == "dd4e01a1ed0d6a60"
    assert ours.test[:, -1].isnan().all()


def test_pinet_keeps_the_last_1024_for_testing():
    ours, theirs = SuitePrograms("programs-split", parts=PINET_PARTS), SuitePrograms("programs-50")
    assert [len(part) for part in (ours.train, ours.validation, ours.test)] == [7952, 1024, 1024]
    assert torch.equal(ours.inputs(ours.test)[-833:], theirs.inputs(theirs.test))


def test_the_metrics_are_those_of_the_rows_and_of_the_objective():
    problem = small(convex=False)
    x = problem.inputs(problem.test)
    y = torch.linspace(-1, 1, 6, dtype=torch.float64).expand(len(x), 6)
    found = problem.evaluate(lambda _: y, problem.test)
    equal, over = (y @ problem.equalities.A.T - x).abs(), (y @ problem.inequalities.A.T - problem.b).clamp_min(0)
    torch.testing.assert_close(found["eq_max"], equal.amax(1).mean())
    torch.testing.assert_close(found["worst_violation"], torch.maximum(equal.max(), over.max()))
    torch.testing.assert_close(found["objective"], (0.5 * y.square() @ problem.Q + y.sin() @ problem.p).mean())
    assert "gap" not in found, "no optimum is known"


def test_the_penalty_is_the_sum_of_the_squared_violations():
    problem = small()
    x = problem.inputs(problem.train)
    y = torch.ones(len(x), 6, dtype=torch.float64)
    expected = sum(part.square().sum(-1) for part in problem.residuals(y, x))
    torch.testing.assert_close(problem.penalty(y, x), expected)
    torch.testing.assert_close(problem.loss(lambda _: y, problem.train, 10.0), problem.value(y, x) + 10 * expected)
