"""Gradient descent through an enforcement layer, step by step: Appendix C of the paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hardnet.sets import Affine

INPUTS = ((-1.0,), (1.0,))
TARGETS = ((-0.5, 0.5), (0.5, 0.0))
CEILING = 0.9
STEPS = 100
SEED = 12
"""Gives an initialization that violates the constraint on both samples, as in the paper, whose seed is not known."""


class Case(NamedTuple):
    """One of the four descents: how many of the two samples are trained on, and the learning rate."""

    samples: int
    learning_rate: float


CASES = (Case(1, 0.01), Case(1, 0.1), Case(2, 0.01), Case(2, 0.1))


class Path(NamedTuple):
    """Raw and enforced outputs at both inputs, before each step and at the end: ``(steps + 1, 2, 2)`` each."""

    raw: Tensor
    y: Tensor


def constraint() -> Affine:
    """``y_2 <= 0.9`` for every input."""
    return Affine(torch.tensor([[0.0, 1.0]]), upper=torch.tensor([CEILING]))


def network(seed: int = SEED) -> nn.Sequential:
    """1 -> 10 -> 10 -> 2 with ReLU, in float32, initialized from `seed` without touching the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(*sizes, dtype=torch.float32) for sizes in ((1, 10), (10, 10), (10, 2))]
        for layer in layers:
            nn.init.kaiming_normal_(layer.weight)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def descend(enforce: Callable[[Tensor], Tensor], case: Case, *, steps: int = STEPS, seed: int = SEED) -> Path:
    """Plain gradient descent on ``sum |y - target|^2`` over the first samples.

    Args:
        enforce: Maps network outputs ``(2, 2)`` to outputs that satisfy the constraint.
        case: Samples and learning rate.
        steps: Descent steps.
        seed: Seed of the initial weights.
    """
    net = network(seed)
    inputs, targets = torch.tensor(INPUTS), torch.tensor(TARGETS)
    optimizer = torch.optim.SGD(net.parameters(), lr=case.learning_rate)
    raws, ys = [], []
    for step in range(steps + 1):
        raw = net(inputs)
        y = enforce(raw)
        raws.append(raw.detach())
        ys.append(y.detach())
        if step < steps:
            optimizer.zero_grad()
            (y - targets)[: case.samples].square().sum().backward()
            optimizer.step()
    return Path(torch.stack(raws), torch.stack(ys))
