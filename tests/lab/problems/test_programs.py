"""The programs: objective, feasibility of the start, penalty."""

import torch

from hardnet_lab.problems import Programs


def small(**options):
    return Programs(variables=6, inequalities=2, equalities=3, samples=40, **options)


def test_the_pseudo_inverse_is_feasible_for_every_right_hand_side():
    problem = Programs()
    start = problem.test @ torch.linalg.pinv(problem.equalities.A).T
    metrics = problem.evaluate(lambda _: start, problem.test)
    assert metrics["ineq_max_violation"] == 0
    assert metrics["eq_max_violation"] < 1e-13


def test_the_objective_by_hand():
    problem = small()
    y = torch.linspace(-1, 1, 6, dtype=torch.float64)
    by_hand = 0.5 * y @ torch.diag(problem.Q) @ y
    torch.testing.assert_close(problem.value(y), by_hand + problem.p @ y.sin())
    torch.testing.assert_close(small(convex=True).value(y), by_hand + problem.p @ y)


def test_metrics_count_rows_apart():
    problem = small()
    far = torch.full((len(problem.test), 6), 100.0, dtype=torch.float64)
    metrics = problem.evaluate(lambda _: far, problem.test)
    equality = (far @ problem.equalities.A.T - problem.test).abs()
    torch.testing.assert_close(metrics["eq_max_violation"], equality.amax(1).mean())
    torch.testing.assert_close(metrics["eq_mean_violation"], equality.mean())
    assert metrics["eq_violated"] == 3
    assert metrics["max_violation"] >= metrics["ineq_max_violation"]


def test_the_loss_adds_the_squared_residual_of_all_rows():
    problem = small()
    y = torch.ones(len(problem.train), 6, dtype=torch.float64)
    residual = problem.constraint.violation(y, problem.train)
    assert residual.shape[-1] == 5
    expected = problem.value(y) + 10 * residual.square().sum(-1)
    torch.testing.assert_close(problem.loss(lambda _: y, problem.train, 10.0), expected)
    torch.testing.assert_close(problem.loss(lambda _: y, problem.train), problem.value(y))


def test_a_move_copies_the_problem():
    problem = small()
    moved = problem.to("cpu")
    moved.inequalities.A.zero_()
    assert problem.inequalities.A.abs().sum() > 0
    assert moved.constraint.parts[0] is moved.inequalities
