"""Fit a piecewise target under an input-dependent bound, and print the certificate."""

import torch

import hardnet as hn


def target(x: torch.Tensor) -> torch.Tensor:
    """The function to learn: it touches its bound."""
    return torch.sin(3 * x)


def bound(x: torch.Tensor) -> torch.Tensor:
    """An upper bound that the output must never cross."""
    return 0.5 + 0.4 * x.square()


def main() -> None:
    """Train 500 steps and check 10,000 fresh inputs."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = hn.HardNet(net, hn.Affine(A=torch.ones(1, 1), upper=bound))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.linspace(-2, 2, 200).unsqueeze(-1)
    for _ in range(500):
        loss = (model(x) - target(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fresh = 4 * torch.rand(10_000, 1) - 2
    print(f"loss {loss.item():.4f}; {hn.check(model.constraint, model(fresh), fresh)}")


if __name__ == "__main__":
    main()
