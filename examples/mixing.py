"""Mix residual streams by doubly stochastic matrices: the exact limit of Sinkhorn's sweeps."""

import torch
from torch import nn

import hardnet as hn

STREAMS, WIDTH = 4, 16


class Mixed(nn.Module):
    """A residual block on several streams, mixed by a matrix that depends on the token."""

    def __init__(self) -> None:
        super().__init__()
        logits = nn.Linear(WIDTH, STREAMS * STREAMS)
        self.mixing = hn.HardNet(logits, hn.DoublyStochastic(STREAMS, name="mixing"), "projection", metric="entropy")
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, streams: torch.Tensor) -> torch.Tensor:
        """``(tokens, streams, width)``: what all streams carry together changes by the block alone."""
        M = self.mixing(streams.mean(-2)).unflatten(-1, (STREAMS, STREAMS))
        return M @ streams + self.block(streams.mean(-2)).unsqueeze(-2) / STREAMS


def main() -> None:
    """Train a few layers on a toy task; the sums of every matrix hold to rounding."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(Mixed() for _ in range(4)))
    optimizer = torch.optim.Adam(layers.parameters(), lr=3e-3)
    first = last = 0.0
    for step in range(60):
        tokens = torch.randn(64, WIDTH)
        out = layers(tokens.unsqueeze(1).expand(-1, STREAMS, -1)).mean(1)
        loss = (out - tokens.flip(-1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first, last = (loss.item(), loss.item()) if step == 0 else (first, loss.item())
    mixing = layers[0].mixing
    M = mixing(10 * torch.randn(1000, WIDTH)).unflatten(-1, (STREAMS, STREAMS))
    worst = max((M.sum(-1) - 1).abs().max().item(), (M.sum(-2) - 1).abs().max().item())
    assert worst < 2e-6
    print(f"loss {first:.2f} -> {last:.2f}; sums of rows and columns are one to {worst:.0e}")


if __name__ == "__main__":
    main()
