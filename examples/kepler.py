"""A learned orbit that keeps energy and angular momentum: every step is moved to the nearest state that has both.

The network proposes the next state (position, velocity) of a planet; the nonlinear rows are the two conserved numbers
of the state it started from, so that they hold along the whole rollout, however long, trained or not.
"""

import torch

import hardnet as hn


def conserved(y, x=None):
    """Energy and angular momentum of states (..., 4), as (..., 2)."""
    q1, q2, v1, v2 = y.unbind(-1)
    return torch.stack([(v1**2 + v2**2) / 2 - 1 / torch.hypot(q1, q2), q1 * v2 - q2 * v1], dim=-1)


def leapfrog(state, step=0.05):
    """One exact-enough step of the true orbit, to learn from."""
    for _ in range(10):
        q, v = state[..., :2], state[..., 2:]
        half = v - step / 20 * q / torch.linalg.vector_norm(q, dim=-1, keepdim=True) ** 3
        q = q + step / 10 * half
        v = half - step / 20 * q / torch.linalg.vector_norm(q, dim=-1, keepdim=True) ** 3
        state = torch.cat([q, v], dim=-1)
    return state


class Step(torch.nn.Module):
    """x + small change."""

    def __init__(self):
        """One hidden layer."""
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)).double()

    def forward(self, x):
        """The next state."""
        return x + 0.05 * self.net(x)


torch.manual_seed(0)
angle = 6.283 * torch.rand(256, 1, dtype=torch.float64)
start = torch.cat([angle.cos(), angle.sin(), -angle.sin(), angle.cos()], dim=-1) * torch.tensor([1, 1, 1.1, 1.1])
constraint = hn.Nonlinear(conserved, dim=4, lower=conserved, upper=conserved, name="conserved")
model = hn.HardNet(Step(), constraint)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(60):
    loss = (model(start) - leapfrog(start)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
state = start[:8]
with torch.no_grad():
    for _ in range(200):
        state = model(state)
drift = (conserved(state) - conserved(start[:8])).abs().max()
print(f"loss {loss:.1e}; after 200 steps energy and angular momentum have moved by {drift:.1e}")
assert drift < 1e-10
