"""Learn controlled dynamics together with a controller that is certain to stabilize them (CoILS, Min et al., 2023).

The correction that makes the closed loop ``f(x, pi(x))`` decrease V is subtracted for every control u.
"""

import torch
from torch import Tensor, nn

import hardnet as hn
from stable_dynamics import Lyapunov


class ClosedLoop(nn.Module):
    """``f_hat(x, pi(x))``, with the dynamics and the controller as networks."""

    def __init__(self) -> None:
        super().__init__()
        self.dynamics = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 2))
        self.controller = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))

    def predict(self, x: Tensor, u: Tensor) -> Tensor:
        """The uncorrected dynamics."""
        return self.dynamics(torch.cat([x, u], dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        """The uncorrected dynamics under the controller."""
        return self.predict(x, self.controller(x))


def dynamics(model: hn.HardNet, loop: ClosedLoop, x: Tensor, u: Tensor) -> Tensor:
    """``f(x, u)``: at ``u = pi(x)`` it is the enforced closed loop, whatever the weights."""
    return loop.predict(x, u) + model(x) - model(x, enforce=False)


def main() -> None:
    """Fit an inverted pendulum with a motor, then check the closed loop on fresh states."""
    torch.manual_seed(0)
    value, loop = Lyapunov(2), ClosedLoop()
    model = hn.HardNet(loop, value.decrease(), method="aff")
    optimizer = torch.optim.Adam([*model.parameters(), *value.parameters()], lr=5e-3)
    for _ in range(300):
        x, u = 4 * torch.rand(256, 2) - 2, 6 * torch.rand(256, 1) - 3
        truth = torch.stack([x[:, 1], torch.sin(x[:, 0]) - 0.1 * x[:, 1] + u[:, 0]], dim=-1)
        loss = (dynamics(model, loop, x, u) - truth).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fresh = 6 * torch.rand(10_000, 2) - 3
    closed = dynamics(model, loop, fresh, loop.controller(fresh))
    certificate = hn.check(model.constraint, closed, fresh, tolerance=1e-5)
    print(f"loss {loss.item():.4f}; closed loop: {certificate}")


if __name__ == "__main__":
    main()
