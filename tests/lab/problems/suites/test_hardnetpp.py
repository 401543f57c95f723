"""The unicycle of HardNet++: derivatives, data, its optimum, and the layer's promise on both spellings."""

import pytest
import torch

import hardnet as hn
from hardnet_lab.problems.suites import hardnetpp as task
from hardnet_lab.problems.suites.base import reference

MEAN_OPTIMUM = 322.870
"""Of the 100 published test poses, by IPOPT on other code."""


@pytest.fixture(scope="module", params=[task.UnicyclePlan, task.UnicycleControls], ids=["plan", "controls"])
def problem(request):
    return request.param()


def random_plans(count, size):
    random = torch.Generator().manual_seed(0)
    return torch.randn(count, size, generator=random, dtype=torch.float64), task.fresh_states(3, count)


@pytest.mark.parametrize(
    ("rows", "slopes", "size"),
    [(task.plan_rows, task.plan_jacobian, 50), (task.control_rows, task.control_jacobian, 20)],
    ids=["plan", "controls"],
)
def test_jacobians_are_those_of_autograd(rows, slopes, size):
    y, x = random_plans(3, size)
    numeric = torch.autograd.functional.jacobian(lambda z: rows(z, x).sum(0), y).movedim(0, 1)
    torch.testing.assert_close(slopes(y, x), numeric, rtol=1e-12, atol=1e-12)


def test_a_roll_out_keeps_the_dynamics():
    u, x = random_plans(4, 20)
    assert torch.equal(task.dynamics(task.roll_out(u, x), x), torch.zeros(4, 30, dtype=torch.float64))


def test_the_cost_by_hand():
    y = torch.zeros(50, dtype=torch.float64)
    y[:30] = torch.tensor([3.5, 0.0, 2 * torch.pi] * 10)
    y[30] = 2.0
    assert task.cost(y).item() == pytest.approx(0.4, abs=1e-12)  # at the goal, turned once, one control of 2
    y[27] += 1.0
    assert task.cost(y).item() == pytest.approx(11.4, abs=1e-12)  # one step of stage cost and the terminal one


def test_the_recorded_optima_have_the_known_mean(problem):
    optimum = problem.test[:, 3]
    assert optimum.mean().item() == pytest.approx(MEAN_OPTIMUM, abs=1e-3)
    assert reference(problem.name)["worst_violation"] < 1e-9


def test_poses_are_off_the_obstacle_and_parts_are_disjoint(problem):
    train, validation = problem.inputs(problem.train), problem.inputs(problem.validation)
    for part in (train, validation, problem.inputs(problem.test)):
        assert ((part[:, :2].square() * part.new_tensor(task.OBSTACLE)).sum(-1) > 1).all()
    assert not (train.unsqueeze(1) == validation[:5]).all(-1).any()


def test_the_network_mirrors(problem):
    torch.manual_seed(0)
    net = task.MirroredNetwork(3, problem.output_dim).double()
    x = task.fresh_states(3, 5)
    mirror = torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64)
    states = mirror.repeat(10) if problem.output_dim == 50 else mirror[:0]
    signs = torch.cat([states, torch.tensor([1.0, -1.0] * 10, dtype=torch.float64)])
    torch.testing.assert_close(net(x * mirror), net(x) * signs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["retract", "nearest"])
def test_the_layer_holds_every_row(problem, mode):
    torch.manual_seed(0)
    net = task.MirroredNetwork(3, problem.output_dim).double()
    x = problem.inputs(problem.test[:12])
    raw = net(x) + 0.3 * torch.randn(12, problem.output_dim, dtype=torch.float64)
    y = hn.layers.NonlinearLayer(problem.constraint, mode=mode)(raw, x)
    assert max(part.max().item() for part in problem.residuals(y, x)) <= 1e-8


def test_suboptimality_counts_only_what_is_above(problem):
    x = problem.test[:2].clone()
    given = problem.inputs(x)
    plan = task.roll_out(torch.tensor([1.0, 0.0] * 10, dtype=torch.float64).expand(2, -1), given)
    y = plan if problem.output_dim == 50 else plan[:, 30:]
    value = problem.value(y, given)
    x[:, 3] = torch.stack([value[0] / 1.5, value[1] * 2])
    found = problem.evaluate(lambda _: y, x)
    assert found["suboptimality"].item() == pytest.approx(0.25)
    assert found["suboptimality_max"].item() == pytest.approx(0.5)
