"""check(constraint, y, x): what holds, per sample, in honest arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hardnet.functional.inputs import require_float
from hardnet.sets.base import ConstraintSet

ROUNDINGS = 16
"""How many roundings of the output's dtype a row may be off and still count as satisfied."""


@dataclass(frozen=True)
class Certificate:
    """What holds for a batch of outputs, evaluated in float64 whatever the dtype of the outputs.

    Attributes:
        violation: How far each row is violated, ``(*batch, rows)`` float64.
        tolerance: What counts as satisfied for each row, ``(*batch, rows)`` float64.
    """

    violation: Tensor
    tolerance: Tensor

    @property
    def satisfied(self) -> Tensor:
        """Whether every row of a sample holds, ``(*batch)`` bool; a NaN satisfies nothing."""
        return (self.violation <= self.tolerance).all(dim=-1)

    @property
    def max_violation(self) -> float:
        """The largest violation of any row of any sample; 0 for an empty batch, NaN where an output is NaN."""
        return self.violation.max().item() if self.violation.numel() else 0.0

    @property
    def ok(self) -> bool:
        """Whether every sample is satisfied."""
        return bool(self.satisfied.all())

    def __str__(self) -> str:
        """One readable line, with the worst row where something is violated."""
        samples = self.satisfied.numel()
        good = int(self.satisfied.sum())
        text = f"{good} of {samples} samples satisfy every row; largest violation {self.max_violation:.3g}"
        if self.ok:
            return text
        excess = (self.violation - self.tolerance).nan_to_num(nan=torch.inf)
        worst = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
        return f"{text}; worst: row {worst[-1]} of sample {worst[:-1]}"


def check(constraint: ConstraintSet, y: Tensor, x: Any = None, *, tolerance: float | None = None) -> Certificate:
    """Check ``y in C(x)`` row by row, in float64.

    The numbers of C(x) are those that the model itself uses, in its dtype; the residual is then evaluated in
    float64, so that rounding of the check hides nothing.

    Args:
        constraint: The set.
        y: Outputs, ``(*batch, n)``.
        x: The input that the set depends on; None for a constant set.
        tolerance: Absolute tolerance for every row; by default `ROUNDINGS` roundings of y's dtype, relative to the
            size of the terms that the row adds up; outputs count as at least one rounding of 1.
    """
    require_float("y", y)
    with torch.no_grad():
        numbers, exact = to_double(constraint.numbers(x, y)), y.double()
        violation = constraint.residual(numbers, exact)
        if tolerance is not None:
            return Certificate(violation, torch.full_like(violation, tolerance))
        rounding = torch.finfo(y.dtype).eps
        # the rounding added to y is a floor for outputs that should be exactly 0, relative to which nothing is small
        return Certificate(violation, ROUNDINGS * rounding * constraint.scale(numbers, exact.abs() + rounding))


def to_double(numbers: Any) -> Any:
    """The numbers of a set in float64, whatever the shape of their (nested) tuples."""
    if isinstance(numbers, Tensor):
        return numbers.double() if numbers.is_floating_point() else numbers
    if isinstance(numbers, tuple):
        parts = [to_double(number) for number in numbers]
        return type(numbers)(*parts) if hasattr(numbers, "_fields") else tuple(parts)
    return numbers
