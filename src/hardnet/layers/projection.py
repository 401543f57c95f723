"""The exact Euclidean projection onto any polyhedron, as a layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hardnet.errors import DTypeError, OptionError, ShapeError, UnsupportedSetError, sentence
from hardnet.functional.entropic import STEPS, project_entropic, solve_entropic_rows
from hardnet.functional.nearest import project_rows
from hardnet.functional.relaxed import project_small
from hardnet.functional.solve import solve_rows
from hardnet.layers.base import Guarantee, Layer, not_affine
from hardnet.layers.constant_rows import known_equalities
from hardnet.layers.options import LayerOptions, choice, flag, metric
from hardnet.modes import (
    GRAPHS,
    HALF,
    full_precision,
    input_of_set,
    look_or_nan,
    mode,
    narrow,
    refuse_transforms,
    widen,
)
from hardnet.sets.affine import Box, Equality
from hardnet.sets.base import ConstraintSet
from hardnet.sets.horizon import Banded
from hardnet.sets.simplex import Sums
from hardnet.solvers.polyhedron.shared_rows import LEAST_ROWS, SharedRows, prepare_rows
from hardnet.solvers.solution import Solution, Status
from hardnet.structure import BoxedRows

# The metric of a nearest point as an option of a layer: W of ``min (y - raw)'W(y - raw)``.


class Metric(nn.Module):
    """W at x, in the dtype and on the device of raw: a diagonal ``(n,)`` or ``(*batch, 1, n)``, or a matrix.

    A module given as the metric becomes a submodule, so that it is trained, moved and saved with the layer. A constant
    is kept in float64 and is not a buffer of the state dict: it is one of the options, which are stored separately.

    Args:
        value: Rows of numbers, n numbers, or a function or module of x.
        dim: n, or None where it is only known from the data.
    """

    constant: Tensor | None

    def __init__(self, value: Any, dim: int | None) -> None:
        super().__init__()
        self.code: bool = callable(value)
        self.function: Callable[[Any], Tensor] | None = value if self.code else None
        constant = None if self.code else torch.tensor(value, dtype=torch.float64, device="cpu")
        if constant is not None:
            _require_metric(constant, dim)
        self.register_buffer("constant", constant, persistent=False)

    def forward(self, raw: Tensor, x: Any) -> Tensor:
        """W for raw ``(*batch, n)``; a function returns raw's batch too, so the rank tells a diagonal from a matrix."""
        if self.constant is not None:
            return self.constant.to(raw)
        assert self.function is not None
        W = self.function(x)
        if not isinstance(W, Tensor):
            raise DTypeError(sentence("metric", "a function that returns a tensor", type(W).__name__))
        W = W.to(raw.dtype) if W.dtype in HALF else W
        n, diagonal = raw.shape[-1], W.dim() == raw.dim()
        if W.shape[-1:] != (n,) or not (diagonal or (W.dim() == raw.dim() + 1 and W.shape[-2] == n)):
            batch = ", ".join(map(str, raw.shape[:-1]))
            expected = f"shape ({batch}, {n}) or ({batch}, {n}, {n}) from a function of x"
            raise ShapeError(sentence("metric", expected, tuple(W.shape)))
        return W.unsqueeze(-2) if diagonal else W  # diagonals (n, n) for n samples would look like a matrix

    def extra_repr(self) -> str:
        """Its shape, or where it comes from."""
        return "function of x" if self.constant is None else str(tuple(self.constant.shape))


def _require_metric(W: Tensor, dim: int | None) -> None:
    """Refuse a constant that is not a metric on n outputs."""
    if dim is not None and W.shape[-1] != dim:
        raise ShapeError(sentence("metric", f"({dim},) or ({dim}, {dim}) numbers", tuple(W.shape)))
    got = _defect(W)
    if got is not None:
        raise OptionError(sentence("metric", "positive numbers, or a symmetric positive definite matrix", got))


def _defect(W: Tensor) -> str | None:
    """Why a vector or a matrix is not a metric; None where it is one."""
    if W.dim() == 1:
        return f"{W.min().item():g} among them" if bool((W <= 0).any()) else None
    across = (W - W.mT).abs().amax().item()
    if across > 1e-6 * W.abs().amax().item():  # a matrix computed in float32 is symmetric to about this precision
        return f"a matrix with |W - W'| up to {across:.3g}"
    if int(torch.linalg.cholesky_ex(W)[1]) == 0:
        return None
    return f"a matrix with the eigenvalue {torch.linalg.eigvalsh(W)[0].item():.3g}"


