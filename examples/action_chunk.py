"""Chunks of actions for a robot: bounds, rates and accelerations of all joints hold at once, from where it stands."""

import torch
from torch import nn

import hardnet as hn

STEPS, JOINTS = 16, 3


def wished(start: torch.Tensor) -> torch.Tensor:
    """An expert that jumps: towards zero at once, with a little noise."""
    plan = start.unsqueeze(1) * torch.linspace(0.5, 0, STEPS)[:, None]
    return (plan + 0.1 * torch.randn(len(start), STEPS, JOINTS)).flatten(1)


def main() -> None:
    """Imitate the expert within the limits; the position comes with the input."""
    torch.manual_seed(0)
    chunk = hn.Horizon(STEPS, -1.0, 1.0, 0.15, 0.05, previous=lambda x: x, channels=JOINTS, name="chunk")
    policy = nn.Sequential(nn.Linear(JOINTS, 64), nn.Tanh(), nn.Linear(64, STEPS * JOINTS))
    model = hn.HardNet(policy, chunk)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        start = 1.6 * torch.rand(64, JOINTS) - 0.8
        loss = (model(start) - wished(start)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    start = 1.6 * torch.rand(256, JOINTS) - 0.8
    plan, raw = model(start, return_raw=True)
    assert hn.check(chunk, plan, start).ok
    broken = 1 - hn.check(chunk, raw, start).satisfied.double().mean().item()
    print(f"{broken:.0%} of the raw chunks break a limit, none behind the layer")


if __name__ == "__main__":
    main()
