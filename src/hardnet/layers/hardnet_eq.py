"""HardNet-Aff with the equalities solved first (Min & Azizan, 2025, Appendix B)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from hardnet.errors import RankError, UnsupportedSetError, name_samples
from hardnet.functional import enforce_affine
from hardnet.functional.dc3 import (
    Completion,
    Partition,
    choose_partition,
    complete,
    factorize_completion,
    in_order,
    partition_of,
    reduced_rows,
    singular,
)
from hardnet.functional.derivatives import keep_value
from hardnet.functional.strict import beyond_rounding
from hardnet.layers.base import Guarantee, not_affine
from hardnet.layers.constant_rows import (
    CompletionLayer,
    diagnose_missed,
    not_filled,
    poison,
    raise_for_invalid,
    take_raw,
)
from hardnet.layers.hardnet_aff import too_many_rows
from hardnet.layers.options import LayerOptions, choice, count, indices
from hardnet.modes import may_look
from hardnet.products import times
from hardnet.sets.base import AffineRows, ConstraintSet
from hardnet.structure import join_rows


class Split(NamedTuple):
    """C(x) as equalities ``C y = d`` and the rows of all other members (None if there are none)."""

    C: Tensor
    d: Tensor
    rows: AffineRows | None


def _double(split: Split) -> Split:
    """The same numbers in float64."""
    C, d, rows = split
    if rows is not None:
        rows = AffineRows(*(None if value is None else value.double() for value in rows))  # pyright: ignore[reportArgumentType]
    return Split(C.double(), d.double(), rows)


class HardNetEq(CompletionLayer):
    """``y_P = enforce(raw)``, ``y_O = C_O⁻¹ (d - C_P y_P)``: one block is solved for, the rest is enforced.

    The network predicts the n - e free outputs P. In them the inequalities read
    ``lower - A_O C_O⁻¹ d <= (A_P - A_O C_O⁻¹ C_P) y_P <= upper - A_O C_O⁻¹ d``, which the closed form enforces.
    Distances are measured in the free outputs only, and C_O(x) must be invertible at every x for the same choice of
    columns; if it is not, use `HardNetAff`, which treats equalities as rows and has no such limit.

    Args:
        constraint: `Equality`, or `&` of equalities with other affine rows.
        completed: The e outputs that the equalities determine. Chosen by a pivoted QR if C is constant; required if C
            depends on x, together with `dim` if the set does not know n.
        dim: n, if it cannot be read from the set.
        on_invalid: ``"raise"`` an error that names bad samples, or return ``"nan"`` for these samples alone.
    """

    name = "aff-eq"
    accepts = "equalities C(x) y = d(x) with an invertible block, and affine rows on the remaining outputs"
    guarantee = Guarantee.EXACT

    @dataclass(frozen=True)
    class Options(LayerOptions):
        """`completed`, `dim` and `on_invalid`, as above."""

        completed: tuple[int, ...] | None = indices()
        dim: int | None = count(None, least=1)
        on_invalid: Literal["raise", "nan"] = choice("raise", "nan")

    options: Options

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__(constraint, **options)
        n = constraint.dim if self.options.dim is None else self.options.dim
        self.choose(self._partition(self.options.completed, n))
        self.factor: Completion | None = None
        self.refresh()

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Only affine rows, with at least one `Equality` among them, and no more rows than outputs."""
        if not constraint.polyhedral:
            return not_affine(constraint)
        if not any(part.all_equal for part in constraint.parts):
            remedy = "write rows with equal bounds as hn.Equality(A, b), or use method='projection'"
            return f"it has no hn.Equality to solve for; {remedy}"
        return not_filled(constraint) or too_many_rows(constraint)

    @property
    def dim(self) -> int:
        """N."""
        return self.predicted.numel() + self.completed.numel()

    def refactor(self) -> None:
        """Factorize C in float64 if it is constant; otherwise it is factorized at each call."""
        C = self._fixed_equalities()
        self.factor = None if C is None else factorize_completion(C.double(), self.columns)

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, n - e)`` to y ``(*batch, n)`` in C(x); computed in float64."""
        raw, bad = take_raw(raw, self)
        like = raw.new_zeros(*raw.shape[:-1], self.dim)
        C, d, rows = _double(self._split(x, like))
        factor = factorize_completion(C, self.columns) if self.factor is None else self.factor
        if self.options.on_invalid == "raise":
            self._require_invertible(factor)
        y = complete(raw.double(), d, factor, self.columns)
        if rows is not None:
            A = reduced_rows(rows.A, factor, self.columns)
            y = complete(raw.double() + self._move(y, rows, A), d, factor, self.columns)
            y = keep_value(y, self._settle(y.detach(), rows, A.detach(), factor))
        y = y.to(raw.dtype)
        missed = self._missed(y, C, d, rows)
        y = poison(y, bad | missed)
        if self.options.on_invalid == "raise":
            raise_for_invalid(y, lambda: diagnose_missed(missed, "C", "method='projection'"))
        return y

    def _move(self, y: Tensor, rows: AffineRows, A: Tensor) -> Tensor:
        """How far the free outputs must move along the equalities, ``(*batch, n - e)``, until the other rows hold.

        This is the closed form at 0, with the bounds shifted by the rows' values at y.
        """
        product = times(rows.A, y)
        lower, upper = (None if bound is None else bound - product for bound in (rows.lower, rows.upper))
        nothing = torch.zeros_like(y[..., : self.raw_dim])
        return enforce_affine(nothing, A, lower, upper, on_invalid=self.options.on_invalid)

    def _settle(self, y: Tensor, rows: AffineRows, A: Tensor, factor: Completion) -> Tensor:
        """Y after two moves of the size of rounding, which undo the error that the condition of C_O causes in the rows.

        The solved outputs follow by ``-slope move``: solving the equalities again would bring the same error back.
        """
        for _ in range(2):
            move = self._move(y, rows, A)
            y = y + in_order(move, -times(factor.slope, move), self.columns)
        return y

    def _missed(self, y: Tensor, C: Tensor, d: Tensor, rows: AffineRows | None) -> Tensor:
        """Whether some row of a sample does not hold to rounding."""
        eps = torch.finfo(y.dtype).eps
        missed = beyond_rounding(y, C, d, d, eps)
        return missed if rows is None else missed | beyond_rounding(y, *rows, eps)

    def _split(self, x: Any, like: Tensor) -> Split:
        """The equalities and the other rows of C(x)."""
        pairs = self.constraint.pairs(self.constraint.numbers(x, like))
        rows = [(part.all_equal, part.structure(own, like).stacked()) for part, own in pairs]
        equal = join_rows([own for all_equal, own in rows if all_equal])
        other = [own for all_equal, own in rows if not all_equal]
        return Split(equal.A, cast(Tensor, equal.lower), AffineRows(*join_rows(other)[:3]) if other else None)

    def _fixed_equalities(self) -> Tensor | None:
        """C if every equality's matrix is constant, else None."""
        like = self.constraint.origin()
        parts = [part for part in self.constraint.parts if part.all_equal]
        pieces = [None if like is None else part.fixed_matrix(like) for part in parts]
        fixed = [piece for piece in pieces if piece is not None]
        return torch.cat(fixed) if len(fixed) == len(pieces) else None

    def _partition(self, completed: Sequence[int] | None, n: int | None) -> Partition:
        """The given columns, or the best-conditioned block of a constant C."""
        C = self._fixed_equalities()
        if completed is not None and n is not None:
            free = [column for column in range(n) if column not in set(completed)]
            return partition_of(free, n, torch.device("cpu") if C is None else C.device)
        if C is None:
            raise UnsupportedSetError(
                "method 'aff-eq' cannot choose columns of a C that depends on x: pass hn.layers.HardNetEq(constraint, "
                "completed=[...], dim=n), or use method='aff', which needs no choice"
            )
        return choose_partition(C)

    def _require_invertible(self, factor: Completion) -> None:
        """Raise for samples with a singular chosen block, with its condition number; only where values may be read."""
        if not may_look(factor.condition):
            return
        bad = singular(factor)
        if bad.any():
            samples = [i[0] if len(i) == 1 else tuple(i) for i in bad.nonzero().tolist()]
            worst = factor.condition[bad].max().item()
            raise RankError(
                f"C: expected an invertible block of columns {self.completed.tolist()} for every sample, got condition "
                f"number {worst:.1e} in sample {name_samples(samples)}; complete other columns or use method='aff'",
                samples,
            )
