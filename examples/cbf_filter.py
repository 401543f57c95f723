"""Learn a controller that reaches a goal around an obstacle, safe by a control barrier function at every step.

The robot ``x' = u`` stays out of a disc, ``h(x) = |x - center|^2 - radius^2 >= 0``, while ``-grad h . u <= rate h``.
The network adds a residual v to a controller that drives straight to the goal, and the row is written for v.
"""

import torch
from torch import Tensor, nn

import hardnet as hn

GOAL, CENTER, RADIUS, RATE, STEP = torch.tensor([3.0, 0.0]), torch.tensor([1.5, 0.1]), 0.7, 2.0, 0.05


def barrier(x: Tensor) -> Tensor:
    """``h(x)``, ``(*batch, 1)``: positive where the robot is safe."""
    return (x - CENTER).square().sum(-1, keepdim=True) - RADIUS**2


def safe_residuals() -> hn.Affine:
    """``-grad h . v <= grad h . (goal - x) + rate h``."""
    return hn.Affine(
        A=lambda x: -2 * (x - CENTER).unsqueeze(-2),
        upper=lambda x: (2 * (x - CENTER) * (GOAL - x)).sum(-1, keepdim=True) + RATE * barrier(x),
    )


def rollout(residual: nn.Module, x: Tensor, steps: int = 60) -> tuple[Tensor, Tensor]:
    """The mean cost of a drive and the smallest barrier value on the way."""
    cost, closest = torch.zeros(()), barrier(x).min()
    for _ in range(steps):
        v = residual(x)
        x = x + STEP * (GOAL - x + v)
        cost = cost + ((x - GOAL).square().sum(-1) + 0.1 * v.square().sum(-1)).mean() * STEP
        closest = torch.minimum(closest, barrier(x).min())
    return cost, closest


def main() -> None:
    """Train, and compare with the filter that intervenes least: the projection of no residual at all."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    model = hn.HardNet(net, safe_residuals(), method="aff")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        cost, _ = rollout(model, torch.rand(32, 2) - 0.5)
        optimizer.zero_grad()
        cost.backward()
        optimizer.step()
    start = torch.rand(500, 2) - 0.5
    filter_only = hn.layers.HardNetAff(safe_residuals())
    for name, residual in (("filter", lambda x: filter_only(torch.zeros_like(x), x)), ("learned", model)):
        cost, closest = rollout(residual, start)
        print(f"{name}: cost {cost.item():.2f}, smallest barrier value {closest.item():.4f}")


if __name__ == "__main__":
    main()
