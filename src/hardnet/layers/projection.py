"""The exact Euclidean projection onto any polyhedron, as a layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hardnet.errors import DTypeError, OptionError, ShapeError, UnsupportedSetError, sentence
from hardnet.functional.entropic import STEPS, project_entropic, solve_entropic_rows
from hardnet.layers.base import Guarantee, Layer, not_affine, solve_layer
from hardnet.layers.constant_rows import known_equalities
from hardnet.layers.nearest import Kept, nearest, solution
from hardnet.layers.options import LayerOptions, choice, flag, metric
from hardnet.modes import HALF, refuse_transforms
from hardnet.nearest.policy import Policy
from hardnet.region import Kind, Region
from hardnet.sets.affine import Box, Equality
from hardnet.sets.base import ConstraintSet
from hardnet.sets.simplex import Sums
from hardnet.solvers.polyhedron.shared_rows import LEAST_ROWS, SharedRows, prepare_rows
from hardnet.solvers.solution import Solution, Status

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
    kept: Kept

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__(constraint, **options)
        given, soft = self.options, Kind.SOFT in constraint.kinds
        if soft and (given.strict or given.gradient != "exact" or given.on_infeasible == "nearest"):
            expected = "strict=False, gradient='exact' and no compromise beside rows that give way"
            raise OptionError(sentence("options", expected, str(given), "leave them out"))
        if soft and given.metric is not None:
            raise OptionError(sentence("metric", "none beside rows that give way", "one", "leave it out"))
        self.entropic: bool = isinstance(given.metric, str)
        if self.entropic:
            self._require_entropic()
        euclidean = given.metric is None or self.entropic
        self.metric: Metric | None = None if euclidean else Metric(given.metric, constraint.dim)
        self.kept = Kept()  # until there are constants to factorize
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
        return None if constraint.is_made_of(Kind.ROWS, Kind.SOFT) else not_affine(constraint)

    def refactor(self) -> None:
        """Factorize a constant A of many rows; any other A is factorized at each call, where that pays off."""
        plain = self.metric is None and not self.entropic
        self.kept = Kept(shared_rows_of(self.constraint) if plain else None)

    def code_at(self, raw: Tensor, x: Any) -> dict[str, Tensor]:
        """The metric at x, if it is a function."""
        return {} if self.metric is None or not self.metric.code else {"metric": self.metric(raw, x)}

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, n)`` to the nearest y ``(*batch, n)`` of C(x)."""
        return self._nearest(raw, x, self.policy(raw, x))

    def _nearest(self, raw: Tensor, x: Any, policy: Policy) -> Tensor:
        """`enforce` with the given policy."""
        if not self.entropic:
            return nearest(self.constraint, raw, x, policy, self.kept, formulas=False)
        A, b, region = entropic_rows(self.constraint, raw, x)
        ends = {"on_infeasible": policy.on_infeasible, "on_unsolved": policy.on_unsolved}
        return project_entropic(raw, A, b, on_invalid=policy.on_invalid, names=lambda: region.names(raw), **ends)

    def policy(self, raw: Tensor, x: Any) -> Policy:
        """What samples without an answer give, what gradients do, and the metric at x."""
        own = self.options
        W = None if self.metric is None else self.metric(raw, x)
        ends = own.on_infeasible, own.on_unsolved, own.on_invalid
        return Policy(*ends, own.gradient, own.strict, W, once=self.once)

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
        policy = self.policy(raw, x)
        found = solution(self.constraint, raw, x, policy, self.kept)
        if policy.on_infeasible != "nearest":
            return found
        empty = (found.status == int(Status.INFEASIBLE)).unsqueeze(-1)
        y = self._nearest(raw, x, policy._replace(on_invalid="nan"))
        return found._replace(y=torch.where(empty, y, found.y))


def not_entropic(constraint: ConstraintSet) -> str | None:
    """What keeps a set from an entropic point, in words; None where outputs >= 0 have fixed sums and no other limit."""
    for part in constraint.parts:
        if isinstance(part, Box):
            lower, upper = part.fixed("lower"), part.fixed("upper")
            absent = not part.has("upper") or (upper is not None and bool((upper == torch.inf).all()))
            if lower is None or bool((lower != 0).any()) or not absent:
                return "a box with other bounds than y >= 0"
        elif not isinstance(part, (Sums, Equality)):
            return type(part).__name__
    if not any(isinstance(part, (Box, Sums)) for part in constraint.parts):
        return "outputs that may be negative"
    return None if any(not isinstance(part, Box) for part in constraint.parts) else "no sum"


def entropic_rows(constraint: ConstraintSet, raw: Tensor, x: Any) -> tuple[Tensor, Tensor, Region]:
    """A and b of the sums, rows of zeros for those that the others imply; and the region."""
    refuse_transforms(STEPS)
    region = constraint.region_of(constraint.essential(constraint.numbers(x, raw)), raw)
    A, lower, upper = region.rows(raw)[:3]
    assert lower is not None
    assert upper is not None
    free = (lower == -torch.inf) & (upper == torch.inf)
    everywhere = free.reshape(-1, free.shape[-1]).all(0)
    rows = everywhere if bool((free == everywhere).all()) else free  # A is shared by all samples where it can be
    return torch.where(rows.unsqueeze(-1), 0.0, A), torch.where(free, 0.0, lower), region


MOST_OUTPUTS = 4096
"""The most outputs for which a layer keeps factors of its rows, which are matrices of this size."""


def shared_rows_of(constraint: ConstraintSet) -> SharedRows | None:
    """The factors of a polyhedron with many constant rows; None for any other set, and for few rows beside a box."""
    like = constraint.origin() if constraint.polyhedral else None
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
