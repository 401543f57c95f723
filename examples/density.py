"""Density over depth: water below is never lighter than water above, whatever the network was trained on."""

import torch
from torch import nn

import hardnet as hn

DEPTHS = 20


def measure(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Surface conditions, and noisy densities that rise with depth."""
    x = torch.rand(count, 2)
    depth = torch.linspace(0, 1, DEPTHS)
    density = 20 + 4 * x[:, :1] + 3 * torch.sigmoid(12 * (depth - x[:, 1:]))
    return x, density + 0.3 * torch.randn_like(density)


def main() -> None:
    """Train with the order in the layer; the surface gives a lower bound that depends on the input."""
    torch.manual_seed(0)
    surface = lambda x: (19.5 + 4 * x[..., :1]).expand(*x.shape[:-1], DEPTHS)
    stable = hn.Monotone(DEPTHS, lower=surface, upper=30.0, name="density")
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, DEPTHS))
    nn.init.constant_(net[2].bias, 23.0)  # start inside: where every output is at a bound, no gradient arrives
    model = hn.HardNet(net, stable)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    for _ in range(100):
        x, density = measure(64)
        loss = (model(x) - density).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, density = measure(256)
    y, raw = model(x, return_raw=True)
    assert hn.check(stable, y, x).ok
    assert bool((y.diff(dim=-1) >= 0).all())
    turned = (raw.diff(dim=-1) < 0).any(-1).double().mean().item()
    print(f"mean squared error {(y - density).square().mean().item():.2f}; {turned:.0%} of the raw profiles turn over")


if __name__ == "__main__":
    main()
