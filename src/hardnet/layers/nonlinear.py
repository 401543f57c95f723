"""Nonlinear rows: the nearest point, or a near one, that satisfies ``lower(x) <= g(y, x) <= upper(x)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import OptionError, ShapeError, sentence
from hardnet.functional.nonlinear import (
    OLD_NAMES,
    Limits,
    Search,
    apply_policy,
    beyond,
    policy_of,
    project_rows_and_functions,
)
from hardnet.layers.base import Guarantee, Layer
from hardnet.layers.constant_rows import require_width
from hardnet.layers.options import LayerOptions, choice, count, number, option, vector
from hardnet.modes import outside_compiler
from hardnet.nearest.policy import Policy
from hardnet.products import times
from hardnet.region import Kind
from hardnet.sets.base import ConstraintSet
from hardnet.sets.nonlinear import Nonlinear, NonlinearNumbers
from hardnet.solvers.conic.blocks import Balls, Quadratics, SecondOrder
from hardnet.solvers.nonlinear.solve import NonlinearSolution
from hardnet.structure import BoxedRows, join, join_rows

MOST_NEAREST = 200
"""Largest number of outputs for which ``mode="auto"`` computes the nearest point."""
INSTEAD = {
    "LMI": "write 'all principal minors >= 0' as rows of an hn.Nonlinear",
    "Relaxed": "put the slack into the outputs and its rows into an hn.Nonlinear",
}
"""What to write in place of sets that cannot be combined with nonlinear rows."""


class NonlinearLayer(Layer):
    """``y = argmin |y - raw|  s.t.  lower(x) <= g(y, x) <= upper(x)`` and affine rows: a KKT point.

    Sequential quadratic programming with the exact Hessian of the Lagrangian, started from a retraction by Gauss-Newton
    steps, each of them an exact projection onto linearized rows. Each sample stops on its own. Only evaluated values
    are guaranteed: `solve` returns the status of each sample, and samples whose rows do not hold give an error, NaN or
    the best point.

    Args:
        constraint: `Nonlinear`, or its intersection (`&`) with `Affine`, `Equality`, `Box`, `Simplex`, `Ball`,
            `Quadratic`, `SecondOrderCone`.
        mode: ``"nearest"``, ``"retract"`` (a feasible point, cheaper but farther), or ``"auto"``: the nearest point up
            to 200 outputs.
        on_infeasible: For samples whose violation no small move reduces: ``"raise"`` an error that names them,
            ``"nan"``, or ``"nearest"``: the least violated point found, with zero as its gradient; ``"auto"`` raises
            on a CPU and gives NaN elsewhere.
        on_unsolved: For other samples whose rows do not hold: the same, or ``"best"``: the least violated point found.
        on_invalid: For bad numbers: ``"raise"`` or ``"nan"``.
        on_failure: Deprecated: the three above in one word (``"raise"``, ``"nan"``, ``"best"``), or ``"raw"``: raw
            itself, with the identity as gradient.
        gradient: ``"exact"`` (implicit, with the curvature), ``"projector"`` (onto the tangent space, without the
            curvature), or ``"auto"``: exact for the nearest point. A retraction supports only ``"projector"``.
        tol: Allowed violation, relative to the scale of each row; in float32 at least 16 roundings.
        start: A point ``(n,)`` where the iteration starts for every sample; by default raw.
        iterations: None: until every sample has stopped. A number: exactly that many passes of each phase, so that a
            CUDA graph can capture the layer, forward and backward; samples that need more are not converged, and on a
            GPU ``"raise"`` acts as ``"nan"``.
    """

    name = "nonlinear"
    accepts = "nonlinear rows lower(x) <= g(y, x) <= upper(x), beside affine rows"
    guarantee = Guarantee.TOLERANCE
    traceable = False

    @dataclass(frozen=True)
    class Options(LayerOptions):
        """The options above."""

        mode: Literal["auto", "nearest", "retract"] = choice("auto", "nearest", "retract")
        on_infeasible: Literal["auto", "raise", "nearest", "nan"] = choice("auto", "raise", "nearest", "nan")
        on_unsolved: Literal["auto", "raise", "nan", "best"] = choice("auto", "raise", "nan", "best")
        on_invalid: Literal["raise", "nan"] = choice("raise", "nan")
        on_failure: Literal["raise", "nan", "best", "raw"] | None = option(
            None,
            " or ".join(map(repr, OLD_NAMES)),
            lambda value: value is None or (isinstance(value, str) and value in OLD_NAMES),
        )
        gradient: Literal["auto", "exact", "projector"] = choice("auto", "exact", "projector")
        tol: float = number(1e-10, above=0)
        start: tuple[float, ...] | None = vector()
        iterations: int | None = count(None, least=1)

        def __post_init__(self) -> None:
            """Take the word of version 0.2 for what it means today."""
            super().__post_init__()
            if self.on_failure is not None:
                policy = policy_of("auto", "auto", "raise", self.on_failure)
                for name in OLD_NAMES["raise"]:
                    object.__setattr__(self, name, getattr(policy, name))
                object.__setattr__(self, "on_failure", "raw" if self.on_failure == "raw" else None)

        @classmethod
        def renamed(cls, saved: dict[str, Any]) -> dict[str, Any]:
            """Files of version 0.2 name ``on_failure``, whose default was ``"raise"``."""
            old = saved.get("on_failure")
            if old is None or "on_unsolved" in saved:
                return saved
            rest = {name: value for name, value in saved.items() if name != "on_failure"}
            return rest | ({} if old == "raise" else OLD_NAMES[old]) | ({"on_failure": old} if old == "raw" else {})

    options: Options

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__(constraint, **options)
        n, start = constraint.dim, self.options.start
        if start is not None and n is not None and len(start) != n:
            raise ShapeError(sentence("start", f"{n} numbers, one per output", len(start)))
        if self.options.mode == "retract" and self.options.gradient == "exact":
            why = "'exact', which no end point of a retraction knows: it depends on the whole way there"
            remedy = "use mode='nearest', or gradient='projector'"
            raise OptionError(sentence("gradient", "'auto' or 'projector' for a retraction", why, remedy))

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Accept only nonlinear, smooth and affine rows."""
        for part in constraint.parts:
            if not (part.is_made_of(Kind.FUNCTIONS, Kind.ROWS) or _smooth(part)):
                label = type(part).__name__
                remedy = INSTEAD.get(label, "write its constraints as rows of an hn.Nonlinear")
                return (
                    f"{label} has neither affine nor smooth rows; {remedy}, or use method='auto' without nonlinear rows"
                )
        return None

    def mode(self, n: int) -> Literal["nearest", "retract"]:
        """The mode in use, with ``"auto"`` resolved for n outputs."""
        if self.options.mode != "auto":
            return self.options.mode
        return "nearest" if n <= MOST_NEAREST else "retract"

    @outside_compiler
    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, n)`` to y ``(*batch, n)`` in C(x)."""
        y, found = self._call(raw, x, None)
        own = self.options
        policy = Policy(own.on_infeasible, own.on_unsolved, own.on_invalid, once=self.once)
        y = apply_policy(y, found, policy, own.iterations)
        return beyond(raw, y, found) if own.on_failure == "raw" else y

    @outside_compiler
    def solve(self, raw: Tensor, x: Any = None, *, start: Tensor | None = None) -> NonlinearSolution:
        """The point with its status, multipliers, violation and residual; nothing is raised.

        Args:
            raw: ``(*batch, n)``.
            x: The input.
            start: Where the iteration starts, ``(*batch, n)``; by default the option `start`, or raw.
        """
        with torch.no_grad():
            return self._call(raw.detach(), x, start)[1]

    def _call(self, raw: Tensor, x: Any, start: Tensor | None) -> tuple[Tensor, NonlinearSolution]:
        """Y and its solution."""
        require_width(raw, self)
        functions, lower, upper, rows = split_rows(self.constraint, self.constraint.numbers(x, raw), raw)
        mode = self.mode(raw.shape[-1])
        exact = self.options.gradient != "projector" and mode == "nearest"
        if start is None and self.options.start is not None:
            start = torch.tensor(self.options.start, dtype=raw.dtype, device=raw.device)
        own, tight = self.options, rows is None and all(part.tight for part in functions)
        search = Search(mode, "exact" if exact else "projector", own.tol, own.iterations, tight)
        return project_rows_and_functions(raw, functions, x, Limits(lower, upper, rows), search, start)


LEVELS = (Balls, Quadratics, SecondOrder)
"""Blocks with a smooth function that is at most 0 in the set."""


def _smooth(part: ConstraintSet) -> bool:
    """Whether a set is given by a smooth function."""
    return part.is_made_of(Kind.CURVED) and getattr(part, "shape", None) in LEVELS


class Level(NamedTuple):
    """A curved set ``level(y) <= 0`` as an additional function of (y, x), like the nonlinear ones."""

    part: ConstraintSet
    jacobian: None = None
    tight: bool = False

    def values(self, y: Tensor, x: Any) -> Tensor:
        """``level(y)``, ``(*batch, 1)``."""
        return level(self.part.data(self.part.numbers(x, y), y), y)


def level(block: Any, y: Tensor) -> Tensor:
    """What is at most 0 in the set ``(*batch, 1)``, with zero derivatives of a norm at 0.

    ``|y - center|^2 - radius^2``, where a negative radius leaves no point; ``1/2 y'Py + q'y + r``; ``|A y + b| - (c'y +
    d)``, whose squares would be smooth at the axis, too, but flat where ``c'y + d = 0``: a step stops there for ever.
    """
    if isinstance(block, Balls):
        square = (y - block.center).square().sum(-1)
        return (square - block.radius * block.radius.abs()).unsqueeze(-1)
    if isinstance(block, Quadratics):
        return block.excess(y)
    square = (times(block.A, y) + block.b).square().sum(-1, keepdim=True)
    off = square > 0
    length = torch.where(off, torch.where(off, square, 1.0).sqrt(), 0.0)
    return length - (block.c * y).sum(-1, keepdim=True) - block.d.unsqueeze(-1)


def split_rows(
    constraint: ConstraintSet, numbers: Any, raw: Tensor
) -> tuple[list[Nonlinear | Level], Tensor | None, Tensor | None, BoxedRows | None]:
    """The nonlinear members, their stacked bounds, and the affine rows of the other members."""
    functions: list[Nonlinear | Level] = []
    bounds, straight = [], []
    for part, own in constraint.pairs(numbers):
        if isinstance(part, Nonlinear):
            functions.append(part)
            bounds.append(_bounds(part, own, raw))
            continue
        data = part.data(own, raw)
        if isinstance(data, BoxedRows):
            straight.append(data)
            continue
        functions.append(Level(part))
        bounds.append((raw.new_full((1,), -torch.inf), raw.new_zeros(1)))
        if isinstance(data, SecondOrder):  # c'y + d >= 0 follows; as an affine row it holds in every step
            straight.append(BoxedRows(data.c.unsqueeze(-2), -data.d.unsqueeze(-1), None))
    lower = join([bound[0] for bound in bounds]) if bounds else None
    upper = join([bound[1] for bound in bounds]) if bounds else None
    return functions, lower, upper, join_rows(straight) if straight else None


def _bounds(part: Nonlinear, numbers: NonlinearNumbers, raw: Tensor) -> tuple[Tensor, Tensor]:
    """Both bounds, infinite where absent."""
    m = part.row_count(numbers, raw)
    lower = raw.new_full((m,), -torch.inf) if numbers.lower is None else numbers.lower
    upper = raw.new_full((m,), torch.inf) if numbers.upper is None else numbers.upper
    return lower, upper
