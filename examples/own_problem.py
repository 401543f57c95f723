"""Compare methods on a problem of your own: dispatch two generators at least cost under a limit that moves with x.

Run it, or let the command line train every method on it:
``hardnet reproduce examples/own_problem.py:dispatch --methods all --epochs 100``.
"""

import torch

import hardnet as hn


def demand_is_met(x):
    """Both generators together give the demand, the first number of x."""
    return x[..., :1]


def capacity(x):
    """The second number of x is the sunlight: it bounds the first generator; the other one gives at most 1."""
    return torch.stack([x[..., 1], torch.ones_like(x[..., 1])], -1)


def cost(y, x):
    """Sunlight is cheap, fuel is not, and both cost more at the margin."""
    return 0.3 * y[..., 0] + 0.5 * y[..., 1] + y.square().sum(-1)


def dispatch():
    """400 days: demand in [0.2, 1], sunlight in [0, 1]."""
    random = torch.Generator().manual_seed(3)
    x = torch.rand(400, 2, generator=random) * torch.tensor([0.8, 1.0]) + torch.tensor([0.2, 0.0])
    demand = hn.Equality(torch.ones(1, 2), demand_is_met, name="demand")
    limits = hn.Box(0.0, capacity, name="capacity")
    return hn.problems.OwnProblem("dispatch", x, demand & limits, cost, output_dim=2, batch_size=50)


if __name__ == "__main__":
    table = hn.compare(dispatch(), methods=["soft", "projection"], seeds=2, epochs=40, device="cpu")
    print(table)
