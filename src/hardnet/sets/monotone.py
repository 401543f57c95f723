"""Monotone profiles: outputs in rising or falling order, with bounds on them and on their differences."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.functional.monotone import project_monotone
from hardnet.functional.samples import Policy
from hardnet.sets.affine import Boxed
from hardnet.sets.base import Number
from hardnet.structure import BoxedRows, join_rows

Limits = tuple[Number | None, Number | None] | list[Any]
"""The least and the most of something; None for no limit."""


class MonotoneNumbers(NamedTuple):
    """Bounds of the outputs ``(*batch, n)``, of the n - 1 steps and of the n - 2 second differences; None for none."""

    lower: Tensor | None
    upper: Tensor | None
    least_step: Tensor | None
    most_step: Tensor | None
    least_bend: Tensor | None
    most_bend: Tensor | None


class Monotone(Boxed):
    """``y_1 <= y_2 <= ... <= y_n``, or falling: temperatures over depth, quantiles, tariffs, doses.

    Without limits but bounds of the outputs, the nearest point pools adjacent violators: O(n), and the order and the
    bounds hold exactly, as ``<=`` tells. Limits on steps and second differences are banded rows.

    Args:
        dim: n.
        increasing: Whether outputs rise along the index; else they fall, and a step is ``y_i - y_{i+1}``.
        lower: A number for all outputs, ``(n,)``, or a function of x that returns ``(*batch, n)``.
        upper: Like `lower`.
        step: The least and the most by which an output rises (or falls): a number >= 0, ``(n - 1,)``, or a function of
            x each; None for no other limit than the order.
        bend: Lower and upper bounds of ``y_i - 2 y_{i+1} + y_{i+2}``, ``(n - 2,)``: ``(0, None)`` is a convex profile,
            ``(None, 0)`` a concave one.
        name: What errors and certificates call it.
    """

    record = MonotoneNumbers
    split: ClassVar[dict[str, tuple[str, ...]]] = {
        "step": ("least_step", "most_step"),
        "bend": ("least_bend", "most_bend"),
    }

    def __init__(
        self,
        dim: int,
        *,
        increasing: bool = True,
        lower: Number | None = None,
        upper: Number | None = None,
        step: Limits = (None, None),
        bend: Limits = (None, None),
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if not isinstance(dim, int) or isinstance(dim, bool) or dim < 2:
            raise ShapeError(sentence("dim", "a whole number of at least 2", dim))
        for argument, pair in (("step", step), ("bend", bend)):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                got = pair if isinstance(pair, (int, float)) else type(pair).__name__
                raise ShapeError(sentence(argument, "a pair (least, most)", got, "write None for no limit"))
        self.increasing = bool(increasing)
        self._sizes.update(n=dim, s=dim - 1, t=dim - 2)
        self.take("lower", lower, ("n",), "lower")
        self.take("upper", upper, ("n",), "upper")
        self.take("least_step", step[0], ("s",), "size")
        self.take("most_step", step[1], ("s",), "size")
        self.take("least_bend", bend[0], ("t",), "lower")
        self.take("most_bend", bend[1], ("t",), "upper")
        for pair in (("lower", "upper"), ("least_step", "most_step"), ("least_bend", "most_bend")):
            self._check_bounds(*pair)

    @property
    def weighable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether it has no limits but the order and bounds: what pooling takes, with a diagonal metric too."""
        return not any(self.has(name) for name in self.record._fields[2:])

    @property
    def projectable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The same."""
        return self.weighable

    def numbers(self, x: Any, like: Tensor) -> MonotoneNumbers:
        """The limits at x."""
        n = self._sizes["n"]
        if like.shape[-1] != n:
            raise ShapeError(sentence("raw", f"shape (*batch, {n})", tuple(like.shape)))
        sizes = {"s": n - 1, "t": n - 2}
        given = MonotoneNumbers._fields
        return MonotoneNumbers(*(self.number(own, x, like, **sizes) if self.has(own) else None for own in given))

    def structure(self, numbers: MonotoneNumbers, like: Tensor) -> BoxedRows:
        """The steps above the second differences, beside the box of the outputs."""
        steps = torch.eye(like.shape[-1], dtype=like.dtype, device=like.device).diff(dim=0)
        least = steps.new_zeros(len(steps)) if numbers.least_step is None else numbers.least_step
        order = BoxedRows(steps if self.increasing else -steps, least, numbers.most_step, *numbers[:2])
        parts = [order, BoxedRows(steps.diff(dim=0), *numbers[4:])][: 1 + self._bent]
        found = join_rows(parts)
        return found._replace(equality=(False,) * found.A.shape[-2])

    @property
    def _bent(self) -> bool:
        """Whether there are bounds on second differences."""
        return self.has("least_bend") or self.has("most_bend")

    def fixed_matrix(self, like: Tensor) -> Tensor:
        """The A of `rows`, which no number changes."""
        n = like.shape[-1]
        steps = torch.eye(n, dtype=like.dtype, device=like.device).diff(dim=0)
        box = [torch.eye(n, dtype=like.dtype, device=like.device)] if self.has("lower") or self.has("upper") else []
        return torch.cat([*box, steps if self.increasing else -steps, *([steps.diff(dim=0)] if self._bent else [])])

    def structure_names(
        self, numbers: MonotoneNumbers, like: Tensor, label: str | None = None
    ) -> tuple[list[str], list[str]]:
        """``name.step[i]`` and ``name.bend[i]``, and ``name[i]`` for the bounds of an output."""
        label, n = self.label if label is None else label, like.shape[-1]
        bends = [f"{label}.bend[{i}]" for i in range(n - 2)] if self._bent else []
        boxed = self.has("lower") or self.has("upper")
        return [f"{label}.step[{i}]" for i in range(n - 1)] + bends, [
            f"{label}[{i}]" if boxed else "" for i in range(n)
        ]

    def row_names(self, numbers: MonotoneNumbers, like: Tensor, label: str | None = None) -> list[str]:
        """Those of the outputs, if they have bounds, then those of their differences."""
        rows, box = self.structure_names(numbers, like, label)
        return [name for name in box if name] + rows

    def project(
        self,
        numbers: MonotoneNumbers,
        raw: Tensor,
        *,
        weights: Tensor | None = None,
        on_infeasible: Policy = "raise",
        on_invalid: Policy = "raise",
    ) -> Tensor:
        """Pool adjacent violators; `weights` are those of the squares, ``(n,)`` or ``(*batch, n)``."""
        options: dict[str, Any] = {"on_infeasible": on_infeasible, "on_invalid": on_invalid}
        return project_monotone(raw, *numbers[:2], increasing=self.increasing, weights=weights, **options)

    def extra_repr(self) -> str:
        """N, the direction and the limits."""
        return f"dim={self.dim}, {'rising' if self.increasing else 'falling'}, {super().extra_repr()}".rstrip(", ")
