"""Table 1 of the HardNet paper as data: what each method enforces; a test backs every claim.

Where a layer of this library does more than its paper, the row says what the layer does, and `remark` says what is new.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any

from hardnet.errors import DTypeError, UnsupportedSetError, sentence
from hardnet.layers.acnet import ACnet
from hardnet.layers.base import Guarantee, Layer
from hardnet.layers.cdgm import CDGM
from hardnet.layers.cone import Cone
from hardnet.layers.dc3 import DC3
from hardnet.layers.hardnet_aff import HardNetAff
from hardnet.layers.hardnet_cvx import HardNetCvx
from hardnet.layers.hardnet_eq import HardNetEq
from hardnet.layers.kkt_hpinn import KKThPINN
from hardnet.layers.linsat import LinSAT
from hardnet.layers.nonlinear import NonlinearLayer
from hardnet.layers.police import Police
from hardnet.layers.projection import Projection
from hardnet.layers.rayen import Rayen
from hardnet.layers.soft import NoEnforcement, Soft
from hardnet.layers.union import UnionLayer
from hardnet.notebook import as_html

# All layers, keyed by the name that ``HardNet(net, constraint, method=name)`` takes.


METHODS: tuple[type[Layer], ...] = (
    HardNetAff,
    HardNetEq,
    Projection,
    HardNetCvx,
    NonlinearLayer,
    UnionLayer,
    DC3,
    Rayen,
    LinSAT,
    CDGM,
    Cone,
    Police,
    KKThPINN,
    ACnet,
    Soft,
    NoEnforcement,
)
LAYERS: dict[str, type[Layer]] = {layer.name: layer for layer in METHODS}
"""Every method by name, including those added by `register`."""


def register(layer: type[Layer]) -> type[Layer]:
    """Make your own method available by name to `HardNet`, `methods`, `explain`, `load` and the command line.

    Works as a function and as a decorator. Import the file that registers a method before loading a model that uses it.

    Args:
        layer: A subclass of `Layer` that defines `name`, `accepts` and `guarantee`.
    """
    if not (isinstance(layer, type) and issubclass(layer, Layer)):
        raise DTypeError(sentence("layer", "a subclass of hn.layers.Layer", repr(layer)))
    missing = [own for own in ("name", "accepts", "guarantee") if not hasattr(layer, own)]
    if missing:
        raise UnsupportedSetError(sentence("layer", f"the class attribute '{missing[0]}'", f"none on {layer.__name__}"))
    known = LAYERS.get(layer.name)
    if layer.name == "auto" or (known is not None and _origin(known) != _origin(layer)):
        raise UnsupportedSetError(sentence("layer.name", "a name of its own", f"'{layer.name}', which is taken"))
    LAYERS[layer.name] = layer
    return layer


def _origin(layer: type[Layer]) -> tuple[str, str]:
    """Where a class was defined: a class that is defined again, as in a notebook, replaces the earlier one."""
    return layer.__module__, layer.__qualname__


ITERATIVE, UNKNOWN = "iterative", "unknown"


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
    """

    name: str
    title: str
    constraint: str
    reference: str
    _: KW_ONLY
    input_dependence: str = "A(x), b(x)"
    equalities: bool | None = True
    inequalities: bool | None = True
    guarantee: Guarantee = Guarantee.EXACT
    computation: str = "closed form"
    universal_approximation: str = "yes"
    remark: str = ""

    def asdict(self) -> dict[str, Any]:
        """The row as plain data, for JSON."""
        return asdict(self)