class Projection(Layer):
    """``y = argmin |y - raw|  s.t.  lower(x) <= A(x) y <= upper(x)``, for any number of rows.

    Unlike the closed form of HardNet-Aff it accepts more rows than outputs, and dependent, duplicated and redundant
    rows, and never moves further than the nearest feasible point. It is non-expansive: ``|y - y'| <= |raw - raw'|``.
    Coordinates of a box hold exactly: they are bounds, never rows. Up to 4 rows are solved by a fixed program;
    `hn.explain` reports the structure of a set.

    Args:
        constraint: A polyhedral set: `Affine`, `Equality`, `Box`, `Simplex`, or `&` of these, some of them `Relaxed`.
        on_infeasible: What to do with an empty C(x): ``"raise"`` an `InfeasibleError` that names samples and rows,
            return the compromise (``"nearest"``), or ``"nan"`` for that sample alone; ``"auto"`` raises on a CPU and
            returns NaN on CUDA and under compile, export and vmap.
        on_unsolved: What to do with a sample that is neither solved nor proved empty: ``"raise"`` a `ConvergenceError`
            with the `.solution` of the whole batch, return ``"nan"`` for that sample alone, or the ``"best"`` point
            found, which may be outside; ``"auto"`` raises on a CPU and returns NaN elsewhere.
        on_invalid: What to do with NaN or lower > upper: ``"raise"`` an error that names the samples, or return
            ``"nan"`` for these alone.
        strict: Whether inequality rows must hold for the returned floating-point numbers in exact arithmetic.
        gradient: ``"exact"``, or ``"tangent"``, which also passes the part that pulls a violated row back inside.
        metric: W of ``min (y - raw)'W(y - raw)``: n positive numbers (a diagonal), a positive definite matrix
            ``(n, n)``, or a function or module of x that returns ``(*batch, n)`` or ``(*batch, n, n)``; a module is
            trained with the network. None is the identity. ``"entropy"``, for outputs >= 0 with fixed sums (`Simplex`,
            `Transport`, `DoublyStochastic`, `Equality` beside ``Box(lower=0)``), reads raw as logits: y is the point
            nearest to ``exp(raw)`` in relative entropy, the limit of Sinkhorn's sweeps.
    """

    name = "projection"
    accepts = "affine rows lower(x) <= A(x) y <= upper(x), any number of them, dependent or not"
    guarantee = Guarantee.EXACT
    traceable = False

    @dataclass(frozen=True)
    class Options(LayerOptions):
        """The options above."""

        on_infeasible: Literal["auto", "raise", "nearest", "nan"] = choice("auto", "raise", "nearest", "nan")
        on_unsolved: Literal["auto", "raise", "nan", "best"] = choice("auto", "raise", "nan", "best")
        on_invalid: Literal["raise", "nan"] = choice("raise", "nan")
        strict: bool = flag(default=False)
        gradient: Literal["exact", "tangent"] = choice("exact", "tangent")
        metric: Any = metric()  # noqa: RUF009  a field, like the others

    options: Options
    shared: SharedRows | None = None
    """Factors of a constant A with many rows; not part of the state."""

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__(constraint, **options)
        given = self.options
        if constraint.relaxed and (given.strict or given.gradient != "exact" or given.on_infeasible == "nearest"):
            expected = "strict=False, gradient='exact' and no compromise beside rows that give way"
            raise OptionError(sentence("options", expected, str(given), "leave them out"))
        if constraint.relaxed and given.metric is not None:
            raise OptionError(sentence("metric", "none beside rows that give way", "one", "leave it out"))
        self.entropic: bool = isinstance(given.metric, str)
        if self.entropic:
            self._require_entropic()
        euclidean = given.metric is None or self.entropic
        self.metric: Metric | None = None if euclidean else Metric(given.metric, constraint.dim)
        self.refresh()

    @property
    def identity_inside(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Not where raw are logits."""
        return not self.entropic

    def _require_entropic(self) -> None:
        """Refuse sets and options for which there is no entropic point."""
        given = self.options
        if given.strict or given.gradient != "exact" or given.on_infeasible == "nearest":
            expected = "strict=False, gradient='exact' and no compromise beside metric='entropy'"
            raise OptionError(sentence("options", expected, str(given), "leave them out"))
        reason = not_entropic(self.constraint)
        if reason is not None:
            expected = (
                "outputs >= 0 with fixed sums: Simplex, Transport, DoublyStochastic, Equality beside Box(lower=0)"
            )
            raise UnsupportedSetError(sentence("metric='entropy'", expected, reason))

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Only polyhedral sets; their rows may be relaxed."""
        if not (constraint.polyhedral or (constraint.relaxed and constraint.projectable)):
            return not_affine(constraint)
        return None

    def refactor(self) -> None:
        """Factorize a constant A of many rows; any other A is factorized at each call, where that pays off."""
        plain = self.metric is None and not self.entropic
        self.shared = shared_rows_of(self.constraint) if plain else None

    def code_at(self, raw: Tensor, x: Any) -> dict[str, Tensor]:
        """The metric at x, if it is a function."""
        return {} if self.metric is None or not self.metric.code else {"metric": self.metric(raw, x)}

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, n)`` to the nearest y ``(*batch, n)`` of C(x)."""
        return self._nearest(raw, x, self.options.on_invalid)

    def _nearest(self, raw: Tensor, x: Any, on_invalid: str) -> Tensor:
        """`enforce` with the given policy for bad numbers."""
        if self.entropic:
            A, b, numbers = entropic_rows(self.constraint, raw, x)
            names = lambda: _names(self.constraint, numbers, raw, boxed=True)
            given = {"on_infeasible": self.options.on_infeasible, "on_unsolved": self.options.on_unsolved}
            return project_entropic(raw, A, b, on_invalid=on_invalid, names=names, **given)
        weights = self._weights(raw, x)
        if weights is not None and self.constraint.projectable:
            options = {"on_infeasible": look_or_nan(self.options.on_infeasible, raw), "on_invalid": on_invalid}
            return self.constraint.project(self.constraint.numbers(x, raw), raw, weights=weights, **options)  # pyright: ignore[reportCallIssue]
        known = None
        if weights is not None:
            assert isinstance(self.constraint, Banded)
            known = self.constraint.by_bands(self.constraint.numbers(x, raw), raw, weights)
            whole = None if known is None else self._completed(raw, x, known, weights)
            if whole is not None:
                return whole
        y = self._by_rows(raw, x, on_invalid)
        return y if known is None else torch.where(known[1].unsqueeze(-1), known[0], y)

    def _completed(self, raw: Tensor, x: Any, known: tuple[Tensor, Tensor], weights: Tensor) -> Tensor | None:
        """Y with the samples that are left solved by their rows; None where one has no answer."""
        y, left = known[0], ~known[1]
        if not bool(left.any()):
            return y
        pick = lambda part, core: (
            part if part.dim() == core else part.expand((*raw.shape[:-1], *part.shape[-core:]))[left]
        )
        rows = self.constraint.structure(self.constraint.numbers(x, raw), raw).map(pick)
        metric = None if self.metric is None else weights.expand_as(raw)[left].unsqueeze(-2)
        quiet: Any = {"on_infeasible": "nan", "on_unsolved": "nan", "on_invalid": "nan"}
        rest = project_rows(raw[left], rows, metric=metric, **quiet)
        return y.masked_scatter(left.unsqueeze(-1), rest) if bool(rest.isfinite().all()) else None

    def _by_rows(self, raw: Tensor, x: Any, on_invalid: str) -> Tensor:
        """`_nearest` by the solver for the structure of the rows."""
        policies = {
            "on_infeasible": self.options.on_infeasible,
            "on_unsolved": self.options.on_unsolved,
            "on_invalid": on_invalid,
            "gradient": self.options.gradient,
            "once": self.once,
        }
        return nearest_point(self.constraint, raw, x, **policies, **self._given(raw, x))

    def _weights(self, raw: Tensor, x: Any) -> Tensor | None:
        """The diagonal of the metric for a set with an algorithm that takes it; None where rows are projected onto."""
        own, given = self.constraint, self.options
        plain = not given.strict and given.gradient == "exact" and given.on_infeasible != "nearest"
        if not (own.weighable and plain):
            return None
        if self.metric is None:
            return raw.new_ones(raw.shape[-1])
        W = self.metric(raw, x)
        if W.dim() == 1:
            return W
        return W.squeeze(-2) if W.shape[-2] == 1 and raw.shape[-1] > 1 else None

    def _given(self, raw: Tensor, x: Any) -> dict[str, Any]:
        """The options that `solve` and the projection share."""
        given: dict[str, Any] = {"strict": self.options.strict}
        if self.metric is not None:
            given["metric"] = self.metric(raw, x)
        if self.shared is not None and mode() not in GRAPHS:  # compiled code uses a fixed program
            given["shared"] = self.shared
        return given

    def solve(self, raw: Tensor, x: Any = None) -> Solution:
        """The nearest point with its dual, status, iterations and residual, on the device of raw.

        ``raw - y = A'dual_rows + dual_box`` (times W on the left for a metric; ``log y = raw + A'dual`` for
        ``metric="entropy"``), without derivatives. No error is raised
        for a sample: `Status` says which are SOLVED or FEASIBLE; y of the others is NaN, unless
        ``on_infeasible="nearest"`` asks for the compromise, or ``on_unsolved="best"`` for the last point. It does not
        wait for a GPU, and works in compiled, exported and mapped code.

        Args:
            raw: ``(*batch, n)``.
            x: The input.

        Returns:
            `hardnet.solvers.Solution`; `dual` is ``(*batch, m)`` for m general rows, or ``(*batch, m + n)`` if there is
            a box, whose coordinates come last: `constraint.structure_names` names them in order.
        """
        return solve_layer(self, raw, x, self._find)

    def _find(self, raw: Tensor, x: Any) -> Solution:
        """`solve` in float32 or float64."""
        if self.entropic:
            return solve_entropic_rows(raw, *entropic_rows(self.constraint, raw, x)[:2])
        best = self.options.on_unsolved == "best"
        found = solve_set(self.constraint, raw, x, best=best, **self._given(raw, x))
        if self.options.on_infeasible != "nearest":
            return found
        empty = (found.status == int(Status.INFEASIBLE)).unsqueeze(-1)
        return found._replace(y=torch.where(empty, self._nearest(raw, x, "nan"), found.y))


def not_entropic(constraint: ConstraintSet) -> str | None:
    """What keeps a set from an entropic point, in words; None where outputs >= 0 have fixed sums and no other limit."""
    for part in constraint.parts:
        if isinstance(part, Box):
            lower, upper = part.fixed("lower"), part.fixed("upper")
            absent = not part.has("upper") or (upper is not None and bool((upper == torch.inf).all()))
            if lower is None or bool((lower != 0).any()) or not absent:
                return "a box with other bounds than y >= 0"
        elif part.compressed or not isinstance(part, (Sums, Equality)):
            return type(part).__name__
    if not any(isinstance(part, (Box, Sums)) for part in constraint.parts):
        return "outputs that may be negative"
    return None if any(not isinstance(part, Box) for part in constraint.parts) else "no sum"


def entropic_rows(constraint: ConstraintSet, raw: Tensor, x: Any) -> tuple[Tensor, Tensor, Any]:
    """A and b of the sums, rows of zeros for those that the others imply; and the numbers of C(x)."""
    refuse_transforms(STEPS)
    numbers = constraint.numbers(x, raw)
    A, lower, upper = constraint.structure(constraint.essential(numbers), raw)[:3]
    assert lower is not None
    assert upper is not None
    free = (lower == -torch.inf) & (upper == torch.inf)
    everywhere = free.reshape(-1, free.shape[-1]).all(0)
    rows = everywhere if bool((free == everywhere).all()) else free  # A is shared by all samples where it can be
    return torch.where(rows.unsqueeze(-1), 0.0, A), torch.where(free, 0.0, lower), numbers


MOST_OUTPUTS = 4096
"""The most outputs for which a layer keeps factors of its rows, which are matrices of this size."""


def shared_rows_of(constraint: ConstraintSet) -> SharedRows | None:
    """The factors of a polyhedron with many constant rows; None for any other set, and for few rows beside a box."""
    like = constraint.origin() if constraint.polyhedral and not constraint.relaxed else None
    if like is None or not 1 < like.shape[-1] <= MOST_OUTPUTS:
        return None
    A = constraint.fixed_matrix(like)
    if A is None or len(A) < LEAST_ROWS or (_box_beside(A) and like.is_cpu):
        return None
    equality = torch.zeros(len(A), dtype=torch.bool)
    equality[known_equalities(constraint) or []] = True
    return prepare_rows(A, equality)


def _box_beside(A: Tensor) -> bool:
    """Whether there are bounds of single outputs beside other rows, or alone."""
    return int(((A != 0).sum(-1) > 1).sum()) < len(A)


@torch.no_grad()
def solve_layer(layer: Layer, raw: Tensor, x: Any, find: Callable[[Tensor, Any], Solution]) -> Solution:
    """The solution of `find` for a layer, whose constants move to raw; half precision is solved in float32."""
    layer.settle(raw)
    found = _find_precisely(widen(raw), input_of_set(x, raw), find)
    y = narrow(found.y, raw.dtype, "nan") if raw.dtype in HALF else found.y
    return Solution(y, *found[1:])  # torch 2.11 cannot compile returning a record made by `_replace`


@full_precision
def _find_precisely(raw: Tensor, x: Any, find: Callable[[Tensor, Any], Solution]) -> Solution:
    """Call `find` with autocast off; x was converted before, depending on autocast."""
    return find(raw, x)


def solve_set(constraint: ConstraintSet, raw: Tensor, x: Any, **options: Any) -> Solution:
    """The full solution behind `nearest_point`; multipliers of general rows first, then those of the box."""
    if constraint.relaxed:
        raise UnsupportedSetError(sentence("constraint", "rows that do not give way", "Relaxed", "call the layer"))
    numbers = constraint.essential(constraint.numbers(x, raw))
    structure = constraint.structure(numbers, raw)
    if options.get("shared") is None or not structure.boxed:
        return solve_rows(raw, structure, **options)
    found = solve_rows(raw, BoxedRows(*constraint.rows(numbers, raw)), **options)
    return found._replace(dual=_box_last(constraint, numbers, raw, found.dual))


def _box_last(
    constraint: ConstraintSet, numbers: Any, raw: Tensor, dual: Tensor, join: Callable[..., Tensor] = torch.sum
) -> Tensor:
    """Reorder multipliers of `constraint.rows`, where each member has its coordinates first, to put the box last.

    `join` makes one number of those of several boxes.
    """
    general, box = [], []
    for part, own in zip(constraint.parts, numbers if len(constraint.parts) > 1 else (numbers,), strict=True):
        count, k = part.row_count(own, raw), part.structure(own, raw).A.shape[-2]
        coordinates, rows, dual = dual.split([count - k, k, dual.shape[-1] - count], dim=-1)
        general.append(rows)
        box.extend(coordinates.split(raw.shape[-1], dim=-1) if count > k else [])
    return torch.cat([*general, join(torch.stack(box), 0)], dim=-1)


def nearest_point(constraint: ConstraintSet, raw: Tensor, x: Any, **options: Any) -> Tensor:
    """The projection onto a polyhedral set, by the solver for its structure; errors speak of rows by their names."""
    numbers = constraint.numbers(x, raw)
    if mode() == "export" and (y := _by_faces(constraint, numbers, raw, options)) is not None:
        return y
    if constraint.relaxed:
        policies = ("on_infeasible", "on_unsolved", "on_invalid", "once")
        return constraint.project(numbers, raw, **{name: options[name] for name in policies})
    as_rows = options.get("shared") is not None or options.get("metric") is not None  # neither supports a box
    solved = constraint.essential(numbers)
    rows = BoxedRows(*constraint.rows(solved, raw)) if as_rows else constraint.structure(solved, raw)
    if mode() not in GRAPHS:  # which raise nothing
        options["names"] = lambda: _names(constraint, numbers, raw, boxed=rows.boxed)
    return project_rows(raw, rows, **options)


def _by_faces(constraint: ConstraintSet, numbers: Any, raw: Tensor, options: dict[str, Any]) -> Tensor | None:
    """The nearest point of few rows beside a box, or of rows that may give way, where their faces are few."""
    asked = options["on_infeasible"], options["on_unsolved"]
    if "raise" in asked or options["strict"] or options.get("metric") is not None or constraint.compressed:
        return None  # refused elsewhere, or solved by a program of its own
    members = zip(constraint.parts, numbers if len(constraint.parts) > 1 else (numbers,), strict=True)
    soft = [part.relaxed for part, own in members for _ in range(part.structure(own, raw).A.shape[-2])]
    rows = constraint.structure(numbers, raw)
    if not soft or not (any(soft) or asked[0] == "nearest" or rows.boxed):
        return None
    return project_small(raw, rows, soft, asked[0])


def _names(constraint: ConstraintSet, numbers: Any, raw: Tensor, *, boxed: bool) -> list[tuple[int, str]]:
    """For each general row and then for each coordinate of the box: its row in the set, and its name."""
    if not boxed:
        return list(enumerate(constraint.row_names(numbers, raw)))
    general, box = constraint.structure_names(numbers, raw)
    place = torch.arange(constraint.row_count(numbers, raw), device=raw.device).unsqueeze(0)
    order = _box_last(constraint, numbers, raw, place, torch.amin).squeeze(0).tolist()
    return list(zip(order, [*general, *box], strict=True))
