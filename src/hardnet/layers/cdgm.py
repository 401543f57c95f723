"""C-DGM: linear inequalities by Fourier-Motzkin elimination (Stoian et al., 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import HardNetError, InfeasibleError, ShapeError, name_samples, sentence
from hardnet.layers.base import Guarantee
from hardnet.layers.constant_rows import (
    ConstantRows,
    TableLayer,
    diagnose_inputs,
    poison,
    raise_for_invalid,
    refuse_other_sets,
    sample_indices,
)
from hardnet.layers.options import LayerOptions, choice, count, indices
from hardnet.sets.base import AffineRows, ConstraintSet
from hardnet.shapes import joint_batch
from hardnet.solvers.offline import Stage, eliminate, require_consistent, right_hand_sides, unmet_conditions

# Clamp one variable after another, each between bounds that depend on the ones before it; differentiable.
#
# ``y_i = min(max(raw_i, lower_i(y_1..y_{i-1})), upper_i(y_1..y_{i-1}))``, with the bounds that
# `hardnet.solvers.offline` derived once.


class Step(NamedTuple):
    """The rows of ``body y <= right`` that bound one variable.

    Attributes:
        variable: Its index.
        upper: Rows with coefficient +1 on it.
        lower: Rows with coefficient -1 on it.
        fixed: At most one row, an equality with coefficient +1 on it.
    """

    variable: int
    upper: slice
    lower: slice
    fixed: slice


def clamp_in_order(raw: Tensor, body: Tensor, right: Tensor, steps: Sequence[Step]) -> Tensor:
    """``y_i = min(max(raw_i, lower bounds), upper bounds)``, each bound an affine function of the y before i.

    Args:
        raw: ``(*batch, n)``.
        body: ``(r, n)``, its columns in the order of the steps.
        right: ``(*batch, r)``.
        steps: One per variable.
    """
    raw = raw.expand(*joint_batch(raw.shape[:-1], right.shape[:-1]), raw.shape[-1])
    done: list[Tensor] = []
    for step in steps:
        before = torch.stack(done, dim=-1) if done else raw[..., :0]
        upper, lower, fixed = (_bounds(rows, before, body, right) for rows in step[1:])
        value = fixed[..., 0] if fixed.shape[-1] else raw[..., step.variable]
        value = torch.maximum(value, (-lower).amax(dim=-1)) if lower.shape[-1] else value
        done.append(torch.minimum(value, upper.amin(dim=-1)) if upper.shape[-1] else value)
    value_of = {step.variable: value for step, value in zip(steps, done, strict=True)}
    return torch.stack([value_of[variable] for variable in range(len(steps))], dim=-1)


def _bounds(rows: slice, before: Tensor, body: Tensor, right: Tensor) -> Tensor:
    """``right - body y`` over the variables that are already fixed: ``(*batch, rows)``."""
    return right[..., rows] - before @ body[rows, : before.shape[-1]].mT


ELIMINATION_ROUNDINGS = 64
"""By how many roundings a derived condition may be off before a sample counts as infeasible."""


class CDGM(TableLayer):
    """``y_i = min(max(raw_i, lower_i(y_1..y_{i-1})), upper_i(y_1..y_{i-1}))``, one variable after another.

    The bounds of each variable come from eliminating the later ones once, so that they can always be met. The matrix
    must be constant; the bounds may depend on x or be learned, since every derived constant is a fixed combination of
    the given ones. A feasible raw output is unchanged; an infeasible one moves to a feasible point that depends on the
    order, not to the nearest one.

    Args:
        constraint: A polyhedral set with a constant A; any number of rows.
        order: A permutation of the outputs; the first is moved least. By default 0 to n - 1.
        limit: Largest number of rows that the elimination may produce.
        on_invalid: ``"raise"`` an error that names bad samples, or return ``"nan"`` for these samples alone.
    """

    name = "cdgm"
    accepts = "affine rows lower(x) <= A y <= upper(x) with a constant A, any number of rows"
    guarantee = Guarantee.EXACT
    keeps_double = True  # derived rows are sums of given rows, so their rounding errors add up

    @dataclass(frozen=True)
    class Options(LayerOptions):
        """`order`, `limit` and `on_invalid`, as above."""

        order: tuple[int, ...] | None = indices()
        limit: int = count(10_000, least=1)
        on_invalid: Literal["raise", "nan"] = choice("raise", "nan")

    options: Options
    body: Tensor
    mix: Tensor
    above: Tensor
    below: Tensor
    equal: Tensor
    condition_mix: Tensor
    condition_equality: Tensor
    steps: list[Step]

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__(constraint, **options)
        n = constraint.dim or 0
        self.order: list[int] = list(range(n)) if self.options.order is None else list(self.options.order)
        if sorted(self.order) != list(range(n)):
            raise ShapeError(sentence("order", f"a permutation of 0 to {n - 1}", self.order))
        self.refresh()

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Accept only polyhedral sets with a constant A."""
        return refuse_other_sets(constraint)

    def prepare_tables(self, rows: ConstantRows) -> dict[str, Tensor]:
        """Eliminate once; stack the rows of all stages and keep which rows belong to each stage."""
        sides = {
            "above": ~rows.equality & (rows.upper != torch.inf),
            "below": ~rows.equality & (rows.lower != -torch.inf),
        }
        index = {name: side.nonzero().flatten() for name, side in (sides | {"equal": rows.equality}).items()}
        above, below, equal = index.values()
        constants = _constants(AffineRows(*rows[:3]), above, below, equal)
        body = torch.cat([rows.A[above], -rows.A[below], rows.A[equal]])
        equality = torch.arange(len(body)) >= len(body) - len(equal)
        stages, conditions = eliminate(body, constants, equality, self.order, limit=self.options.limit)
        require_consistent(conditions, constants, torch.cat([above, below, equal]).tolist(), self._tolerance())
        depends = conditions.take((conditions.mix[:, constants.isnan()] != 0).any(dim=1))
        self.steps, body, mix = _stack(stages)
        tables = {"body": body[:, self.order], "mix": mix}
        return tables | index | {"condition_mix": depends.mix, "condition_equality": depends.equality}

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, n)`` to y ``(*batch, n)`` in C(x)."""
        rows = self.constraint.affine(x, raw)
        constants = _constants(rows, self.above, self.below, self.equal).double()
        infeasible = self._infeasible(constants)
        right = right_hand_sides(constants, self.mix)
        bad = raw.isnan().any(dim=-1)
        clean = torch.where(bad.unsqueeze(-1), 0.0, raw).double()
        y = clamp_in_order(clean, self.body, right, self.steps).to(raw.dtype)
        y = poison(y, infeasible | bad | self._undefined(constants))
        if self.options.on_invalid == "raise":
            raise_for_invalid(y, lambda: diagnose_inputs(raw, rows) or _diagnose(infeasible))
        return y

    def _infeasible(self, constants: Tensor) -> Tensor:
        """Whether C(x) is empty, ``(*batch)``: whether a row with all its variables eliminated fails."""
        unmet = unmet_conditions(self.condition_mix, self.condition_equality, constants, self._tolerance())
        return _any(unmet)

    def _undefined(self, constants: Tensor) -> Tensor:
        """Whether some bound is NaN, or infinite on the side that no y satisfies, ``(*batch)``."""
        undefined = constants.isnan() | (constants == -torch.inf)
        equal = constants[..., constants.shape[-1] - len(self.equal) :]
        return _any(undefined) | _any(equal.isinf())

    def _tolerance(self) -> float:
        """Relative rounding error allowed for a derived constant in the dtype of the set."""
        like = self.constraint.origin()
        return ELIMINATION_ROUNDINGS * torch.finfo(torch.float64 if like is None else like.dtype).eps


def _any(found: Tensor) -> Tensor:
    """``any`` over the last dimension, False where that is empty: ONNX Runtime returns True there."""
    return found.any(dim=-1) if found.shape[-1] else found.new_zeros(found.shape[:-1], dtype=torch.bool)


def _constants(rows: AffineRows, above: Tensor, below: Tensor, equal: Tensor) -> Tensor:
    """The constants of ``A y <= upper``, ``-A y <= -lower`` and ``A y = b``, in this order: ``(*batch, k)``."""
    pieces = [(rows.upper, above, 1), (rows.lower, below, -1), (rows.lower, equal, 1)]
    parts = [sign * bound.index_select(-1, index) for bound, index, sign in pieces if bound is not None]
    batch = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*batch, -1) for part in parts], dim=-1)


def _stack(stages: list[Stage]) -> tuple[list[Step], Tensor, Tensor]:
    """All rows of all stages stacked, and which of them belong to each step."""
    steps, pieces, start = [], [], 0
    for stage in stages:
        slices = []
        for rows in stage[1:]:
            slices.append(slice(start, start + len(rows.body)))
            start += len(rows.body)
            pieces.append(rows)
        steps.append(Step(stage.variable, *slices))
    return steps, torch.cat([rows.body for rows in pieces]), torch.cat([rows.mix for rows in pieces])


def _diagnose(infeasible: Tensor) -> HardNetError | None:
    """The error for samples whose bounds contradict each other."""
    samples = sample_indices(infeasible)
    if samples is None:
        return None
    where = f" for samples {name_samples(samples)}" if samples else ""
    remedy = "relax the bounds, or use method 'projection' with on_infeasible='nearest'"
    return InfeasibleError(f"C(x) is empty{where}: the bounds contradict each other; {remedy}", samples)
