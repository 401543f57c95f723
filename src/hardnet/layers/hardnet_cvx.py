"""HardNet-Cvx (Min & Azizan, 2025): the Euclidean projection onto any convex set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from hardnet.errors import OptionError, sentence
from hardnet.functional.quadratic import diagonalize
from hardnet.layers.base import Guarantee, Layer, solve_layer
from hardnet.layers.nearest import Kept, nearest, refusal, solution
from hardnet.layers.options import LayerOptions, choice, flag
from hardnet.nearest.policy import Policy
from hardnet.sets.base import ConstraintSet
from hardnet.sets.curved import Quadratic
from hardnet.solvers.solution import Solution


class HardNetCvx(Layer):
    """``y = argmin |y - raw|  s.t.  y in C(x)``.

    A set that has its own projection uses it: closed form for boxes, balls and simplices, a one-dimensional root for a
    quadratic, Newton on the optimality conditions for cones, matrix inequalities and all intersections of these,
    cvxpylayers for `Cvxpy`, alternating projections where own sets that bring nothing but a projection are joined with
    others. Polyhedra use the exact projection onto their rows. The eigendecomposition of a constant
    quadratic is computed once.

    Args:
        constraint: Any convex set of the library, or your own set with `project`.
        on_infeasible: What to do when C(x) is empty: ``"raise"`` an `InfeasibleError` that names the samples, or return
            ``"nan"`` for these samples alone; ``"auto"`` raises on a CPU, and returns NaN on CUDA, under compile,
            export and vmap.
        on_unsolved: What to do with a sample that is neither solved nor proved empty: ``"raise"`` a `ConvergenceError`
            with the `.solution` of the whole batch, return ``"nan"`` for that sample alone, or the ``"best"`` point
            found, which may be outside; ``"auto"`` as above.
        on_invalid: What to do with NaN, or with numbers that do not describe a convex set: raise an error that names
            the samples, or return NaN.
        strict: Whether inequality rows must hold for the returned floating-point numbers in exact arithmetic; only for
            polyhedral sets.
    """

    name = "cvx"
    accepts = "any convex set: boxes, simplices, balls, quadratics, cones, matrix inequalities, their &, CVXPY"
    guarantee = Guarantee.TOLERANCE
    traceable = False

    @dataclass(frozen=True)
    class Options(LayerOptions):
        """The options above."""

        on_infeasible: Literal["auto", "raise", "nan"] = choice("auto", "raise", "nan")
        on_unsolved: Literal["auto", "raise", "nan", "best"] = choice("auto", "raise", "nan", "best")
        on_invalid: Literal["raise", "nan"] = choice("raise", "nan")
        strict: bool = flag(default=False)

    options: Options
    kept: Kept

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__(constraint, **options)
        if self.options.strict and not constraint.polyhedral:
            expected = "False for a set with curved or relaxed rows"
            raise OptionError(sentence("strict", expected, True, "only affine rows can hold in exact arithmetic"))
        self.kept = Kept()
        self.refresh()

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """What a solver takes: `hardnet.layers.nearest`."""
        return refusal(constraint)

    def refactor(self) -> None:
        """Diagonalize the P of a constant quadratic."""
        P = self.constraint.fixed("P") if isinstance(self.constraint, Quadratic) else None
        self.kept = Kept(spectrum=None if P is None or P.dim() > 2 else diagonalize(P))

    def policy(self) -> Policy:
        """What samples without an answer give."""
        own = self.options
        return Policy(own.on_infeasible, own.on_unsolved, own.on_invalid, strict=own.strict, once=self.once)

    def solve(self, raw: Tensor, x: Any = None) -> Solution:
        """The nearest point with its dual, status, iterations and residual, on the device of raw.

        Like `Projection.solve`, for polyhedra and for every set with its own `solve`: sparse rows, balls, quadratics,
        cones, matrix inequalities and their intersections, whose multipliers are those of the blocks.

        Args:
            raw: ``(*batch, n)``.
            x: The input.
        """
        return solve_layer(self, raw, x, self._find)

    def _find(self, raw: Tensor, x: Any) -> Solution:
        """`solve` in float32 or float64."""
        return solution(self.constraint, raw, x, self.policy(), self.kept)

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, n)`` to the nearest y ``(*batch, n)`` of C(x)."""
        return nearest(self.constraint, raw, x, self.policy(), self.kept)
