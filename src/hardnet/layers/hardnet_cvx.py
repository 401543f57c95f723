"""HardNet-Cvx (Min & Azizan, 2025): the Euclidean projection onto any convex set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal

from torch import Tensor

from hardnet.errors import OptionError, UnsupportedSetError, sentence
from hardnet.functional.quadratic import Spectrum
from hardnet.layers.base import Guarantee, Layer
from hardnet.layers.options import LayerOptions, choice, flag
from hardnet.layers.projection import nearest_point, solve_layer, solve_set
from hardnet.modes import look_or_nan, mode
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
    values: Tensor | None
    vectors: Tensor | None

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__(constraint, **options)
        if self.options.strict and (constraint.relaxed or not constraint.polyhedral):
            expected = "False for a set with curved or relaxed rows"
            raise OptionError(sentence("strict", expected, True, "only affine rows can hold in exact arithmetic"))
        self._known: frozenset[str] | None = _parameters(constraint.project)
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
            best = self.options.on_unsolved == "best"
            return solve_set(constraint, raw, x, strict=self.options.strict, best=best)
        if own is None or constraint.relaxed:
            expected = "a set whose solver tells the status of a sample"
            raise UnsupportedSetError(sentence("constraint", expected, type(constraint).__name__, "call the layer"))
        return own(raw, x)

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, n)`` to the nearest y ``(*batch, n)`` of C(x)."""
        own, once = self.options, self.once
        on_infeasible, on_unsolved = (look_or_nan(policy, raw) for policy in (own.on_infeasible, own.on_unsolved))
        policies: dict[str, Any] = {"on_infeasible": on_infeasible, "on_unsolved": on_unsolved, "once": once}
        policies["on_invalid"] = own.on_invalid
        by_faces = self.constraint.relaxed and mode() == "export"  # where these are few; refused by name elsewhere
        if self.options.strict or by_faces or not self.constraint.projectable:
            return nearest_point(self.constraint, raw, x, strict=self.options.strict, **policies)
        chosen = {name: policy for name, policy in policies.items() if self._known is None or name in self._known}
        if self.values is not None and self.vectors is not None:
            chosen["factor"] = Spectrum(self.values, self.vectors)
        return self.constraint.project(self.constraint.numbers(x, raw), raw, **chosen)


def _parameters(project: Callable[..., Tensor]) -> frozenset[str] | None:
    """The names that a projection takes, since a set of your own need not know every policy; None for any name."""
    taken = signature(project).parameters.values()
    return None if any(one.kind is one.VAR_KEYWORD for one in taken) else frozenset(one.name for one in taken)
