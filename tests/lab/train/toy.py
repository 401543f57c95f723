"""A small task for the tests of training: regression with an upper bound, one class instead of a problem."""

import torch
from torch import nn

from hardnet_lab.train import Settings, StackedMLP, Training, streams_of


class Clamp(nn.Module):
    """A network whose output is cut at 1 where enforcement is on."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, enforce=True):
        raw = self.net(x)
        return raw.clamp_max(1.0) if enforce else raw


class Toy:
    """``sum |y - sin x|^2`` on scattered points."""

    objective, violation, loop_budget = "error", "excess", 1

    def __init__(self, samples=23):
        generator = torch.Generator().manual_seed(5)
        self.train = torch.randn(samples, 2, generator=generator, dtype=torch.float64)
        self.validation = torch.linspace(-1, 1, 14, dtype=torch.float64).reshape(7, 2)

    def loss(self, policy, x, soft_weight):
        y = policy(x)
        penalty = (y - 1).relu().square().sum(-1)
        return (y - x.sin().sum(-1, keepdim=True)).square().sum(-1) + soft_weight * penalty

    def bounded_loss(self, policy, x, soft_weight, budget):
        loss = self.loss(policy, x, soft_weight)
        return loss, torch.zeros_like(loss, dtype=torch.bool)

    def evaluate(self, policy, x):
        y = policy(x)
        return {
            "error": (y - x.sin().sum(-1, keepdim=True)).square().mean((1, 2)),
            "excess": (y - 1).relu().amax((1, 2)),
        }


def training(seeds=(1, 2, 3), *, deep=True, world=None, **options):
    """A run over the toy task; `deep` adds batch normalization and dropout."""
    streams = streams_of(seeds)
    extras = {"batch_norm": True, "dropout": 0.2} if deep else {}
    net = StackedMLP((2, 16, 16, 1), streams, **extras)
    settings = Settings(**{"epochs": 6, "batch_size": 10, "soft_weight": 10.0, "judge_every": 2} | options)
    return Training(Toy(), Clamp(net), streams, settings, world)


def numbers(run):
    """All numbers that a run has arrived at, by name."""
    curves = {name: torch.tensor(getattr(run.history, name)) for name in ("loss", "objective", "violation")}
    return dict(run.model.state_dict()) | curves
