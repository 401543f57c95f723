"""The unicycle against an independent simulator, and against the published costs."""

import copy
import pickle

import pytest
import torch
from torch import nn

from hardnet.errors import ConvergenceError
from hardnet_lab.experiments.limits import closed_form, nearest_safe
from hardnet_lab.problems import Unicycle, unicycle
from hardnet_lab.problems.barrier import ALPHA, KAPPA, OBSTACLES, nominal_control

DOUBLE = torch.float64


@pytest.fixture(scope="module")
def problem():
    return Unicycle()


def zero(x):
    return torch.zeros_like(x[..., :2])


def drift(x):
    return torch.stack(
        [x[..., 3] * x[..., 2].cos(), x[..., 3] * x[..., 2].sin(), x[..., 4], x[..., 0] * 0, x[..., 0] * 0], -1
    )


def height(x, cx, cy, rx, ry):
    """The barrier by automatic differentiation of the ellipse along the drift."""

    def ellipse(x):
        return ((cx - x[0] - 0.1 * x[2].cos()) / rx) ** 2 + ((cy - x[1] - 0.1 * x[2].sin()) / ry) ** 2 - 1

    return torch.func.grad(ellipse)(x) @ drift(x) + KAPPA * ellipse(x)


def states(count=20, seed=0):
    random = torch.Generator().manual_seed(seed)
    scale = torch.tensor([3.0, 1.0, 2.0, 3.0, 3.0], dtype=DOUBLE)
    return (torch.rand(count, 5, generator=random, dtype=DOUBLE) - 0.5) * 2 * scale


def test_the_closed_rows_are_the_derivatives_of_the_barrier(problem):
    for x in states():
        A, upper = problem.barriers.both(x)
        for row, obstacle in enumerate(OBSTACLES):
            value = height(x, *obstacle)
            gradient = torch.func.grad(height)(x, *obstacle)
            torch.testing.assert_close(A[row], -gradient[3:], rtol=1e-12, atol=1e-12)
            whole = gradient @ drift(x) + gradient[3:] @ nominal_control(x) + ALPHA * value
            torch.testing.assert_close(upper[row], whole, rtol=1e-11, atol=1e-11)
            torch.testing.assert_close(problem.barriers.height(x)[row], value, rtol=1e-12, atol=1e-12)


def test_gradients_of_the_rows_and_of_the_nominal_control(problem):
    x = states(6).requires_grad_()
    assert torch.autograd.gradcheck(problem.barriers.both, (x,))
    assert torch.autograd.gradcheck(nominal_control, (x,))
    assert torch.autograd.gradgradcheck(problem.barriers.both, (x[:2],))
    assert torch.autograd.gradgradcheck(nominal_control, (x[:2],))


def test_rows_pass_through_transforms(problem):
    x = states(4)
    mapped = torch.func.vmap(problem.barriers.both)(x)
    torch.testing.assert_close(mapped, problem.barriers.both(x))
    x.requires_grad_()
    plain = torch.autograd.grad(nominal_control(x).sum(), x)[0]
    mapped_gradient = torch.func.vmap(torch.func.grad(lambda state: nominal_control(state).sum()))(x.detach())
    torch.testing.assert_close(mapped_gradient, plain)


def test_every_initial_state_is_safe(problem):
    everything = torch.cat([problem.train, problem.validation, problem.test])
    assert problem.barriers.height(everything).min() > 0


def step_by_step(problem, policy, x, soft_weight):
    """The published simulator: 50 steps, each cut until every sample of the batch has used it up."""
    cost, penalty, violation = (torch.zeros(len(x), dtype=DOUBLE) for _ in range(3))
    for _ in range(50):
        left = torch.full((len(x),), 0.02, dtype=DOUBLE)
        while (left > 0).any():
            y = policy(x)
            u = nominal_control(x) + y
            with torch.no_grad():
                cut = torch.minimum(left, 0.02 * (100 / u.abs()).amin(-1))
            A, _, upper = problem.constraint.affine(x, y)
            residual = ((A @ y.unsqueeze(-1)).squeeze(-1) - upper).relu()
            cost = cost + cut * (
                100 * x[:, :2].square().sum(1) + 0.1 * x[:, 3:].square().sum(1) + 0.1 * u.square().sum(1)
            )
            penalty = penalty + cut * residual.square().sum(1)
            violation = violation + cut * residual.amax(1)
            x = x + cut.unsqueeze(1) * torch.cat([drift(x)[:, :3], u], 1)
            left = left - cut
    return cost + soft_weight * penalty


