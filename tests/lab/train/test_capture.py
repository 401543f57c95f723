"""Captured steps: the bookkeeping on the device, played back on a CPU, and the real thing on a GPU."""

import pytest
import torch
import toy

from hardnet.errors import ConvergenceError
from hardnet_lab.train import Settings, StackedMLP, Training, streams_of
from hardnet_lab.train.capture import CapturedSteps, unchanged_buffers, with_compiled_loop


class Countdown(toy.Toy):
    """The toy loss with an inner loop: a sample is done after as many passes as its first number says."""

    loop_budget = 40

    def needed(self, x):
        return (3 + 4 * x[..., 0].abs()).floor()

    def substep(self, policy, now, soft_weight):
        x, loss, left = now
        active = (left > 0).to(x.dtype)
        return x, loss + active * super().loss(policy, x, soft_weight), left - active

    def loss(self, policy, x, soft_weight):
        return self.bounded_loss(policy, x, soft_weight, int(self.needed(x).max()))[0]

    def bounded_loss(self, policy, x, soft_weight, budget):
        now = x, torch.zeros_like(x[..., 0]), self.needed(x)
        for _ in range(budget):
            now = self.substep(policy, now, soft_weight)
        return now[1], now[2] > 0


class Recorded:
    """A graph on a CPU: replaying it runs the step."""

    def __init__(self, step):
        self.replay = step


class PlayedBack(CapturedSteps):
    captures = 0

    def __init__(self, training):
        super().__init__(training)
        self.task = training.task

    def _capture(self, key):
        self.captures += 1
        self._graphs[key] = Recorded(lambda: self._step(key))
        return self._graphs[key]


def run(task, steps=None, *, norm=False, epochs=4, device="cpu"):
    """Train the task; with `steps`, by these instead of the plain ones."""
    streams = streams_of([1, 2])
    net = StackedMLP((2, 16, 16, 1), streams, batch_norm=norm, dropout=0.2)
    settings = Settings(epochs=epochs, batch_size=10, soft_weight=1.0)
    training = Training(task, toy.Clamp(net).to(device), streams, settings)
    if steps is not None:
        training._steps = steps(training)
    training.run()
    return training


def assert_same(ours, theirs):
    for name, value in toy.numbers(theirs).items():
        torch.testing.assert_close(toy.numbers(ours)[name].cpu(), value.cpu(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("norm", [False, True])
def test_played_back_steps_equal_plain_ones_with_a_short_last_batch(norm):
    assert_same(run(toy.Toy(), PlayedBack, norm=norm), run(toy.Toy(), norm=norm))


def test_a_loop_that_was_too_short_changes_nothing_and_is_captured_longer():
    class TooShort(PlayedBack):
        def _needed(self, rows, enforce):
            return 4

    task = Countdown()
    captured = run(task, TooShort)
    assert captured._steps.captures > 1
    assert captured._steps.budget >= task.needed(task.train).max()
    assert_same(captured, run(task))


def test_the_loop_is_fitted_to_what_a_batch_needs():
    captured = run(Countdown(), PlayedBack, epochs=1)
    assert captured._steps.budget < Countdown.loop_budget


def test_a_loop_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr("hardnet_lab.train.capture.LONGEST", 8)

    class Endless(Countdown):
        def bounded_loss(self, policy, x, soft_weight, budget):
            loss, _ = super().bounded_loss(policy, x, soft_weight, budget)
            return loss, torch.ones_like(loss, dtype=torch.bool)

    with pytest.raises(ConvergenceError, match="a sample needs more than"):
        run(Endless(), PlayedBack)


def test_the_compiled_loop_is_the_loop(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: compiled.append(function) or function)
    task = Countdown()
    fused = with_compiled_loop(task)
    x = task.train.expand(1, -1, -1)
    model = toy.Clamp(StackedMLP((2, 8, 1), streams_of([1])))
    assert torch.equal(fused.bounded_loss(model, x, 1.0, 9)[0], task.bounded_loss(model, x, 1.0, 9)[0])
    assert len(compiled) == 1
    assert with_compiled_loop(toy.Toy()) is not None
    assert len(compiled) == 1


def test_warming_up_leaves_no_trace_in_the_statistics():
    net = StackedMLP((2, 4, 1), streams_of([1]), batch_norm=True)
    before = net.norms[0].running_mean.clone()
    with unchanged_buffers(net):
        net(torch.ones(1, 5, 2, dtype=torch.float64))
        assert not torch.equal(net.norms[0].running_mean, before)
    assert torch.equal(net.norms[0].running_mean, before)


@pytest.mark.gpu
@pytest.mark.parametrize("norm", [False, True])
def test_captured_steps_equal_plain_ones_on_a_gpu(norm):
    def moved(task):
        task.train, task.validation = task.train.cuda(), task.validation.cuda()
        return task

    captured = run(moved(toy.Toy()), norm=norm, device="cuda")
    assert type(captured._steps) is CapturedSteps
    plain = run(moved(toy.Toy()), lambda training: training._eager_steps, norm=norm, device="cuda")
    assert_same(captured, plain)
