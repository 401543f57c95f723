"""Draw the two projections of the paper's Figure 2 for two inputs: parallel (HardNet-Aff) and orthogonal (exact).

Both land in C(x). Where one row is violated, HardNet-Aff keeps the value of the other row, so it moves parallel to
that row's boundary; the Euclidean projection moves straight to the nearest point.
"""

import matplotlib
import torch
from torch import Tensor

import hardnet as hn

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ARROW = {"arrowstyle": "->"}
INPUTS = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
RAW = torch.tensor([[1.5, 0.35], [-0.6, 1.7]], dtype=torch.float64)


def matrix(x: Tensor) -> Tensor:
    """Two rows whose normals turn with x, ``(*batch, 2, 2)``."""
    angle = torch.cat([0.25 + 0.6 * x, 1.25 + 0.5 * x], dim=-1)
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def bound(x: Tensor) -> Tensor:
    """``(*batch, 2)``."""
    return torch.cat([0.9 + 0.2 * x, 1.1 - 0.1 * x], dim=-1)


def main() -> None:
    """Project both outputs both ways, print the distances, and draw."""
    constraint = hn.Affine(matrix, upper=bound)
    parallel, orthogonal = (hn.layers.LAYERS[name](constraint)(RAW, INPUTS) for name in ("aff", "projection"))
    axis = torch.linspace(-1, 2.5, 400, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    figure, panels = plt.subplots(1, 2, figsize=(9, 4.5))
    for i, panel in enumerate(panels):
        inside = (constraint.violation(grid, INPUTS[i].expand(len(grid), 1)) == 0).all(-1).reshape(400, 400)
        panel.contourf(axis, axis, inside.T.double(), levels=[0.5, 1.5], colors=["0.85"])
        panel.contour(axis, axis, inside.T.double(), levels=[0.5], colors=["0.5"])
        panel.plot(*RAW[i], "ko", label=r"raw $f_\theta(x)$")
        for y, style, name in ((parallel, "C0", "parallel: HardNet-Aff"), (orthogonal, "C3", "orthogonal: exact")):
            panel.annotate("", xy=y[i].tolist(), xytext=RAW[i].tolist(), arrowprops={**ARROW, "color": style})
            distance = (y[i] - RAW[i]).norm().item()
            panel.plot(*y[i], "o", color=style, label=f"{name}, moved {distance:.2f}")
            print(f"x = {INPUTS[i].item():.0f}  {name}: {[round(v, 3) for v in y[i].tolist()]}, moved {distance:.3f}")
        panel.set(title=rf"$\mathcal{{C}}(x_{i + 1})$", aspect="equal")
        panel.legend(loc="upper right", fontsize=8)
    figure.tight_layout()
    figure.savefig("parallel_or_orthogonal.png", dpi=150)


if __name__ == "__main__":
    main()