def network(seed=1):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(*sizes, dtype=DOUBLE) for sizes in ((6, 200), (200, 200), (200, 2))]
        for layer in layers:
            nn.init.kaiming_normal_(layer.weight)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def test_one_flat_loop_gives_the_losses_and_gradients_of_the_published_simulator(problem):
    net = network()
    policy = lambda x: 20 * net(problem.encode(x))  # large controls, so that sub-steps are cut
    x = problem.train[:12]
    ours, theirs = problem.loss(policy, x, 0.01), step_by_step(problem, policy, x, 0.01)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=0)
    parameters = list(net.parameters())
    pairs = zip(torch.autograd.grad(ours.sum(), parameters), torch.autograd.grad(theirs.sum(), parameters), strict=True)
    for mine, other in pairs:
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-7 * other.abs().max().item())


def test_a_budget_of_substeps_tells_who_has_not_finished(problem):
    policy = lambda x: 150 * torch.sin(40 * x[..., :2])  # some samples are cut, some are not
    x = problem.test[:20]
    free = problem.loss(policy, x)
    tight, unfinished = problem.bounded_loss(policy, x, 0.0, 90)
    enough, none = problem.bounded_loss(policy, x, 0.0, 150)
    assert not none.any()
    assert torch.equal(enough, free)
    assert 0 < unfinished.sum() < 20
    assert torch.equal(tight[~unfinished], free[~unfinished])


def test_samples_do_not_feel_their_batch(problem):
    x = problem.test[:7].expand(2, -1, -1)
    whole = problem.loss(lambda x: torch.tanh(x[..., 3:]) * 300, x, 0.01)
    for index in range(7):
        assert torch.equal(
            whole[1, index], problem.loss(lambda x: torch.tanh(x[..., 3:]) * 300, x[1, index : index + 1], 0.01)[0]
        )


def test_the_training_loss_stops_growing_at_its_cap(problem):
    hot = lambda x: torch.full_like(x[..., :2], 2000.0)
    loss = problem.loss(hot, problem.test[:3])
    assert (loss >= problem.loss_cap).all()
    assert (loss < problem.loss_cap * 1.1).all()
    mixed = problem.loss(lambda x: torch.tensor([[2000.0] * 2, [0.0] * 2], dtype=DOUBLE), problem.test[:2])
    assert torch.equal(mixed[1], problem.loss(zero, problem.test[1:2])[0])


def test_a_sample_that_is_not_a_number_ends_and_harms_no_other(problem):
    x = problem.test[:3].clone()
    x[1] = torch.nan
    loss = problem.loss(zero, x)
    assert loss[1].isnan()
    assert torch.equal(loss[[0, 2]], problem.loss(zero, problem.test[[0, 2]]))


def test_a_rollout_without_end_is_refused(problem, monkeypatch):
    monkeypatch.setattr(unicycle, "MOST_SUBSTEPS", 60)
    with pytest.raises(ConvergenceError, match="sub-steps did not reach one second in samples"):
        problem.rollout(lambda x: torch.full_like(x[..., :2], 1e9), problem.test[:1], problem.cost_and_residual)


@torch.no_grad()
def test_the_published_costs(problem):
    x = problem.test
    nominal = problem.evaluate(zero, x)
    assert nominal["cost"].item() == pytest.approx(656.283, abs=5e-4)
    assert nominal["max_violation"].item() == pytest.approx(77.6, abs=0.05)
    for policy, cost in (
        (lambda x: nearest_safe(problem, x, zero(x)), 968.355),
        (lambda x: nearest_safe(problem, x, nominal_control(x)), 948.324),
        (lambda x: closed_form(problem, x), 981.586),
    ):
        metrics = problem.evaluate(policy, x)
        assert metrics["cost"].item() == pytest.approx(cost, abs=5e-4)
        assert metrics["max_violation"] < 1e-12


@torch.no_grad()
def test_the_untrained_network_of_seed_one_costs_what_was_published(problem):
    net = network(1)

    def policy(x):
        raw = net(problem.encode(x))
        A, upper = problem.barriers.both(x)
        return raw - torch.linalg.solve(A, ((A @ raw.unsqueeze(-1)).squeeze(-1) - upper).relu())

    metrics = problem.evaluate(policy, problem.test)
    assert metrics["cost"].item() == pytest.approx(936.913, abs=5e-4)
    assert metrics["max_violation"] < 1e-12


def test_encoding_and_copies(problem):
    x = problem.test[:2]
    assert problem.encode(x).shape == (2, problem.encoded_dim)
    torch.testing.assert_close(
        problem.encode(x)[:, 2].square() + problem.encode(x)[:, 3].square(), torch.ones(2, dtype=DOUBLE)
    )
    for clone in (
        copy.deepcopy(problem.barriers),
        pickle.loads(pickle.dumps(problem.barriers)),
        problem.to("cpu").barriers,
    ):
        assert torch.equal(clone.both(x)[1], problem.barriers.both(x)[1])
    assert not problem.constraint.constant
    assert problem.constraint.dim == 2
