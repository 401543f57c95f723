"""HardNet-Aff (Min & Azizan, 2025): affine rows in closed form."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hardnet.errors import ConditionWarning
from hardnet.functional import enforce_affine, factorize
from hardnet.functional.derivatives import along_tangent
from hardnet.layers.base import Guarantee, Layer, not_affine
from hardnet.layers.options import LayerOptions, choice, flag
from hardnet.modes import working
from hardnet.sets.base import ConstraintSet


class HardNetAff(Layer):
    """``y = raw + A⁺ (relu(lower - A raw) - relu(A raw - upper))``.

    Every violated row moves to its bound, every satisfied row keeps its value, and nothing moves in the null space of
    A. Needs linearly independent rows (m <= n). The factor of a constant A is computed once.

    Args:
        constraint: A polyhedral set: `Affine`, `Equality`, `Box`, or `&` of these.
        strict: Whether inequality rows must hold for the returned floating-point numbers in exact arithmetic.
        on_invalid: ``"raise"`` an error that names bad samples, or return ``"nan"`` for these samples alone.
        gradient: ``"exact"``, or ``"tangent"``, which also passes the part that pulls a violated row back inside.
    """

    name = "aff"
    accepts = "affine rows lower(x) <= A(x) y <= upper(x), linearly independent (m <= n)"
    guarantee = Guarantee.EXACT

    @dataclass(frozen=True)
    class Options(LayerOptions):
        """The options above."""

        strict: bool = flag(False)
        on_invalid: Literal["raise", "nan"] = choice("raise", "nan")
        gradient: Literal["exact", "tangent"] = choice("exact", "tangent")

    options: Options
    factor: Tensor | None

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__(constraint, **options)
        self.register_buffer("factor", None, persistent=False)
        self.refresh()

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Only polyhedral sets; a constant A must not have more rows than columns."""
        if not constraint.polyhedral:
            return not_affine(constraint)
        return too_many_rows(constraint)

    def refactor(self) -> None:
        """Factorize A if it is constant; an A that is learned or depends on x is factorized at each call."""
        A = constant_matrix(self.constraint)
        self.factor = None if A is None else factorize(A)
        if A is not None:
            warn_of_condition(A)

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, n)`` to y ``(*batch, n)`` with ``A y = clamp(A raw, lower, upper)``."""
        rows = self.constraint.rows(self.constraint.numbers(x, raw), raw)
        options = self.options
        y = enforce_affine(raw, *rows, factor=self.factor, strict=options.strict, on_invalid=options.on_invalid)
        return y if options.gradient == "exact" else along_tangent(y, raw, *rows, every=True)


def constant_matrix(constraint: ConstraintSet) -> Tensor | None:
    """The A of a polyhedral set ``(m, n)`` if it is constant, in a dtype that can be factorized; else None."""
    like = constraint.origin()
    A = None if like is None else constraint.fixed_matrix(like)
    return None if A is None else A.to(working(A.dtype))


def warn_of_condition(A: Tensor) -> None:
    """Warn if nearly dependent rows of A ``(m, n)`` let y move much farther than raw is outside the set."""
    limit = torch.finfo(A.dtype).eps ** -0.5  # 7e7 in float64
    condition = row_condition(A.detach())
    if condition > limit:
        text = f"A: condition number {condition:.1e} of its unit rows; y may move {condition:.0e} times the violation"
        warnings.warn(f"{text}; drop or merge rows, or use method='projection'", ConditionWarning, stacklevel=3)


def too_many_rows(constraint: ConstraintSet) -> str | None:
    """Why the closed form cannot take these rows: a constant A with m > n."""
    A = constant_matrix(constraint)
    if A is None or A.shape[-2] <= A.shape[-1]:
        return None
    return more_rows_than_outputs(*A.shape[-2:])


def more_rows_than_outputs(m: int, n: int) -> str:
    """Why the closed form refuses m rows on n outputs."""
    return f"it has {m} rows for {n} outputs, and the closed form needs m <= n; use method='projection'"


def row_condition(A: Tensor) -> float:
    """The condition number of A after each row is divided by its norm; infinite for dependent rows."""
    norm = torch.linalg.vector_norm(A.double(), dim=-1, keepdim=True)
    if not bool((norm > 0).all()):
        return torch.inf
    return torch.linalg.cond(A.double() / norm).item()
