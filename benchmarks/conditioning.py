"""The violation left by each way to compute the closed form, over condition numbers and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.routines import ALTERNATIVES
from hardnet.functional import enforce_affine
from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.results import environment, write_json

CONDITIONS = {torch.float64: (1e2, 1e4, 1e6, 1e8, 1e10, 1e12), torch.float32: (1e1, 1e2, 1e3, 1e4, 1e5)}
SHAPES = {"unrolled": (10, 5), "gram": (20, 10), "square": (20, 20)}
"""A size (n, m) for each of our paths."""


def matrices(n: int, m: int, condition: float, samples: int, source: torch.Generator) -> Tensor:
    """A ``(samples, m, n)`` in float64 whose singular values fall geometrically from 1 to 1 / condition."""
    left, _ = torch.linalg.qr(torch.randn(samples, m, m, generator=source, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(samples, n, m, generator=source, dtype=torch.float64))
    values = torch.logspace(0, -torch.tensor(condition).log10().item(), m, dtype=torch.float64)
    return left * values @ right.mT


def conditioning(device: str = "cpu", seed: int = 0, samples: int = 500) -> list[dict[str, Any]]:
    """The largest violation relative to the row's scale ``|a||y| + |bound|``; None if a routine fails."""
    ours = {"hardnet": lambda raw, A, lower, upper: enforce_affine(raw, A, lower, upper, on_invalid="nan")}
    chosen = ours | {name: ALTERNATIVES[name] for name in ("lstsq", "pinv", "cholesky")}
    results = []
    for shape, (n, m) in SHAPES.items():
        for dtype, conditions in CONDITIONS.items():
            for condition in conditions:
                source = torch.Generator().manual_seed(seed)
                A = matrices(n, m, condition, samples, source).to(device=device, dtype=dtype)
                raw = torch.randn(samples, n, generator=source, dtype=torch.float64).to(A)
                upper = torch.randn(samples, m, generator=source, dtype=torch.float64).to(A)
                numbers = (raw, A, upper - 1, upper)
                row = {"path": shape, "dtype": str(dtype).removeprefix("torch."), "condition": condition}
                results.append(row | {name: relative_violation(enforce, *numbers) for name, enforce in chosen.items()})
    return results


def relative_violation(
    enforce: Callable[..., Tensor], raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor
) -> float | None:
    """``max relu(A y - upper, lower - A y) / (|A||y| + |bound|)`` in float64."""
    try:
        y = enforce(raw, A, lower, upper).double()
    except torch.linalg.LinAlgError:
        return None
    A, lower, upper = A.double(), lower.double(), upper.double()
    product, size = ((B @ x.unsqueeze(-1)).squeeze(-1) for B, x in ((A, y), (A.abs(), y.abs())))
    scale = size + torch.maximum(lower.abs(), upper.abs())
    return (torch.maximum(product - upper, lower - product).clamp_min(0) / scale).max().item()


def conditioning_table(rows: list[dict[str, Any]]) -> str:
    """The results as a table."""
    return table_text(list(rows[0]), [list(row.values()) for row in rows])


def main_table(device: str = "cpu", out: Path | None = None, seed: int = 0) -> dict[str, Any]:
    """Run, print the table, write JSON to `out` if given, and return the data."""
    result = {"environment": environment(device, seed), "conditioning": conditioning(device, seed)}
    print(conditioning_table(result["conditioning"]))
    if out is not None:
        write_json(out, result, indent=1)
    return result
