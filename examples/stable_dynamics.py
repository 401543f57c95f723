"""Learn pendulum dynamics that decrease a learned Lyapunov function (Kolter & Manek, 2019).

One row per state, ``grad V(x) . f <= -rate V(x)``: method 'aff' is the published projection. At 0 itself, f is 0.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import hardnet as hn


class Lyapunov(nn.Module):
    """``V(x) = relu(g(x) - g(0))^2 + |x|^2 / 100`` with g convex: positive but at 0, without other minima."""

    def __init__(self, dim: int, width: int = 32) -> None:
        super().__init__()
        self.hidden, self.skip, self.weight = nn.Linear(dim, width), nn.Linear(dim, 1), nn.Parameter(torch.zeros(width))

    def convex(self, x: Tensor) -> Tensor:
        """A convex function: positive weights on convex units, and a linear part."""
        return (softplus(self.hidden(x)) * softplus(self.weight)).mean(-1, keepdim=True) + self.skip(x)

    def forward(self, x: Tensor) -> Tensor:
        """V, ``(*batch, 1)``."""
        rise = (self.convex(x) - self.convex(torch.zeros_like(x))).relu()
        return rise.square() + 0.01 * x.square().sum(-1, keepdim=True)

    def gradient(self, x: Tensor) -> Tensor:
        """The row of V's derivative, ``(*batch, 1, dim)``, differentiable once more for training."""
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            return torch.autograd.grad(self(x).sum(), x, create_graph=True)[0].unsqueeze(-2)

    def decrease(self, rate: float = 0.05) -> hn.Affine:
        """The dynamics that decrease V at the rate; functions of x, so V's weights go to the optimizer by hand."""
        return hn.Affine(A=self.gradient, upper=lambda x: -rate * self(x))


def main() -> None:
    """Train on random states, then check fresh ones."""
    torch.manual_seed(0)
    value, net = Lyapunov(2), nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 2))
    model = hn.HardNet(net, value.decrease(), method="aff")
    optimizer = torch.optim.Adam([*model.parameters(), *value.parameters()], lr=5e-3)
    for _ in range(150):
        x = 4 * torch.rand(256, 2) - 2
        pendulum = torch.stack([x[:, 1], -torch.sin(x[:, 0]) - 0.3 * x[:, 1]], dim=-1)
        loss = (model(x) - pendulum).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fresh = 6 * torch.rand(10_000, 2) - 3
    print(f"loss {loss.item():.4f}; {hn.check(model.constraint, model(fresh), fresh)}")


if __name__ == "__main__":
    main()
