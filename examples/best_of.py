"""Nonconvex programs at test time: enforce several draws around the network's output, and keep the best.

min 1/2 y'Qy + p'sin y  s.t.  A y <= b, C y = x: five variables, five inequalities, three equalities.
"""

import torch

import hardnet as hn

torch.manual_seed(0)
Q, p, A, C = torch.rand(5), torch.rand(5), torch.randn(5, 5), torch.randn(3, 5)
programs = hn.Equality(C, lambda x: x, name="balance") & hn.Affine(A, upper=(A @ torch.linalg.pinv(C)).abs().sum(-1))


def objective(y, x):
    """The value of each sample."""
    return (0.5 * Q * y.square() + p * y.sin()).sum(-1)


net = torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.SiLU(), torch.nn.Linear(64, 5))
model = hn.HardNet(net, programs)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(150):
    x = 2 * torch.rand(128, 3) - 1
    y, raw = model(x, return_raw=True)
    optimizer.zero_grad()
    (objective(y, x).mean() + 0.1 * hn.losses.displacement(raw, y)).backward()
    optimizer.step()

x = 2 * torch.rand(500, 3) - 1
values = {}
for k in (1, 10, 100):
    y = hn.best_of(model, x, objective, k)
    assert hn.check(programs, y, x).ok
    values[k] = objective(y, x).mean().item()
    print(f"best of {k:3}: mean objective {values[k]:.5f}")
assert values[100] < values[10] < values[1]
