"""Table 1 of the HardNet paper as data: what each method enforces, and the test that backs each claim.

Where a layer of this library does more than its paper, the row says what the layer does, and `remark` says what is new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hardnet.layers.base import Guarantee, Layer
from hardnet.layers.registry import LAYERS
from hardnet.notebook import as_html

CONTRACT = "tests/test_contract.py::test_layer_keeps_the_contract"
TABLE = "tests/layers/test_table.py::"
POLICE = "tests/layers/test_police.py::"
SOFT = "tests/layers/test_soft.py::test_returns_raw_itself_and_promises_nothing"
CLOSED_FORM, ITERATIVE, UNKNOWN = "closed form", "iterative", "unknown"


def _evidence(**other: str) -> dict[str, str]:
    """The tests that back the claims of most rows; `other` replaces some, and an empty string removes a claim."""
    common = {
        "constraint": TABLE + "test_a_method_accepts_its_class_and_refuses_others_by_name",
        "input_dependence": TABLE + "test_input_dependence",
        "equalities": TABLE + "test_equalities_and_inequalities",
        "inequalities": TABLE + "test_equalities_and_inequalities",
        "guarantee": CONTRACT,
        "computation": CONTRACT,
        "universal_approximation": TABLE + "test_every_point_of_the_set_is_reached",
    }
    return {claim: test for claim, test in (common | other).items() if test}


@dataclass(frozen=True)
class Method:
    """One row of Table 1.

    Attributes:
        name: The name that ``HardNet(net, constraint, method=name)`` takes.
        title: The method and its authors.
        constraint: The class of sets, as a formula.
        input_dependence: Which numbers may depend on x: ``"A(x), b(x)"``, ``"b(x)"``, ``"no"``, or a phrase.
        equalities: Whether equalities are supported; None where a registered method does not say.
        inequalities: Whether inequalities are supported; None where a registered method does not say.
        guarantee: What holds for the output.
        computation: ``"closed form"`` or ``"iterative"``; closed forms may have an offline phase.
        universal_approximation: ``"yes"`` where every continuous function into C(x) can be approximated. Table 1 says
            "unknown" for all but HardNet; a continuous layer that returns every point of C(x) for some raw output that
            depends continuously on the point (usually the point itself) inherits the density of plain networks and is
            a "yes" here. ``"unknown"`` remains where that is not shown.
        reference: Where the method was published.
        remark: What this library's layer does beyond, or differently from, the paper's row.
        tests: For each claim above, the test that backs it, as a pytest node.
    """

    name: str
    title: str
    constraint: str
    input_dependence: str
    equalities: bool | None
    inequalities: bool | None
    guarantee: Guarantee
    computation: str
    universal_approximation: str
    reference: str
    remark: str = ""
    tests: Mapping[str, str] = field(default_factory=_evidence)

    def asdict(self) -> dict[str, Any]:
        """The row as plain data, for JSON."""
        return asdict(self)


_ROWS = (
    Method(
        name="aff",
        title="HardNet-Aff (Min & Azizan)",
        constraint="lower(x) <= A(x) y <= upper(x), independent rows",
        input_dependence="A(x), b(x)",
        equalities=True,
        inequalities=True,
        guarantee=Guarantee.EXACT,
        computation=CLOSED_FORM,
        universal_approximation="yes",
        reference="Min & Azizan, HardNet: Hard-constrained neural networks with universal approximation, 2025",
    ),
    Method(
        name="aff-eq",
        title="HardNet-Aff, equalities solved first (Min & Azizan)",
        constraint="A(x) y <= b(x), C(x) y = d(x), an invertible block of C",
        input_dependence="A(x), b(x)",
        equalities=True,
        inequalities=True,
        guarantee=Guarantee.EXACT,
        computation=CLOSED_FORM,
        universal_approximation="yes",
        reference="Min & Azizan, 2025, Appendix B",
        remark="the network emits one number less per equality",
    ),
    Method(
        name="projection",
        title="Exact Euclidean projection onto a polyhedron",
        constraint="lower(x) <= A(x) y <= upper(x), any number of rows",
        input_dependence="A(x), b(x)",
        equalities=True,
        inequalities=True,
        guarantee=Guarantee.EXACT,
        computation=ITERATIVE,
        universal_approximation="yes",
        reference="HardNet-Cvx (Min & Azizan, 2025) for polyhedra, by a batched active-set method",
        remark="finite: it ends with the exact active set, and reports an empty C(x); up to 4 rows a fixed program",
        tests=_evidence(computation=TABLE + "test_iterative_methods_report_their_iterations"),
    ),
    Method(
        name="cvx",
        title="HardNet-Cvx (Min & Azizan)",
        constraint="any convex C(x): the sets of this library, their intersections, and CVXPY",
        input_dependence="A(x), b(x)",
        equalities=True,
        inequalities=True,
        guarantee=Guarantee.TOLERANCE,
        computation=ITERATIVE,
        universal_approximation="yes",
        reference="Min & Azizan, 2025, HardNet-Cvx",
        remark="boxes, balls, simplices and single quadratics by their own formula",
        tests=_evidence(computation=TABLE + "test_iterative_methods_report_their_iterations"),
    ),
    Method(
        name="nonlinear",
        title="Nearest point of nonlinear rows, by sequential quadratic programming",
        constraint="lower(x) <= g(y, x) <= upper(x), any smooth g, beside affine rows",
        input_dependence="A(x), b(x)",
        equalities=True,
        inequalities=True,
        guarantee=Guarantee.TOLERANCE,
        computation=ITERATIVE,
        universal_approximation="yes",
        reference="Gauss-Newton and SQP steps that are exact projections onto linearized rows; docs/nonlinear.md",
        remark="a KKT point; each sample has a status; where its rows do not hold an error, NaN or the best point; "
        "torch.export takes mode='retract' with iterations=, not nearest points",
        tests=_evidence(computation="tests/solvers/nonlinear/test_solve.py::test_it_reports_iterations_and_status"),
    ),
    Method(
        name="dc3",
        title="DC3 (Donti, Rolnick & Kolter)",
        constraint="lower(x) <= A(x) y <= upper(x), equalities completed",
        input_dependence="A(x), b(x)",
        equalities=True,
        inequalities=True,
        guarantee=Guarantee.ASYMPTOTIC,
        computation=ITERATIVE,
        universal_approximation="yes",
        reference="Donti, Rolnick & Kolter, DC3: A learning method for optimization with hard constraints, ICLR 2021",
        remark="equalities are exact; inequalities hold in the limit of many steps; samples stop one by one",
        tests=_evidence(
            guarantee="tests/layers/test_dc3.py::test_inequalities_converge_with_the_automatic_step",
            computation="tests/layers/test_dc3.py::test_known_answer_of_the_published_iteration",
        ),
    ),
    Method(
        name="rayen",
        title="RAYEN (Tordesillas, How & Hutter)",
        constraint="constant affine rows, quadratics, second-order cones and LMIs, with an interior",
        input_dependence="no",
        equalities=True,
        inequalities=True,
        guarantee=Guarantee.EXACT,
        computation=CLOSED_FORM,
        universal_approximation="yes",
        reference="Tordesillas, How & Hutter, RAYEN: Imposition of hard convex constraints on neural networks, 2023",
        remark="any piece about one interior point; also Konstantinov & Utkin's ray shift (2023)",
    ),
    Method(
        name="linsat",
        title="LinSATNet (Wang et al.)",
        constraint="A1 y <= b1, A2 y >= b2, A3 y = b3 with non-negative numbers, 0 <= y <= 1",
        input_dependence="b(x)",
        equalities=True,
        inequalities=True,
        guarantee=Guarantee.TOLERANCE,
        computation=ITERATIVE,
        universal_approximation="unknown",
        reference="Wang et al., LinSATNet: The positive linear satisfiability neural networks, ICML 2023",
        remark="Newton on the dual to 1e-10 instead of sweeps to 1e-3; the sweeps are an option",
        tests=_evidence(
            computation="tests/layers/test_linsat.py::test_sweeps_and_newton_give_the_same_answer",
            universal_approximation="",
        ),
    ),
    Method(
        name="cdgm",
        title="C-DGM (Stoian et al.)",
        constraint="lower(x) <= A y <= upper(x) with a constant A",
        input_dependence="b(x)",
        equalities=True,
        inequalities=True,
        guarantee=Guarantee.EXACT,
        computation=CLOSED_FORM,
        universal_approximation="yes",
        reference="Stoian et al., How realistic is your synthetic data? Constraining deep generative models, ICLR 2024",
        remark="the bounds may depend on x; the defects of the published elimination are mended",
    ),
    Method(
        name="cone",
        title="Homogeneous inequalities (Frerix, Niessner & Cremers)",
        constraint="A y <= 0 with a constant A",
        input_dependence="no",
        equalities=True,
        inequalities=True,
        guarantee=Guarantee.EXACT,
        computation=CLOSED_FORM,
        universal_approximation="unknown",
        reference="Frerix, Niessner & Cremers, Homogeneous linear inequality constraints, CVPR workshops 2020",
        tests=_evidence(universal_approximation=""),
    ),
    Method(
        name="police",
        title="POLICE (Balestriero & LeCun)",
        constraint="y = W x + c for all x in a polytope R, W and c learned or given",
        input_dependence="the region R",
        equalities=True,
        inequalities=False,
        guarantee=Guarantee.EXACT,
        computation=CLOSED_FORM,
        universal_approximation="unknown",
        reference="Balestriero & LeCun, POLICE: Provably optimal linear constraint enforcement, ICASSP 2023",
        remark="it shifts the hidden layers of the network; ties are decided, unlike in the published code",
        tests=_evidence(
            constraint=POLICE + "test_modules_that_would_break_the_guarantee_are_refused_by_name",
            input_dependence=POLICE + "test_affine_on_the_region_for_any_weights_and_not_outside",
            equalities=POLICE + "test_a_given_map_holds_on_the_region_and_the_rest_is_learned",
            inequalities=POLICE + "test_bad_arguments_are_named",
            guarantee=POLICE + "test_the_guarantee_survives_training",
            computation=POLICE + "test_known_shifts",
            universal_approximation="",
        ),
    ),
    Method(
        name="kkt-hpinn",
        title="KKT-hPINN (Chen, Constante-Flores & Li)",
        constraint="A x + B y = b with a constant B",
        input_dependence="b(x)",
        equalities=True,
        inequalities=False,
        guarantee=Guarantee.EXACT,
        computation=CLOSED_FORM,
        universal_approximation="yes",
        reference="Chen, Constante-Flores & Li, PINNs with hard linear equality constraints, 2024",
        remark="any right-hand side b(x); redundant rows that agree are dropped",
    ),
    Method(
        name="acnet",
        title="ACnet (Beucler et al.)",
        constraint="C(x) y = b(x), linear after a change of variables, an invertible block of C",
        input_dependence="A(x), b(x)",
        equalities=True,
        inequalities=False,
        guarantee=Guarantee.EXACT,
        computation=CLOSED_FORM,
        universal_approximation="yes",
        reference="Beucler et al., Enforcing analytic constraints in neural networks, PRL 2021",
        remark="the network emits one number less per equality",
    ),
    Method(
        name="soft",
        title="Soft penalty",
        constraint="any",
        input_dependence="A(x), b(x)",
        equalities=True,
        inequalities=True,
        guarantee=Guarantee.NONE,
        computation=CLOSED_FORM,
        universal_approximation="yes",
        reference="the penalty baseline of Min & Azizan, 2025",
        tests=_evidence(guarantee=SOFT, computation=SOFT),
    ),
    Method(
        name="none",
        title="Plain network",
        constraint="any, ignored",
        input_dependence="A(x), b(x)",
        equalities=True,
        inequalities=True,
        guarantee=Guarantee.NONE,
        computation=CLOSED_FORM,
        universal_approximation="yes",
        reference="the unconstrained baseline of Min & Azizan, 2025",
        tests=_evidence(guarantee=SOFT, computation=SOFT),
    ),
)


COLUMNS = ("name", "constraint", "input_dependence", "guarantee", "computation")
"""What a table of methods shows."""


class Methods(list[Method]):
    """The rows of Table 1, as a list that prints as a table."""

    def __repr__(self) -> str:
        """One line for each method."""
        return "\n".join(f"{row.name:<12} {row.guarantee:<11} {row.constraint}" for row in self)

    def _repr_html_(self) -> str:
        return as_html({name: getattr(row, name) for name in COLUMNS} for row in self)


def methods() -> Methods:
    """Table 1 of the paper: one row per method of this library, each claim with the test that backs it.

    Registered methods follow, with what their class declares.
    """
    own = [layer for name, layer in LAYERS.items() if name not in {row.name for row in _ROWS}]
    return Methods([*_ROWS, *(_row_of(layer) for layer in own)])


def _row_of(layer: type[Layer]) -> Method:
    """The row of a registered method: anything its class does not declare is unknown."""
    title = (layer.__doc__ or layer.__name__).strip().splitlines()[0]
    return Method(
        name=layer.name,
        title=title,
        constraint=layer.accepts,
        input_dependence=UNKNOWN,
        equalities=None,
        inequalities=None,
        guarantee=layer.guarantee,
        computation=UNKNOWN,
        universal_approximation=UNKNOWN,
        reference=f"{layer.__module__}.{layer.__qualname__}",
        tests={},
    )
