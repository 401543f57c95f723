"""Pass an obstacle on the left or on the right: waypoints of a path, each on one of two sides or away from it."""

import torch

import hardnet as hn

# the free plane around a block between -1 and 1, as four half-planes
LEFT, RIGHT = hn.Affine([[1.0, 0.0]], upper=-1.0, name="left"), hn.Affine([[1.0, 0.0]], lower=1.0, name="right")
BEFORE, BEHIND = hn.Affine([[0.0, 1.0]], upper=-1.0, name="before"), hn.Affine([[0.0, 1.0]], lower=1.0, name="behind")
FREE = (LEFT | RIGHT | BEFORE | BEHIND) & hn.Box(-3.0, 3.0, name="room")


def main() -> None:
    """Straight paths through the block become paths around it."""
    torch.manual_seed(0)
    start, end = torch.tensor([-0.4, -3.0]), torch.tensor([0.8, 3.0])
    wished = start + torch.linspace(0, 1, 13).unsqueeze(-1) * (end - start) + 0.05 * torch.randn(13, 2)
    model = hn.HardNet(torch.nn.Identity(), FREE)
    path = model(wished)
    assert hn.check(FREE, path).ok
    names = FREE.piece_labels
    for point, piece in zip(path.tolist(), model.layer.solve(wished).piece.tolist(), strict=True):
        print(f"({point[0]:+.2f}, {point[1]:+.2f})  {names[piece]}")


if __name__ == "__main__":
    main()
