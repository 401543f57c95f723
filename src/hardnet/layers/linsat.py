"""LinSAT: positive linear constraints in the unit cube (Wang et al., 2023)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

from hardnet.functional.linsat import Encoding, check_options, check_positive, find_encoding, linsat
from hardnet.layers.base import Guarantee
from hardnet.layers.constant_rows import ConstantRows, TableLayer, constant_rows, refuse_other_sets
from hardnet.layers.options import LayerOptions, choice, count, number
from hardnet.sets.base import ConstraintSet


class LinSAT(TableLayer):
    """``y = sigmoid(raw / temperature + A' dual)`` with the multipliers that make ``lower(x) <= A y <= upper(x)`` hold.

    Outputs are always in the open unit cube, even if the set does not require it; ``Box(0, 1)`` may be part of the
    set. A must be constant and non-negative; the bounds may depend on x or be learned. Raw outputs are scores, not
    points, so no raw output is returned unchanged.

    Args:
        constraint: A polyhedral set with a constant A of non-negative entries.
        temperature: Small values push y to a vertex of the polyhedron.
        variant: ``"entropic"`` (convex, always solvable), or ``"v2"``, ``"v1"``: the two published fixed points.
        solver: ``"newton"``, or the published ``"sweeps"`` (for v1 and v2).
        tolerance: Largest error of a row, relative to the sum of its coefficients.
        max_iterations: Newton steps or sweeps.
        on_infeasible: For samples without a point in the unit cube: ``"raise"`` an error that names them, or
            ``"nan"``; ``"auto"`` raises where values may be read, unless ``on_invalid="nan"``.
        on_unsolved: The same for samples that need more iterations; ``"best"`` is the last point.
        on_invalid: ``"raise"`` an error that names samples with bad numbers, or return ``"nan"`` for these alone.
    """

    name = "linsat"
    accepts = "rows lower(x) <= A y <= upper(x) with a constant A >= 0 and bounds >= 0, in the unit cube"
    guarantee = Guarantee.TOLERANCE
    traceable = False
    identity_inside = False

    @dataclass(frozen=True)
    class Options(LayerOptions):
        """The options of the function `hardnet.functional.linsat.linsat`, as above."""

        temperature: float = number(0.05, above=0)
        variant: Literal["entropic", "v2", "v1"] = choice("entropic", "v2", "v1")
        solver: Literal["newton", "sweeps"] = choice("newton", "sweeps")
        tolerance: float = number(1e-10, above=0)
        max_iterations: int = count(100, least=1)
        on_infeasible: Literal["auto", "raise", "nan"] = choice("auto", "raise", "nan")
        on_unsolved: Literal["auto", "raise", "nan", "best"] = choice("auto", "raise", "nan", "best")
        on_invalid: Literal["raise", "nan"] = choice("raise", "nan")

        def __post_init__(self) -> None:
            """Refuse combinations that do not exist: the entropic variant has no sweeps."""
            super().__post_init__()
            check_options(self.temperature, self.variant, self.solver)

    options: Options
    above: Tensor
    below: Tensor
    equal: Tensor

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__(constraint, **options)
        self.refresh()

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Accept only constant, non-negative rows, each of which some y in the unit cube can meet."""
        rows = constant_rows(constraint)
        if rows is None:
            return refuse_other_sets(constraint)
        reason = check_positive(rows.A)
        if reason is not None:
            return f"{reason}, and LinSAT takes positive rows only; use method='projection'"
        wrong = (rows.upper < 0) | (rows.lower > rows.A.sum(dim=-1))
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            return f"no y in the unit cube satisfies row {row}; scale the outputs, or use method='projection'"
        return None

    def prepare_tables(self, rows: ConstantRows) -> dict[str, Tensor]:
        """Which bounds are upper bounds, lower bounds and equalities."""
        return find_encoding(rows.A, rows.lower, rows.upper, rows.equality)._asdict()

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map scores raw ``(*batch, n)`` to y ``(*batch, n)`` in C(x) and in the unit cube."""
        rows = self.constraint.affine(x, raw)
        return linsat(raw, *rows, encoding=Encoding(self.above, self.below, self.equal), **asdict(self.options))
