"""ACnet (Beucler et al., 2021): the network predicts some outputs, the equalities determine the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hardnet.errors import ConditionWarning, HardNetError, NonFiniteError, OptionError, ShapeError, sentence
from hardnet.functional.dc3 import Completion, complete, factorize_completion
from hardnet.functional.strict import beyond_rounding
from hardnet.layers.base import Guarantee, not_affine
from hardnet.layers.constant_rows import (
    CompletionLayer,
    choose_columns,
    diagnose_inputs,
    diagnose_missed,
    diagnose_singular,
    known_equalities,
    not_filled,
    only_equalities,
    poison,
    raise_for_invalid,
    sample_indices,
    take_raw,
)
from hardnet.layers.options import LayerOptions, choice, count, flag, indices
from hardnet.sets.base import AffineRows, ConstraintSet

Transform = Callable[[Tensor, Any], Tensor]
"""A change of variables: (outputs, x) to outputs."""


class ACnet(CompletionLayer):
    """``y_direct = raw``, ``y_residual = C_r^-1 (b - C_d raw)`` for ``C(x) y = b(x)``.

    Compute the loss on the full output, so that errors in the residual outputs also train the direct ones. A law that
    is nonlinear in the natural variables but linear after a change of variables (masses instead of concentrations,
    fluxes instead of rates) is written as a set in the linear variables; `from_linear` maps the result back.

    Args:
        constraint: Only equalities: `Equality`, an intersection (`&`) of these, or constant rows with equal bounds.
        residuals: The outputs determined by the equalities, one per row; by default the best-conditioned columns.
            Required where C depends on x.
        dim: n, required where it cannot be read from the set because C is a function of x.
        from_linear: ``(linear, x) -> natural`` outputs, differentiable; by default they are the same.
        to_linear: Its inverse ``(natural, x) -> linear``; a sample where the two disagree is refused.
        changes_variables: Whether there is a change of variables; set automatically from the two functions. Loading a
            saved model that has one requires passing them again.
        on_invalid: ``"raise"`` an error that names bad samples, or return ``"nan"`` for these samples alone.
    """

    from_linear: Transform | None
    to_linear: Transform | None

    name = "acnet"
    accepts = "equalities C(x) y = b(x) with independent rows, linear after a change of variables"
    guarantee = Guarantee.EXACT

    @dataclass(frozen=True)
    class Options(LayerOptions):
        """The arguments above that are plain data; functions are code and are not saved to a file."""

        residuals: tuple[int, ...] | None = indices()
        dim: int | None = count(None, least=1)
        changes_variables: bool = flag(False)
        on_invalid: Literal["raise", "nan"] = choice("raise", "nan")

    options: Options

    def __init__(
        self,
        constraint: ConstraintSet,
        *,
        from_linear: Transform | None = None,
        to_linear: Transform | None = None,
        **options: Any,
    ) -> None:
        given = (from_linear is not None, to_linear is not None)
        super().__init__(constraint, **({"changes_variables": any(given)} | options))
        if given != (self.options.changes_variables,) * 2:
            got = f"{sum(given)} of the two with changes_variables={self.options.changes_variables}"
            raise OptionError(sentence("from_linear, to_linear", "a function and its inverse, or neither", got))
        self.from_linear, self.to_linear = from_linear, to_linear
        residuals, dim = self.options.residuals, self.options.dim
        self.dim: int | None = constraint.dim if dim is None else dim
        direct = None if residuals is None or self.dim is None else _complement(residuals, self.dim)
        self.choose(choose_columns(constraint, self.dim, known_equalities(constraint), direct))
        self.refresh()

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Accept only equalities."""
        if not constraint.polyhedral:
            return not_affine(constraint)
        if not_filled(constraint) or only_equalities(constraint):
            return not_filled(constraint)
        remedy = "write rows whose bounds are equal functions of x as hn.Equality(A, b), or use method='projection'"
        return f"it has rows that are not equalities; {remedy}"

    def refactor(self) -> None:
        """Factorize the residual columns where C is constant; refuse them where they are singular."""
        self._kept: Completion | None = None
        like = self.constraint.origin()
        C = None if like is None else self.constraint.fixed_matrix(like)
        if C is None:
            return
        self._require_square(C)
        kept = factorize_completion(C.double(), self.columns)
        error = diagnose_singular(kept, self.columns)
        if error is not None:
            raise error
        if kept.condition > 1e8:
            warnings.warn(f"residuals: condition number {kept.condition:.1e}", ConditionWarning, stacklevel=3)
        self._kept = kept

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map the direct outputs raw ``(*batch, n - e)`` to all outputs ``(*batch, n)``; computed in float64."""
        raw, bad = take_raw(raw, self)
        rows = self.constraint.affine(x, raw.new_zeros(()).expand(*raw.shape[:-1], self.dim or 0))
        if rows.lower is None:
            raise ShapeError(sentence("constraint", "right-hand sides", None))
        self._require_square(rows.A)
        factor = factorize_completion(rows.A.double(), self.columns) if self._kept is None else self._kept
        linear = complete(raw.double(), rows.lower.double(), factor, self.columns).to(raw.dtype)
        missed = beyond_rounding(linear, *rows, torch.finfo(raw.dtype).eps)
        natural, disagree = self._map_back(linear, x)
        y = poison(natural, bad | missed if disagree is None else bad | missed | disagree)
        if self.options.on_invalid == "raise":
            raise_for_invalid(y, lambda: self._diagnose(raw, rows, factor, missed, disagree))
        return y

    def _map_back(self, linear: Tensor, x: Any) -> tuple[Tensor, Tensor | None]:
        """The natural outputs, and where ``to_linear(from_linear(linear))`` differs from linear by half the digits."""
        if self.from_linear is None or self.to_linear is None:
            return linear, None
        natural = self.from_linear(linear, x)
        gap = (self.to_linear(natural, x) - linear).abs().amax(dim=-1).detach()
        size = linear.abs().amax(dim=-1).detach().clamp_min(1)
        return natural, ~(gap <= torch.finfo(linear.dtype).eps ** 0.5 * size)

    def _require_square(self, C: Tensor) -> None:
        """Require as many residual outputs as rows."""
        if C.shape[-2] != self.completed.numel():
            got = f"{self.completed.tolist()} for {C.shape[-2]} rows"
            raise ShapeError(sentence("residuals", "one output per equality row", got))

    def _diagnose(
        self, raw: Tensor, rows: AffineRows, factor: Completion, missed: Tensor, disagree: Tensor | None
    ) -> HardNetError:
        """Why some sample of y is NaN."""
        found = diagnose_inputs(raw, rows) or diagnose_singular(factor, self.columns)
        found = found or diagnose_missed(missed, "C", "method='projection'")
        samples = None if disagree is None else sample_indices(disagree)
        if found is None and samples is not None:
            text = "from_linear, to_linear: expected inverses of each other, got another point after the round trip"
            return NonFiniteError(f"{text} in samples {samples}", samples)
        return found or NonFiniteError("raw: expected numbers that do not overflow the residual outputs, got inf")


def _complement(residuals: Sequence[int], n: int) -> list[int]:
    """The direct outputs."""
    if len(set(residuals)) < len(residuals) or not all(0 <= column < n for column in residuals):
        raise ShapeError(sentence("residuals", f"distinct outputs in 0..{n - 1}", list(residuals)))
    return [column for column in range(n) if column not in set(residuals)]
