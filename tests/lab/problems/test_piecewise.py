"""The piecewise problems: targets keep their constraints, metrics are what the paper's table says."""

import pytest
import torch

from hardnet_lab.problems import PROBLEMS

NAMES = ("pwc", "pwcfull", "pwcbox")


@pytest.mark.parametrize("name", NAMES)
def test_the_target_keeps_the_constraint_everywhere(name):
    problem = PROBLEMS[name]()
    metrics = problem.evaluate(problem.target, problem.test)
    assert metrics["mse"] == 0
    assert metrics["max_violation"] < 1e-15
    assert metrics["violated"] == 0


@pytest.mark.parametrize("box", [False, True])
def test_values_of_the_pieces(box):
    problem = PROBLEMS["pwcbox" if box else "pwc"]()
    x = torch.tensor([[-1.5], [-0.5], [2 / 3], [1.5]], dtype=torch.float64)
    root = 5 * 0.5**0.5
    expected = [root - 2, -2, 2, 4 / 3 - 2] if box else [root, 0, 4, 0.5]
    torch.testing.assert_close(problem.target(x).squeeze(-1), torch.tensor(expected, dtype=torch.float64))
    rows = problem.constraint.affine(x, torch.zeros_like(x))
    upper = [3 * 0.5**0.5, -2, 3 - 4 / 36, 2] if box else [-2.5, 0, -8 / 3, 0.75]
    torch.testing.assert_close(rows.upper.squeeze(-1), torch.tensor(upper, dtype=torch.float64))
    if box:
        lower = [0.5, -2, 2 / 3, 3 / 1.5**3 - 2]
        torch.testing.assert_close(rows.lower.squeeze(-1), torch.tensor(lower, dtype=torch.float64))
    else:
        assert rows.A.flatten().tolist() == [-1, 1, -1, 1]


def test_metrics_are_over_the_points_of_the_grid():
    problem = PROBLEMS["pwc"]()
    shifted = problem.evaluate(lambda x: problem.target(x) + (x == -1) * 2.0, problem.test)
    assert shifted["mse"].item() == pytest.approx(4 / 401)
    broken = problem.evaluate(lambda x: ((x > -1) & (x <= 0)).double(), problem.test)
    assert broken["violated"] >= 100  # the piece (-1, 0] demands y <= 0


def test_the_loss_adds_the_squared_residual_and_keeps_seeds_apart():
    problem = PROBLEMS["pwcbox"]()
    x = problem.train.expand(3, -1, -1)
    level = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64).view(3, 1, 1)
    policy = lambda x: torch.zeros_like(x) + level
    plain, soft = problem.loss(policy, x), problem.loss(policy, x, 10.0)
    assert plain.shape == (3, 10)
    residual = problem.constraint.violation(policy(x), x).squeeze(-1)
    torch.testing.assert_close(soft, plain + 10 * residual**2)
    alone = problem.loss(lambda x: torch.full_like(x, 5.0), problem.train, 10.0)
    assert torch.equal(soft[2], alone)
    assert problem.evaluate(policy, x)["mse"].shape == (3,)


def test_a_bounded_loss_without_a_loop_is_the_loss():
    problem = PROBLEMS["pwc"]()
    loss, unfinished = problem.bounded_loss(torch.zeros_like, problem.train, 10.0, problem.loop_budget)
    assert torch.equal(loss, problem.loss(torch.zeros_like, problem.train, 10.0))
    assert not unfinished.any()
