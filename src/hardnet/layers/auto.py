"""method="auto": a documented rule that `explain` reports for a given set.

1. A set with its own projection (a box, a simplex, a ball, a cone, ..., their intersections, CVXPY): ``cvx``.
2. Constant affine rows for which the closed form is the nearest point (one row, orthogonal rows, or only equalities,
   in each case well conditioned): the closed form, ``aff``.
3. Any other affine rows: the nearest point, ``projection``. It never moves an output farther than necessary and trains
   far better where rows are nearly parallel; use ``method="aff"`` where rows are well conditioned and speed matters.
4. Everything else: the first method that accepts the set (``police`` for an affine map on a region of inputs).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from math import log
from pathlib import Path
from typing import Any

import torch

from hardnet.errors import DTypeError, OptionError, UnsupportedSetError, did_you_mean, sentence
from hardnet.layers.base import Guarantee, Layer
from hardnet.layers.constant_rows import known_equalities
from hardnet.layers.hardnet_aff import constant_matrix, more_rows_than_outputs, row_condition
from hardnet.layers.hardnet_cvx import HardNetCvx
from hardnet.layers.table import LAYERS
from hardnet.notebook import as_html
from hardnet.region import Kind
from hardnet.sets.base import ConstraintSet
from hardnet.solvers.polyhedron.shared_rows import LEAST_ROWS
from hardnet.structure import MOST_FEW_ROWS, BoxedRows
from hardnet.tolerances import ALTERNATING

# Recorded costs of the closed form and the nearest point for a type of device; read by `explain`.
#
# ``costs.json`` is generated from the result files by ``python -m benchmarks.pages``.


def recorded(device: str, n: int, m: int) -> str | None:
    """The recorded costs at the size nearest to m rows on n outputs, in words; None for a device without a record."""
    record = json.loads(Path(__file__).with_name("costs.json").read_text()).get(device)
    if record is None:
        return None
    cost = min(record["costs"], key=lambda one: abs(log(one["n"] / max(n, 1))) + abs(log(one["m"] / max(m, 1))))
    return (
        f"recorded on {record['where']}, {record['samples']} samples of {cost['m']} rows on {cost['n']} outputs, "
        f"forward and backward: nearest point {cost['nearest']:g} ms, closed form {cost['closed']:g} ms"
    )


CONDITION_LIMIT = 1e6
"""Above this condition number of a constant A, "auto" does not take the closed form: it may move outputs by cond(A)
times the violation, whereas the exact projection never moves farther than the nearest feasible point."""


@dataclass(frozen=True, repr=False)
class Explanation:
    """The method 'auto' chooses for a set, and why not the others.

    Attributes:
        method: The name of the chosen method; None where no method enforces the set.
        reasons: For each method of the library, why it is chosen, possible, or refused.
    """

    method: str | None
    reasons: dict[str, str]

    def __str__(self) -> str:
        """A readable list, the chosen method first."""
        width = max(map(len, self.reasons))
        marks = {name: "->" if name == self.method else "  " for name in self.reasons}
        none = ["no method enforces this set"] if self.method is None else []
        return "\n".join(none + [f"{marks[name]} {name:<{width}}  {self.reasons[name]}" for name in self._order()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The same as a table."""
        takes = "no method enforces this set" if self.method is None else f"'auto' takes {self.method}"
        return as_html(({"method": name, "why": self.reasons[name]} for name in self._order()), takes)

    def _order(self) -> list[str]:
        first = [] if self.method is None else [self.method]
        return [*first, *(name for name in self.reasons if name != self.method)]


def explain(constraint: ConstraintSet, x: Any = None) -> Explanation:
    """Report which method ``method="auto"`` chooses for this set, and why not the others.

    Args:
        constraint: The set.
        x: An input; rows that depend on x cannot be evaluated without one.
    """
    if not isinstance(constraint, ConstraintSet):
        raise DTypeError(sentence("constraint", "a set", type(constraint).__name__, "build one with hn.Affine, ..."))
    method, why = _choose(constraint)
    reasons = {name: _judged(layer, constraint) for name, layer in LAYERS.items()}
    if LAYERS[method].refusal(constraint) is not None:
        return Explanation(None, reasons)
    rows = _rows_at(constraint, x) if constraint.polyhedral else None
    if method == "projection":
        why = f"{why} ({structure_of(rows)})" if rows is not None else f"{why}; {_told_by(x)}"
        if reasons["aff"].startswith("possible"):
            reasons["aff"] = _closed_form(constraint, rows)
        if reasons["aff"].startswith("possible"):
            why = _with_cost(why, rows)
    reasons[method] = f"chosen: {why}; guarantee: {LAYERS[method].guarantee}"
    return Explanation(method, reasons)


def structure_of(rows: BoxedRows) -> str:
    """The structure that decides which solver projects, in words."""
    m = rows.A.shape[-2]
    if m == 0:
        return "a box alone: clamped"
    if rows.boxed and m + rows.A.shape[-1] > MOST_FEW_ROWS:
        kept = f"a box and {m} row{'s' if m > 1 else ''}"
        return f"{kept}: the box as bounds, which are no rows"
    if rows.boxed:
        return f"a box and {m} row{'s' if m > 1 else ''}: a fixed program"
    many = "the general solver"
    if m >= LEAST_ROWS and rows.A.dim() == 2:
        many = "the general solver, with shared factors in batches that pay for them"
    return f"{m} row{'s' if m > 1 else ''}: " + ("a fixed program" if m <= MOST_FEW_ROWS else many)


def _judged(layer: type[Layer], constraint: ConstraintSet) -> str:
    """Whether a method accepts the set, in words."""
    refused = layer.refusal(constraint)
    return f"refused: {refused}" if refused else f"possible; guarantee: {layer.guarantee}"


