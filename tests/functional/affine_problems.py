"""Random problems for the tests of the closed form, one shape per path, and the plain formula for comparison."""

import torch
from torch import Tensor

from hardnet.functional.affine_formulas import by_formula
from hardnet.rows import Batch

SHAPES = {
    "single": (4, 1),
    "tiny": (1, 1),
    "square2": (2, 2),
    "pair": (5, 2),
    "rows": (10, 5),
    "square": (12, 12),
    "gram": (20, 12),
}
"""The (n, m) that selects each path."""


def problem(n, m, samples=16, dtype=torch.float64, seed=0, shared=False):
    """raw, A, lower, upper with about half of the rows violated."""
    source = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=source, dtype=torch.float64)
    A, center = draw(m, n) if shared else draw(samples, m, n), draw(samples, n)
    product = (A @ center.unsqueeze(-1)).squeeze(-1)
    numbers = center + 3 * draw(samples, n), A, product - draw(samples, m).abs(), product + draw(samples, m).abs()
    return [number.to(dtype) for number in numbers]


def multiply(A: Tensor, y: Tensor) -> Tensor:
    """A y per sample."""
    return (A @ y.unsqueeze(-1)).squeeze(-1)


def formula(raw, A, lower, upper):
    """The paper's formula, by torch's pseudo-inverse and autograd."""
    product = multiply(A, raw)
    return raw + multiply(torch.linalg.pinv(A), (lower - product).relu() - (product - upper).relu())


def relative_violation(y, A, lower, upper):
    """The largest violation over the scale |A||y| + |bound|, in float64."""
    y, A, lower, upper = (part.double() for part in (y, A, lower, upper))
    scale = multiply(A.abs(), y.abs()) + torch.maximum(lower.abs(), upper.abs())
    product = multiply(A, y)
    return (torch.maximum(product - upper, lower - product).clamp_min(0) / scale).max().item()


def by_operations(raw, A, lower, upper):
    """The closed form of a flat batch, in differentiable operations alone."""
    return by_formula(Batch(raw, A, lower, upper))