_ROWS = (
    Method(
        "aff",
        "HardNet-Aff (Min & Azizan)",
        "lower(x) <= A(x) y <= upper(x), independent rows",
        "Min & Azizan, HardNet: Hard-constrained neural networks with universal approximation, 2025",
    ),
    Method(
        "aff-eq",
        "HardNet-Aff, equalities solved first (Min & Azizan)",
        "A(x) y <= b(x), C(x) y = d(x), an invertible block of C",
        "Min & Azizan, 2025, Appendix B",
        remark="the network emits one number less per equality",
    ),
    Method(
        "projection",
        "Exact Euclidean projection onto a polyhedron",
        "lower(x) <= A(x) y <= upper(x), any number of rows",
        "HardNet-Cvx (Min & Azizan, 2025) for polyhedra, by a batched active-set method",
        computation=ITERATIVE,
        remark="finite: it ends with the exact active set, and reports an empty C(x); up to 4 rows a fixed program",
    ),
    Method(
        "cvx",
        "HardNet-Cvx (Min & Azizan)",
        "any convex C(x): the sets of this library, their intersections, and CVXPY",
        "Min & Azizan, 2025, HardNet-Cvx",
        guarantee=Guarantee.TOLERANCE,
        computation=ITERATIVE,
        remark="boxes, balls, simplices and single quadratics by their own formula",
    ),
    Method(
        "nonlinear",
        "Nearest point of nonlinear rows, by sequential quadratic programming",
        "lower(x) <= g(y, x) <= upper(x), any smooth g, beside affine rows",
        "Gauss-Newton and SQP steps that are exact projections onto linearized rows; docs/nonlinear.md",
        guarantee=Guarantee.TOLERANCE,
        computation=ITERATIVE,
        remark="a KKT point; each sample has a status; where its rows do not hold an error, NaN or the best point; "
        "torch.export takes mode='retract' with iterations=, not nearest points",
    ),
    Method(
        "union",
        "The nearest of the pieces' nearest points",
        "y in C_1(x) or C_2(x) or ..., up to 16 pieces that projection, cvx or nonlinear takes",
        "docs/unions.md",
        guarantee=Guarantee.TOLERANCE,
        computation=ITERATIVE,
        remark="the index of the piece comes with the solution; the map jumps where two pieces are equally near",
    ),
    Method(
        "dc3",
        "DC3 (Donti, Rolnick & Kolter)",
        "lower(x) <= A(x) y <= upper(x), equalities completed",
        "Donti, Rolnick & Kolter, DC3: A learning method for optimization with hard constraints, ICLR 2021",
        guarantee=Guarantee.ASYMPTOTIC,
        computation=ITERATIVE,
        remark="equalities are exact; inequalities hold in the limit of many steps; samples stop one by one",
    ),
    Method(
        "rayen",
        "RAYEN (Tordesillas, How & Hutter)",
        "constant affine rows, quadratics, second-order cones and LMIs, with an interior",
        "Tordesillas, How & Hutter, RAYEN: Imposition of hard convex constraints on neural networks, 2023",
        input_dependence="no",
        remark="any piece about one interior point; also Konstantinov & Utkin's ray shift (2023)",
    ),
    Method(
        "linsat",
        "LinSATNet (Wang et al.)",
        "A1 y <= b1, A2 y >= b2, A3 y = b3 with non-negative numbers, 0 <= y <= 1",
        "Wang et al., LinSATNet: The positive linear satisfiability neural networks, ICML 2023",
        input_dependence="b(x)",
        guarantee=Guarantee.TOLERANCE,
        computation=ITERATIVE,
        universal_approximation=UNKNOWN,
        remark="Newton on the dual to 1e-10 instead of sweeps to 1e-3; the sweeps are an option",
    ),
    Method(
        "cdgm",
        "C-DGM (Stoian et al.)",
        "lower(x) <= A y <= upper(x) with a constant A",
        "Stoian et al., How realistic is your synthetic data? Constraining deep generative models, ICLR 2024",
        input_dependence="b(x)",
        remark="the bounds may depend on x; the defects of the published elimination are mended",
    ),
    Method(
        "cone",
        "Homogeneous inequalities (Frerix, Niessner & Cremers)",
        "A y <= 0 with a constant A",
        "Frerix, Niessner & Cremers, Homogeneous linear inequality constraints, CVPR workshops 2020",
        input_dependence="no",
        universal_approximation=UNKNOWN,
    ),
    Method(
        "police",
        "POLICE (Balestriero & LeCun)",
        "y = W x + c for all x in a polytope R, W and c learned or given",
        "Balestriero & LeCun, POLICE: Provably optimal linear constraint enforcement, ICASSP 2023",
        input_dependence="the region R",
        inequalities=False,
        universal_approximation=UNKNOWN,
        remark="it shifts the hidden layers of the network; ties are decided, unlike in the published code",
    ),
    Method(
        "kkt-hpinn",
        "KKT-hPINN (Chen, Constante-Flores & Li)",
        "A x + B y = b with a constant B",
        "Chen, Constante-Flores & Li, PINNs with hard linear equality constraints, 2024",
        input_dependence="b(x)",
        inequalities=False,
        remark="any right-hand side b(x); redundant rows that agree are dropped",
    ),
    Method(
        "acnet",
        "ACnet (Beucler et al.)",
        "C(x) y = b(x), linear after a change of variables, an invertible block of C",
        "Beucler et al., Enforcing analytic constraints in neural networks, PRL 2021",
        inequalities=False,
        remark="the network emits one number less per equality",
    ),
    Method("soft", "Soft penalty", "any", "the penalty baseline of Min & Azizan, 2025", guarantee=Guarantee.NONE),
    Method(
        "none",
        "Plain network",
        "any, ignored",
        "the unconstrained baseline of Min & Azizan, 2025",
        guarantee=Guarantee.NONE,
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
    """Table 1 of the paper: one row per method of this library.

    Registered methods follow, with what their class declares.
    """
    own = [layer for name, layer in LAYERS.items() if name not in {row.name for row in _ROWS}]
    return Methods([*_ROWS, *(_row_of(layer) for layer in own)])


def _row_of(layer: type[Layer]) -> Method:
    """The row of a registered method: anything its class does not declare is unknown."""
    title = (layer.__doc__ or layer.__name__).strip().splitlines()[0]
    return Method(
        layer.name,
        title,
        layer.accepts,
        f"{layer.__module__}.{layer.__qualname__}",
        input_dependence=UNKNOWN,
        equalities=None,
        inequalities=None,
        guarantee=layer.guarantee,
        computation=UNKNOWN,
        universal_approximation=UNKNOWN,
    )