def _rows_at(constraint: ConstraintSet, x: Any) -> BoxedRows | None:
    """The rows at x in the form the projection uses; None where x, or the number of outputs, is not known."""
    like = constraint.origin_at(x)
    return None if like is None else constraint.structure(constraint.numbers(x, like), like)


def _told_by(x: Any) -> str:
    """What is missing to evaluate the rows, in words."""
    if x is None:
        return "how it is solved depends on numbers that come with an input: hn.explain(constraint, x) says it"
    return "how it is solved depends on the number of outputs, which the network alone knows"


def _closed_form(constraint: ConstraintSet, rows: BoxedRows | None) -> str:
    """The pros and cons of the closed form where the nearest point is chosen."""
    if rows is not None and _count(rows) > rows.A.shape[-1]:
        return f"refused: {more_rows_than_outputs(_count(rows), rows.A.shape[-1])}"
    A = constant_matrix(constraint)
    condition = None if A is None or A.is_meta else row_condition(A)
    if condition is not None and condition > 1 / torch.finfo(torch.float64).eps:
        return "refused: its rows are linearly dependent; use method='projection'"
    times = "cond(A)" if condition is None else f"{condition:.2g}"
    return f"possible, and faster; it may move outputs by {times} times the violation; guarantee: exact"


def _with_cost(why: str, rows: BoxedRows | None) -> str:
    """The reason, followed by the recorded costs of both methods near this size on this type of device."""
    cost = None if rows is None else recorded(rows.A.device.type, rows.A.shape[-1], _count(rows))
    return why if cost is None else f"{why}; {cost}"


def _count(rows: BoxedRows) -> int:
    """How many rows the closed form would have: the general ones, plus one for each coordinate of a box."""
    m, n = rows.A.shape[-2:]
    return m + n if rows.boxed else m


def build_layer(constraint: ConstraintSet, method: str | Layer = "auto", **options: Any) -> Layer:
    """The layer that enforces a set: by name, by the rule above (``"auto"``), or the layer object itself."""
    if isinstance(method, Layer):
        if options:
            expected = "no options beside a layer, which has its own"
            raise OptionError(sentence("options", expected, ", ".join(options), "give them to the layer"))
        if method.constraint is not constraint:
            raise UnsupportedSetError("method: expected a layer built on this constraint, got one built on another set")
        return method
    name = _choose(constraint)[0] if method == "auto" else method
    if method == "auto" and constraint.polyhedral and _projection_alone_has(options, name):
        name = "projection"
    if name not in LAYERS:
        raise UnsupportedSetError(
            f"method: expected 'auto' or one of {', '.join(LAYERS)}, got {name!r}{did_you_mean(name, LAYERS)}"
        )
    return LAYERS[name](constraint, **options)


def _projection_alone_has(options: dict[str, Any], name: str) -> bool:
    """Whether some given option, such as a metric, belongs to the projection but not to this method."""
    known = {method: {own.name for own in fields(LAYERS[method].Options)} for method in ("projection", name)}
    asked = {option for option, value in options.items() if value is not None}
    return bool(asked & (known["projection"] - known[name]))


def _choose(constraint: ConstraintSet) -> tuple[str, str]:
    """The rule in the module docstring: a name and the reason."""
    if not constraint.polyhedral and HardNetCvx.refusal(constraint) is None:
        if getattr(constraint, "alternating", False):
            return "cvx", f"members bring their own projections: alternating, to tolerance {ALTERNATING:g}"
        return "cvx", f"{type(constraint).__name__} has a projection of its own"
    if not constraint.polyhedral:
        return _made_for(constraint)
    if constraint.has_formula or constraint.projectable:
        return "cvx", f"{type(constraint).__name__} has a projection of its own"
    same = _closed_form_is_nearest(constraint)
    if same is not None:
        return "aff", f"the closed form is the nearest point here: {same}"
    return "projection", "the nearest point, which learns better than the closed form"


def _made_for(constraint: ConstraintSet) -> tuple[str, str]:
    """The first method with a guarantee that accepts a set with neither affine rows nor its own projection."""
    for name, layer in LAYERS.items():
        if layer.guarantee is not Guarantee.NONE and layer.refusal(constraint) is None:
            return name, f"{type(constraint).__name__} is what it is made for"
    if len(constraint.pieces) > 1:
        return "union", "it is a union"
    if Kind.FUNCTIONS in constraint.kinds:  # the layer refuses it and says what to write instead
        return "nonlinear", "it has nonlinear rows"
    return "cvx", f"{type(constraint).__name__} is not given by affine rows alone"


def _closed_form_is_nearest(constraint: ConstraintSet) -> str | None:
    """Why the closed form gives the nearest point: one row, orthogonal rows, only equalities; None where it may not.

    Only a constant A can be checked: rows that depend on x, and nearly dependent ones, are left to the projection.
    """
    like = constraint.origin()
    A = None if like is None else constraint.fixed_matrix(like)
    if A is None or like is None or A.shape[-2] > A.shape[-1]:
        return None
    if A.shape[-2] == 1:
        return "one row"
    words = "all its rows are equalities"
    if A.is_meta:  # the values are not known yet, only which rows are declared equalities
        return words if all(part.all_equal for part in constraint.parts) else None
    equalities = words if known_equalities(constraint) == list(range(len(A))) else None
    if row_condition(A) > CONDITION_LIMIT:
        return None
    unit = A.double() / torch.linalg.vector_norm(A.double(), dim=-1, keepdim=True)
    across = (unit @ unit.mT - torch.eye(len(A), dtype=torch.float64, device=A.device)).abs().max().item()
    if across <= A.shape[-1] * torch.finfo(A.dtype).eps:
        return "its rows are orthogonal"
    return equalities
