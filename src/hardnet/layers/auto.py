"""method="auto": a written rule that the user can read and query.

1. A set with a projection of its own (a box, a simplex, a ball, a cone, ..., their intersections, CVXPY): ``cvx``.
2. Affine rows that are independent and well conditioned, or whose A depends on x: the closed form, ``aff``.
3. Any other affine rows (more rows than outputs, dependent or ill-conditioned rows): the exact ``projection``.
4. Everything else: the first method that accepts the set (``police`` for an affine map on a region of inputs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hardnet.errors import DTypeError, OptionError, UnsupportedSetError, sentence
from hardnet.layers.base import Guarantee, Layer
from hardnet.layers.hardnet_aff import row_condition
from hardnet.layers.registry import LAYERS
from hardnet.sets.base import ConstraintSet
from hardnet.sets.intersection import Intersection

CONDITION_LIMIT = 1e6
"""Above this condition number of a constant A the closed form is refused: it may move outputs by cond(A) times the
violation, where the exact projection never moves further than the nearest feasible point."""


@dataclass(frozen=True)
class Explanation:
    """Which method 'auto' takes for a set, and why not the others.

    Attributes:
        method: The name of the chosen method.
        reasons: For each method of the library, why it is taken, possible, or refused.
    """

    method: str
    reasons: dict[str, str]

    def __str__(self) -> str:
        """A readable list, the chosen method first."""
        order = [self.method, *(name for name in self.reasons if name != self.method)]
        width = max(len(name) for name in order)
        marks = {name: "->" if name == self.method else "  " for name in order}
        return "\n".join(f"{marks[name]} {name:<{width}}  {self.reasons[name]}" for name in order)


def explain(constraint: ConstraintSet) -> Explanation:
    """Which method ``method="auto"`` takes for this set, and why not the others."""
    if not isinstance(constraint, ConstraintSet):
        raise DTypeError(sentence("constraint", "a set", type(constraint).__name__, "build one with hn.Affine, ..."))
    method, why = _choose(constraint)
    reasons = {}
    for name, layer in LAYERS.items():
        refused = layer.refusal(constraint)
        reasons[name] = f"refused: {refused}" if refused else f"possible; guarantee: {layer.guarantee}"
    reasons[method] = f"chosen: {why}"
    if method == "projection" and reasons["aff"].startswith("possible"):
        reasons["aff"] = f"passed over: {why}"
    return Explanation(method, reasons)


def build_layer(constraint: ConstraintSet, method: str | Layer = "auto", **options: Any) -> Layer:
    """The layer that enforces a set: by name, by the written rule (``"auto"``), or the layer object itself."""
    if isinstance(method, Layer):
        if options:
            expected = "no options beside a layer, which has its own"
            raise OptionError(sentence("options", expected, ", ".join(options), "give them to the layer"))
        if method.constraint is not constraint:
            raise UnsupportedSetError("method: expected a layer built on this constraint, got one built on another set")
        return method
    name = _choose(constraint)[0] if method == "auto" else method
    if name not in LAYERS:
        raise UnsupportedSetError(f"method: expected 'auto' or one of {', '.join(LAYERS)}, got {name!r}")
    return LAYERS[name](constraint, **options)


def _choose(constraint: ConstraintSet) -> tuple[str, str]:
    """The rule at the head of this file: a name and the reason."""
    if constraint.projectable:
        return "cvx", f"{type(constraint).__name__} has an exact projection of its own"
    if not constraint.polyhedral:
        return _made_for(constraint)
    objection = _objection(constraint)
    if objection is not None:
        return "projection", objection
    return "aff", "affine rows in closed form, exact and without iteration"


def _made_for(constraint: ConstraintSet) -> tuple[str, str]:
    """The first method that accepts a set without affine rows and without a projection, and promises something."""
    for name, layer in LAYERS.items():
        if layer.guarantee is not Guarantee.NONE and layer.refusal(constraint) is None:
            return name, f"{type(constraint).__name__} is what it is made for"
    return "cvx", f"{type(constraint).__name__} is not given by affine rows alone"


def _objection(constraint: ConstraintSet) -> str | None:
    """Why the closed form should not be used on these affine rows, as far as their constants tell."""
    like = constraint.origin()
    A = None if like is None else constraint.fixed_matrix(like)
    if A is None:
        return _objection_to_shape(constraint)
    m, n = A.shape[-2:]
    if m > n:
        return f"{m} rows for {n} outputs; the closed form needs m <= n"
    condition = 1.0 if A.is_meta else row_condition(A)  # numbers on the meta device are not known yet
    if condition > CONDITION_LIMIT:
        return f"the rows are dependent or nearly so (condition number {condition:.1e})"
    return None


def _objection_to_shape(constraint: ConstraintSet) -> str | None:
    """A box has n rows of its own, so any further row makes more rows than outputs, whatever A(x) is."""
    from hardnet.sets.box import Box

    if isinstance(constraint, Intersection) and any(isinstance(part, Box) for part in constraint.parts):
        return "a box together with further rows has more rows than outputs; the closed form needs m <= n"
    return None
