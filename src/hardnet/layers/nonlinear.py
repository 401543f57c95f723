"""Nonlinear rows: the nearest point, or a near one, that satisfies ``lower(x) <= g(y, x) <= upper(x)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

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
from hardnet.sets.base import ConstraintSet
from hardnet.sets.nonlinear import Nonlinear, NonlinearNumbers
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
            if not (part.by_functions or part.smooth or (part.polyhedral and not part.relaxed)):
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


class Level(NamedTuple):
    """A set ``level(y) <= 0`` as an additional function of (y, x), like the nonlinear ones."""

    part: ConstraintSet
    jacobian: None = None
    tight: bool = False

    def values(self, y: Tensor, x: Any) -> Tensor:
        """``level(y)``, ``(*batch, rows)``."""
        return self.part.level(self.part.numbers(x, y), y)


def split_rows(
    constraint: ConstraintSet, numbers: Any, raw: Tensor
) -> tuple[list[Nonlinear | Level], Tensor | None, Tensor | None, BoxedRows | None]:
    """The nonlinear members, their stacked bounds, and the affine rows of the other members."""
    functions: list[Nonlinear | Level] = []
    bounds, straight = [], []
    own = zip(constraint.parts, numbers if len(constraint.parts) > 1 else (numbers,), strict=True)
    for part, part_numbers in own:
        if part.by_functions:
            nonlinear = cast(Nonlinear, part)
            functions.append(nonlinear)
            bounds.append(_bounds(nonlinear, part_numbers, raw))
        elif part.polyhedral:
            straight.append(part.structure(part_numbers, raw))
        else:
            functions.append(Level(part))
            beside = part.level_rows(part_numbers)
            straight += [] if beside is None else [beside]
            rows = part.level(part_numbers, raw.detach()).shape[-1]
            bounds.append((raw.new_full((rows,), -torch.inf), raw.new_zeros(rows)))
    lower = join([bound[0] for bound in bounds]) if bounds else None
    upper = join([bound[1] for bound in bounds]) if bounds else None
    return functions, lower, upper, join_rows(straight) if straight else None


def _bounds(part: Nonlinear, numbers: NonlinearNumbers, raw: Tensor) -> tuple[Tensor, Tensor]:
    """Both bounds, infinite where absent."""
    m = part.row_count(numbers, raw)
    lower = raw.new_full((m,), -torch.inf) if numbers.lower is None else numbers.lower
    upper = raw.new_full((m,), torch.inf) if numbers.upper is None else numbers.upper
    return lower, upper
