"""Plans over a horizon: bounds, rates and accelerations of several channels at once."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.sets.base import ConstraintSet, Name, Number
from hardnet.structure import BoxedRows


class Bands(NamedTuple):
    """The limits of a banded set, ``(*batch, 3, T, c)``."""

    low: Tensor
    high: Tensor


class Banded(ConstraintSet):
    """T values of c channels, time by time, with limits on values, steps and second differences of each channel.

    A subclass gives the limits, and from which time on steps and second differences are limited.
    """

    polyhedral = True
    T: int
    channels: int

    @abstractmethod
    def limits(self, numbers: Any, like: Tensor) -> tuple[Tensor, Tensor]:
        """Least and most ``(*batch, 3, T, c)`` of values, steps and second differences; infinite where absent."""

    @abstractmethod
    def first_rows(self) -> tuple[int, int]:
        """The times of the first limited step and of the first limited second difference; T for none."""

    def data(self, numbers: Any, like: Tensor) -> BoxedRows:
        """The steps above the second differences, beside the box of the values."""
        low, high = (self._rows_of(part) for part in self.limits(numbers, like))
        A, box = self._matrix(like), (low[0], high[0]) if self._boxed else (None, None)
        return BoxedRows(A, low[1], high[1], *box, (False,) * len(A))

    @property
    def _boxed(self) -> bool:
        """Whether values have bounds."""
        return self.has("lower") or self.has("upper")

    def _rows_of(self, limits: Tensor) -> tuple[Tensor, Tensor]:
        """The bounds of the box ``(*batch, n)`` and of the rows ``(*batch, m)``."""
        values, steps, bends = limits.unbind(-3)
        first, second = self.first_rows()
        return values.flatten(-2), torch.cat(
            [steps[..., first:, :].flatten(-2), bends[..., second:, :].flatten(-2)], -1
        )

    def _matrix(self, like: Tensor) -> Tensor:
        """A ``(m, n)``."""
        eye = torch.eye(self.T, dtype=like.dtype, device=like.device)
        back = lambda lag: torch.diag(eye.new_ones(max(self.T - lag, 0)), -lag) if lag < self.T else 0 * eye
        first, second = self.first_rows()
        rows = torch.cat([(eye - back(1))[first:], (eye - 2 * back(1) + back(2))[second:]])
        return torch.kron(rows, torch.eye(self.channels, dtype=like.dtype, device=like.device))

    def suffixes(self, numbers: Any, like: Tensor) -> list[str]:
        """``[t]`` for a value, ``.step[t]`` and ``.bend[t]``; ``[t,c]`` where there are channels."""
        first, second = self.first_rows()

        def named(kind: str, begin: int) -> list[str]:
            several = self.channels > 1
            places = [f"{t},{c}" if several else f"{t}" for t in range(begin, self.T) for c in range(self.channels)]
            return [f"{kind}[{place}]" for place in places]

        return [*(named("", 0) if self._boxed else []), *named(".step", first), *named(".bend", second)]

    def alone(self, numbers: Any, like: Tensor) -> Any:
        """The limits of each channel over time."""
        return Bands(*self.limits(numbers, like))


class HorizonNumbers(NamedTuple):
    """Bounds ``(*batch, n)``; largest steps and second differences, and the last two values, ``(*batch, c)``."""

    lower: Tensor | None
    upper: Tensor | None
    rate: Tensor | None
    acceleration: Tensor | None
    earlier: Tensor | None
    last: Tensor | None


class Horizon(Banded):
    """``lower <= u_t <= upper, |u_t - u_{t-1}| <= rate, |u_t - 2 u_{t-1} + u_{t-2}| <= acceleration`` for t = 0, 1, ...

    Chunks of actions, dispatch over a day: all limits hold at once, also those to what was played before. y is the plan
    time by time, ``(*batch, steps * channels)``: ``y.unflatten(-1, (steps, channels))``. On a CPU the nearest plan
    takes O(steps) an iteration, and is exact: the active limits hold to rounding.

    Args:
        steps: The number of times T.
        lower: A number, ``(steps * channels,)``, or a function of x; None for none.
        upper: Like `lower`.
        rate: The largest change from one time to the next: a number, ``(channels,)``, or a function of x.
        acceleration: The largest change of this change: likewise.
        previous: What was played last: a number, ``(channels,)``, or a function of x; or a tuple of two of these, the
            earlier one first. Without it the first step is free, with one value the first second difference is.
        channels: The number of joints, generators, ...
        name: What errors and certificates call it.
    """

    record = HorizonNumbers
    split: ClassVar[dict[str, tuple[str, ...]]] = {"previous": ("earlier", "last")}

    def __init__(
        self,
        steps: int,
        lower: Number | None = None,
        upper: Number | None = None,
        rate: Number | None = None,
        acceleration: Number | None = None,
        *,
        previous: Number | tuple[Number | None, Number | None] | None = None,
        channels: int = 1,
        name: Name = None,
    ) -> None:
        super().__init__(name)
        for argument, value in (("steps", steps), ("channels", channels)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ShapeError(sentence(argument, "a positive integer", value))
        self.T = self.steps = steps
        self.channels = channels
        self._sizes.update(n=steps * channels, c=channels)
        self.take("lower", lower, ("n",), "lower")
        self.take("upper", upper, ("n",), "upper")
        self._check_bounds()
        self.take("rate", rate, ("c",), "size")
        self.take("acceleration", acceleration, ("c",), "size")
        earlier, last = previous if isinstance(previous, tuple) else (None, previous)
        self.take("earlier", earlier, ("c",), "finite")
        self.take("last", last, ("c",), "finite")
        if earlier is not None and last is None:
            raise ShapeError(sentence("previous", "the last value, or a tuple (earlier, last)", "no last one"))
        self.before = int(self.has("last")) + int(self.has("earlier"))

    def numbers(self, x: Any, like: Tensor) -> HorizonNumbers:
        """The limits at x."""
        n, c = self.steps * self.channels, self.channels
        if like.shape[-1] != n:
            raise ShapeError(sentence("raw", f"shape (*batch, {n})", tuple(like.shape), "flatten plans time by time"))
        given = HorizonNumbers._fields
        return HorizonNumbers(*(self.number(own, x, like, c=c) if self.has(own) else None for own in given))

    def first_rows(self) -> tuple[int, int]:
        """After as many values as are known before."""
        first = max(1 - self.before, 0) if self.has("rate") else self.steps
        return first, min(2 - self.before, self.steps) if self.has("acceleration") else self.steps

    def limits(self, numbers: HorizonNumbers, like: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the first times move by what was played before."""
        lower, upper, rate, acceleration, earlier, last = numbers
        T, c = self.steps, self.channels
        far = like.new_full((T, c), torch.inf)
        sides = []
        for sign, bound in ((-1, lower), (1, upper)):
            values = sign * far if bound is None else bound.unflatten(-1, (T, c))
            found = [values]
            for row, limit in ((1, rate), (2, acceleration)):
                begin = min(max(row - self.before, 0), T)
                if limit is None or begin == T:
                    found.append(sign * far)
                    continue
                times = [sign * far[:begin]] if begin else []
                for t in range(begin, min(row, T)):  # rows that reach back
                    assert last is not None
                    known = last if row == 1 or earlier is None or t == 1 else 2 * last - earlier
                    times.append((sign * limit + (known if t == 0 else -known)).unsqueeze(-2))
                rest = max(T - max(row, begin), 0)
                times.append((sign * limit).unsqueeze(-2).expand(*limit.shape[:-1], rest, c))
                batch = torch.broadcast_shapes(*(part.shape[:-2] for part in times))
                found.append(torch.cat([part.expand(*batch, *part.shape[-2:]) for part in times], dim=-2))
            batch = torch.broadcast_shapes(*(part.shape[:-2] for part in found))
            sides.append(torch.stack([part.expand(*batch, T, c) for part in found], dim=-3))
        return sides[0], sides[1]

    def extra_repr(self) -> str:
        """Times, channels and limits."""
        return f"steps={self.steps}, channels={self.channels}, {super().extra_repr()}".rstrip(", ")
