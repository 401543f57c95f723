"""KKT-hPINN (Chen, Constante-Flores & Li, 2024): the projection onto ``A x + B y = b`` as two fixed matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hardnet.errors import HardNetError, InfeasibleError, NonFiniteError, RankError, sentence
from hardnet.functional.dc3 import independent_columns
from hardnet.functional.strict import beyond_rounding
from hardnet.layers.base import Guarantee, Layer, not_affine
from hardnet.layers.constant_rows import (
    diagnose_inputs,
    diagnose_missed,
    in_samples,
    not_filled,
    only_equalities,
    poison,
    raise_for_invalid,
    sample_indices,
    take_raw,
)
from hardnet.layers.options import LayerOptions, choice
from hardnet.products import times
from hardnet.sets.base import AffineRows, ConstraintSet

PASSES = 4
"""Each pass multiplies the error by about ``cond(B) eps``; where 4 are not enough, B is refused as ill-conditioned."""


class KKThPINN(Layer):
    """``y = raw - B^+ (B raw - b(x))`` for ``B y = b(x)`` with one constant B; the paper has ``b(x) = b - A x``.

    This is the Euclidean projection onto the equalities. x and y must be in the units that the equalities are written
    in: for normalized outputs ``y = mean + scale * y'`` write ``B diag(scale)`` and ``b - B mean``. Redundant rows that
    agree are dropped; samples where they contradict each other are refused.

    Args:
        constraint: Only equalities, with a constant matrix; the right-hand side may depend on x.
        on_invalid: ``"raise"`` an error that names bad samples, or return ``"nan"`` for these samples alone.
    """

    name = "kkt-hpinn"
    accepts = "equalities B y = b(x) with a constant B"
    guarantee = Guarantee.EXACT

    @dataclass(frozen=True)
    class Options(LayerOptions):
        """`on_invalid`, as above."""

        on_invalid: Literal["raise", "nan"] = choice("raise", "nan")

    options: Options

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__(constraint, **options)
        self.refresh()

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Accept only equalities with a constant matrix."""
        if not constraint.polyhedral:
            return not_affine(constraint)
        if not_filled(constraint):
            return not_filled(constraint)
        if not only_equalities(constraint):
            remedy = "write rows whose bounds are equal functions of x as hn.Equality(A, b), or use method='projection'"
            return f"it has rows that are not equalities; {remedy}"
        like = constraint.origin()
        if like is None or constraint.fixed_matrix(like) is None:
            return "its matrix is learned or depends on x; use method='aff', which is the same map for any A(x)"
        return None

    def refactor(self) -> None:
        """Keep the independent rows, their pseudo-inverse, and how the other rows follow from them."""
        like = self.constraint.origin()
        B = None if like is None else self.constraint.fixed_matrix(like)
        if B is None:
            return
        _require_rows_of_outputs(B)
        self._eps = torch.finfo(B.dtype).eps
        double, size = B.double(), torch.linalg.vector_norm(B.double(), dim=-1, keepdim=True)
        coarse = min(self._eps, 4 * self._eps / max(B.shape))  # `independent_columns` allows max(B.shape) of it
        self._kept = torch.tensor(independent_columns((double / size).mT, coarse), device=B.device)
        self._rows = double[self._kept]
        self._pseudo_inverse = torch.linalg.pinv(double[self._kept] / size[self._kept]) / size[self._kept].mT
        dependence = double @ self._pseudo_inverse  # B = dependence @ independent rows
        dependence[self._kept] = torch.eye(len(self._rows), dtype=double.dtype, device=B.device)
        self._dependence = dependence

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, n)`` to the nearest y with ``B y = b(x)``; repeated passes remove the rounding of B^+."""
        raw, bad = take_raw(raw, self)
        rows = self.constraint.affine(x, raw)
        right = (rows.lower if rows.lower is not None else rows.A.new_zeros(rows.A.shape[-2])).double()
        b, y = right.index_select(-1, self._kept), raw.double()
        for _ in range(PASSES):
            y = y - times(self._pseudo_inverse, times(self._rows, y) - b)
        y = y.to(raw.dtype)
        missed = beyond_rounding(y, rows.A, right, right, max(self._eps, torch.finfo(raw.dtype).eps))
        y = poison(y, bad | missed)
        if self.options.on_invalid == "raise":
            raise_for_invalid(y, lambda: self._diagnose(raw, rows, self._contradiction(right, b), missed))
        return y

    def _contradiction(self, right: Tensor, b: Tensor) -> Tensor:
        """Whether a redundant row contradicts, beyond rounding, the rows that it is a combination of."""
        gap = (times(self._dependence, b) - right).abs()
        size = times(self._dependence.abs(), b.abs()) + right.abs()
        return ~(gap <= 64 * self._eps * size).all(dim=-1)

    def _diagnose(self, raw: Tensor, rows: AffineRows, contradiction: Tensor, missed: Tensor) -> HardNetError:
        """Why some sample of y is NaN."""
        found = diagnose_inputs(raw, rows)
        samples = sample_indices(contradiction)
        if found is None and samples is not None:
            return InfeasibleError(
                f"b: expected redundant rows that agree, got a contradiction{in_samples(samples)}", samples
            )
        found = found or diagnose_missed(missed, "B", "method='projection'")
        return found or NonFiniteError("raw: expected numbers that do not overflow, got inf after the projection")


def _require_rows_of_outputs(B: Tensor) -> None:
    """Every row must involve an output."""
    empty = (B == 0).all(dim=-1).nonzero().flatten().tolist()
    if empty:
        raise RankError(sentence("B", "rows that involve y", f"zero rows {empty}", "drop them: they only restrict x"))
