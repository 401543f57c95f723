"""Monotone profiles: outputs in rising or falling order, with bounds on them and on their differences."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.sets.base import Name, Number
from hardnet.sets.horizon import Banded

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


class Pooled(NamedTuple):
    """Bounds ``(*batch, n)`` of outputs in order, None where absent, and whether they rise."""

    lower: Tensor | None
    upper: Tensor | None
    increasing: bool


class Monotone(Banded):
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
        name: Name = None,
    ) -> None:
        super().__init__(name)
        if not isinstance(dim, int) or isinstance(dim, bool) or dim < 2:
            raise ShapeError(sentence("dim", "a whole number of at least 2", dim))
        for argument, pair in (("step", step), ("bend", bend)):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                got = pair if isinstance(pair, (int, float)) else type(pair).__name__
                raise ShapeError(sentence(argument, "a pair (least, most)", got, "write None for no limit"))
        self.increasing = bool(increasing)
        self.T, self.channels = dim, 1
        self._sizes.update(n=dim, s=dim - 1, t=dim - 2)
        self.take("lower", lower, ("n",), "lower")
        self.take("upper", upper, ("n",), "upper")
        self.take("least_step", step[0], ("s",), "size")
        self.take("most_step", step[1], ("s",), "size")
        self.take("least_bend", bend[0], ("t",), "lower")
        self.take("most_bend", bend[1], ("t",), "upper")
        for pair in (("lower", "upper"), ("least_step", "most_step"), ("least_bend", "most_bend")):
            self._check_bounds(*pair)

    def numbers(self, x: Any, like: Tensor) -> MonotoneNumbers:
        """The limits at x."""
        n = self._sizes["n"]
        if like.shape[-1] != n:
            raise ShapeError(sentence("raw", f"shape (*batch, {n})", tuple(like.shape)))
        sizes = {"s": n - 1, "t": n - 2}
        given = MonotoneNumbers._fields
        return MonotoneNumbers(*(self.number(own, x, like, **sizes) if self.has(own) else None for own in given))

    def limits(self, numbers: MonotoneNumbers, like: Tensor) -> tuple[Tensor, Tensor]:
        """Those of falling steps turned around."""
        lower, upper, least, most, *bends = numbers
        least = like.new_zeros(()) if least is None else least
        steps = (least, most) if self.increasing else (None if most is None else -most, -least)
        sides = []
        for sign, rows in ((-1, (lower, steps[0], bends[0])), (1, (upper, steps[1], bends[1]))):
            far = like.new_full((self.T,), sign * torch.inf)
            found = []
            for row, bound in enumerate(rows):
                bound = None if bound is None else bound.expand(*bound.shape[:-1], self.T - row)
                absent = far if bound is None else far[:row].expand(*bound.shape[:-1], row)
                found.append(far if bound is None else torch.cat([absent, bound], dim=-1))
            sides.append(torch.stack(torch.broadcast_tensors(*found), dim=-2).unsqueeze(-1))
        return sides[0], sides[1]

    def first_rows(self) -> tuple[int, int]:
        """Between values alone."""
        return 1, 2 if self.has("least_bend") or self.has("most_bend") else self.T

    @property
    def has_formula(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether it has no limits but the order and bounds: what pooling takes."""
        return not any(self.has(name) for name in self.record._fields[2:])

    def alone(self, numbers: MonotoneNumbers, like: Tensor) -> Any:
        """Bounds and direction for pooling; else the limits of all rows."""
        if not self.has_formula:
            return super().alone(numbers, like)
        return Pooled(numbers.lower, numbers.upper, self.increasing)

    def extra_repr(self) -> str:
        """N, the direction and the limits."""
        return f"dim={self.dim}, {'rising' if self.increasing else 'falling'}, {super().extra_repr()}".rstrip(", ")
