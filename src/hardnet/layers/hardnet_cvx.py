"""HardNet-Cvx (Min & Azizan, 2025): the Euclidean projection onto any convex set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from hardnet.errors import OptionError, UnsupportedSetError, sentence
from hardnet.functional.quadratic import Spectrum
from hardnet.layers.base import Guarantee, Layer
from hardnet.layers.options import LayerOptions, choice, flag
from hardnet.layers.projection import nearest_point, solve_layer, solve_set
from hardnet.modes import look_or_nan
from hardnet.sets.base import ConstraintSet
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
        on_unsolved: What to do where sets that bring nothing but a projection are joined with others, and a sample does
            not come to their tolerance, since they have no common point, or meet at a small angle: ``"raise"`` a
            `ConvergenceError`, return ``"nan"`` for that sample alone, or the ``"best"`` point, which may be outside.
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
    values: Tensor | None
    vectors: Tensor | None

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__(constraint, **options)
        if self.options.strict and (constraint.relaxed or not constraint.polyhedral):
            expected = "False for a set with curved or relaxed rows"
            raise OptionError(sentence("strict", expected, True, "only affine rows can hold in exact arithmetic"))
        if self.options.on_unsolved != "auto" and not getattr(constraint, "alternating", False):
            expected = "'auto' for a set whose members are not joined by their projections alone"
            raise OptionError(sentence("on_unsolved", expected, repr(self.options.on_unsolved), "leave it out"))
        self.register_buffer("values", None, persistent=False)
        self.register_buffer("vectors", None, persistent=False)
        self.refresh()

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Accept only sets with affine rows or their own projection."""
        if constraint.projectable or constraint.polyhedral:
            return None
        if len(constraint.pieces) > 1:
            return "a union is not convex; use method='union'"
        if any(part.compressed for part in constraint.parts):
            return (
                "sparse rows may stand beside boxes, simplices and rows with a constant A alone; give them densely, "
                "hn.Affine(A.to_dense(), ...)"
            )
        return (
            f"{type(constraint).__name__} has neither affine rows nor a projection of its own (a member of an "
            "intersection may lack one); write all constraints as one hn.Cvxpy"
        )

    def refactor(self) -> None:
        """Diagonalize the P of a constant quadratic, in float64 for any dtype of the set."""
        spectrum = self.constraint.factorize()
        self.values, self.vectors = (None, None) if spectrum is None else spectrum

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
        constraint, own = self.constraint, getattr(self.constraint, "solve", None)
        if constraint.polyhedral:
            return solve_set(constraint, raw, x, strict=self.options.strict)
        if own is None or constraint.relaxed:
            expected = "a set whose solver tells the status of a sample"
            raise UnsupportedSetError(sentence("constraint", expected, type(constraint).__name__, "call the layer"))
        return own(raw, x)

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, n)`` to the nearest y ``(*batch, n)`` of C(x)."""
        on_infeasible = look_or_nan(self.options.on_infeasible, raw)
        policies = {"on_infeasible": on_infeasible, "on_invalid": self.options.on_invalid}
        if self.options.strict or not self.constraint.projectable:
            return nearest_point(self.constraint, raw, x, strict=self.options.strict, **policies)
        chosen: dict[str, Any] = {name: policy for name, policy in policies.items() if policy != "raise"}
        if getattr(self.constraint, "alternating", False):
            chosen["on_unsolved"] = self.options.on_unsolved
        if self.values is not None and self.vectors is not None:
            chosen["factor"] = Spectrum(self.values, self.vectors)
        return self.constraint.project(self.constraint.numbers(x, raw), raw, **chosen)
