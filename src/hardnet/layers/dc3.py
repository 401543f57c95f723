"""DC3 (Donti, Rolnick & Kolter, 2021): complete the equalities, then correct the inequalities by descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hardnet.errors import HardNetError, NonFiniteError, ShapeError, UnsupportedSetError, name_samples, sentence
from hardnet.functional.dc3 import (
    Descent,
    Partition,
    Reduced,
    complete_and_correct,
    exact_step,
    largest_step,
    reduce_rows,
)
from hardnet.layers.base import Guarantee, not_affine
from hardnet.layers.constant_rows import (
    CompletionLayer,
    choose_columns,
    constant_rows,
    crossed,
    diagnose_inputs,
    diagnose_singular,
    equalities_at,
    known_equalities,
    not_filled,
    poison,
    raise_for_invalid,
    take_raw,
)
from hardnet.layers.options import LayerOptions, choice, count, flag, indices, number, option
from hardnet.modes import may_look, working
from hardnet.sets.base import AffineRows, ConstraintSet


def is_step(value: Any) -> bool:
    """Whether this is a step size, or ``"auto"``."""
    return value == "auto" or (isinstance(value, (int, float)) and value is not True and 0 < value < torch.inf)


class DC3(CompletionLayer):
    """``y_O = A_O^-1 (b - A_P z)``, then `steps` of ``z <- z - step grad |violation|^2 - momentum (last move)``.

    The network predicts n - e numbers; the e equalities determine the rest exactly, before and after the descent.
    Without equalities, or with ``completion=False``, the descent runs on all n outputs and on all rows. Gradients flow
    through the steps. Inequalities hold only in the limit of many steps: check the certificate.

    Args:
        constraint: A polyhedral set. Equalities are `Equality` rows and constant rows with equal bounds.
        completion: Whether to solve the equalities for some outputs; by default True where equalities are known at
            construction or `predicted` is given.
        predicted: The coordinates that the network predicts; by default the complement of the best-conditioned
            columns. Required where A of the equalities depends on x.
        dim: n, required where it cannot be read from the set because A is a function of x.
        steps: Correction steps in training and in evaluation.
        extra_steps: Further steps in evaluation; each sample stops on its own at `tolerance`.
        step: Step size, or ``"auto"`` for ``1 / (2 sigma_max(G)^2)``; where A depends on x, sigma_max^2 is bounded
            from above by at most a factor of ``min(m, n)^(1/16)``. Far larger steps diverge.
        momentum: Weight of the previous move.
        tolerance: Largest violation at which a sample stops during the extra steps.
        published_sign: Push violated lower bounds the wrong way, as the published piecewise-box baseline of the
            HardNet paper does. Only for reproducing its numbers.
        on_invalid: ``"raise"`` an error that names bad samples, or return ``"nan"`` for these samples alone.
    """

    name = "dc3"
    accepts = "affine rows lower(x) <= A(x) y <= upper(x), any number of them, equalities by completion"
    guarantee = Guarantee.ASYMPTOTIC

    @dataclass(frozen=True)
    class Options(LayerOptions):
        """As above."""

        completion: bool | None = option(None, "True, False or None", lambda value: value in (True, False, None))
        predicted: tuple[int, ...] | None = indices()
        dim: int | None = count(None, least=1)
        steps: int = count(10)
        extra_steps: int = count(0)
        step: float | Literal["auto"] = option("auto", "a positive number or 'auto'", is_step)
        momentum: float = number(0.5)
        tolerance: float = number(1e-4)
        published_sign: bool = flag(False)
        on_invalid: Literal["raise", "nan"] = choice("raise", "nan")

    options: Options

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__(constraint, **options)
        chosen = self.options
        self.dim: int | None = constraint.dim if chosen.dim is None else chosen.dim
        equalities, predicted = known_equalities(constraint), chosen.predicted
        by_default = predicted is not None or bool(equalities)
        self.completion: bool = by_default if chosen.completion is None else chosen.completion
        self.choose(choose_columns(constraint, self.dim, equalities, predicted) if self.completion else _NO_PARTITION)
        self.refresh()

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Accept only polyhedral sets."""
        if constraint.polyhedral:
            return not_filled(constraint)
        return not_affine(constraint)

    @property
    def raw_dim(self) -> int | None:
        """The number of outputs n minus the number of completed equalities."""
        return self.predicted.numel() if self.completion else self.dim

    @property
    def descent(self) -> Descent:
        """The descent given by the options, with the extra steps in evaluation; step 0 means an automatic step."""
        own = self.options
        step, extra_steps = 0.0 if own.step == "auto" else own.step, 0 if self.training else own.extra_steps
        return Descent(step, own.momentum, own.steps, extra_steps, own.tolerance, own.published_sign)

    @property
    def partition(self) -> Partition | None:
        """Which coordinates are predicted and completed; None without completion."""
        return self.columns if self.completion else None

    def refactor(self) -> None:
        """Reduce the rows where A is constant; otherwise they are reduced at each call."""
        self._index: tuple[Tensor, Tensor] | None = None
        self._sides = (True, True)  # whether inequality rows may have lower and upper bounds
        self._kept: Reduced | None = None
        like = self.constraint.origin()
        A = None if like is None else self.constraint.fixed_matrix(like)
        if A is None:
            return
        if self.completion:
            self._index = self._split_index(known_equalities(self.constraint) or [], A)
            self._sides = self._known_sides(self._index[1])
        kept = self._reduce(A.double())
        self._kept = _cast(kept._replace(step=exact_step(kept.G)), working(A.dtype))

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, raw_dim)`` to y ``(*batch, n)``."""
        raw, bad = take_raw(raw, self)
        like = raw.new_zeros(()).expand(*raw.shape[:-1], self.dim or 0) if self.completion else raw
        rows = self.constraint.affine(x, like)
        if self.completion and self._index is None:
            self._index = self._split_index(equalities_at(self.constraint, x, like), rows.A)
        self._refuse_equal_bounds(rows)
        reduced = self._reduce(rows.A) if self._kept is None else _cast(self._kept, raw.dtype)
        wrong = crossed(rows)
        y = poison(self._run(raw, rows, reduced), bad if wrong is None else bad | wrong)
        if self.options.on_invalid == "raise":
            raise_for_invalid(y, lambda: self._diagnose(raw, rows, reduced))
        return y

    def _refuse_equal_bounds(self, rows: AffineRows) -> None:
        """Refuse rows that are equalities at all samples, but are not completed: descent only comes near them."""
        lower, upper = rows.lower, rows.upper
        if (
            self.options.completion is False
            or lower is None
            or upper is None
            or not (lower.numel() and may_look(lower))
        ):
            return
        equal = (lower == upper).reshape(-1, lower.shape[-1]).all(0)
        if self._index is not None:
            equal[self._index[0]] = False
        if bool(equal.any()):
            got = f"equal bounds in row(s) {name_samples(equal.nonzero().flatten().tolist())}"
            remedy = "write them as hn.Equality(A, b), with predicted= and dim= where A is a function of x"
            raise UnsupportedSetError(
                sentence("lower, upper", "bounds apart, which descent can bring y between", got, remedy)
            )

    def _run(self, raw: Tensor, rows: AffineRows, reduced: Reduced) -> Tensor:
        """Descend with the options, and with the extra steps in evaluation."""
        descent = self.descent
        if self.options.step == "auto":
            descent = descent._replace(step=largest_step(reduced.G) if reduced.step is None else reduced.step)
        if self._index is None:
            return complete_and_correct(raw, None, rows.lower, rows.upper, reduced, None, descent)
        equal, unequal = self._index
        has_lower, has_upper = self._sides
        b, lower = _select(rows.lower, equal), _select(rows.lower if has_lower else None, unequal)
        upper = _select(rows.upper if has_upper else None, unequal)
        return complete_and_correct(raw, b, lower, upper, reduced, self.partition, descent)

    def _reduce(self, A: Tensor) -> Reduced:
        """Split the rows of A and eliminate the completed coordinates; without completion, keep all rows."""
        if self._index is None:
            return reduce_rows(None, A, None)
        equal, unequal = self._index
        return reduce_rows(A.index_select(-2, equal), A.index_select(-2, unequal), self.partition)

    def _split_index(self, equal: list[int], A: Tensor) -> tuple[Tensor, Tensor]:
        """The indices of the equality rows, which are completed, and of the rows that the descent corrects."""
        if len(equal) != self.completed.numel():
            expected = f"{len(equal)} completed outputs, one per equality row"
            got = f"{self.completed.numel()} ({self.raw_dim} of {self.dim} are predicted)"
            raise ShapeError(sentence("predicted", expected, got))
        unequal = [row for row in range(A.shape[-2]) if row not in set(equal)]
        first, second = (torch.tensor(rows, dtype=torch.long, device=A.device) for rows in (equal, unequal))
        return first, second

    def _known_sides(self, unequal: Tensor) -> tuple[bool, bool]:
        """Whether any inequality row has a lower bound, and any an upper one: stacking turns absent ones infinite."""
        known, index = constant_rows(self.constraint), unequal.cpu()
        if known is None:
            return True, True
        return bool((known.lower[index] != -torch.inf).any()), bool((known.upper[index] != torch.inf).any())

    def _diagnose(self, raw: Tensor, rows: AffineRows, reduced: Reduced) -> HardNetError:
        """Why some sample of y is NaN."""
        found = diagnose_inputs(raw, rows)
        if found is None and reduced.completion is not None:
            found = diagnose_singular(reduced.completion, self.columns)
        return found or NonFiniteError("the correction diverged: lower the step, or use step='auto'")


_NO_PARTITION = Partition(torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long))


def _select(bound: Tensor | None, rows: Tensor) -> Tensor | None:
    """The bounds of some rows."""
    return None if bound is None else bound.index_select(-1, rows)


def _cast(reduced: Reduced, dtype: torch.dtype) -> Reduced:
    """The reduction, computed in float64, converted to a dtype."""
    completion = reduced.completion
    if completion is not None:
        completion = type(completion)(*(tensor.to(dtype) for tensor in completion))
    rest = {name: value.to(dtype) for name, value in reduced._asdict().items() if isinstance(value, Tensor)}
    return reduced._replace(completion=completion, **rest)
