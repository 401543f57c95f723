"""Rebalance a portfolio within a budget of turnover: long only, sectors capped; the layer chooses what to trade."""

import torch
from torch import nn

import hardnet as hn

ASSETS, SECTORS = 12, 3


def main() -> None:
    """Learn to follow a noisy forecast of returns; every portfolio keeps the budget, and most assets do not move."""
    torch.manual_seed(0)
    sector = torch.nn.functional.one_hot(torch.arange(ASSETS) % SECTORS).T.float()
    allowed = (
        hn.Simplex(ASSETS, name="budget")
        & hn.Affine(sector, upper=0.5, name="sector")
        & hn.L1Ball(lambda x: x[..., :ASSETS], 0.15, name="turnover")
    )
    net = nn.Sequential(nn.Linear(2 * ASSETS, 32), nn.ReLU(), nn.Linear(32, ASSETS), nn.Softmax(-1))
    model = hn.HardNet(net, allowed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(30):
        held = torch.softmax(0.3 * torch.randn(32, ASSETS), -1)
        returns = 0.01 * torch.randn(32, ASSETS)
        weights = model(torch.cat([held, returns + 0.005 * torch.randn_like(returns)], -1))
        loss = -(weights * returns).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x = torch.cat([torch.softmax(0.3 * torch.randn(64, ASSETS), -1), 0.01 * torch.randn(64, ASSETS)], -1)
    weights = model(x)
    assert hn.check(allowed, weights, x).ok
    still = (weights == x[:, :ASSETS]).double().mean().item()
    print(f"every portfolio keeps its budget; {still:.0%} of the assets are not traded at all")


if __name__ == "__main__":
    main()
