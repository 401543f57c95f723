"""Affine rows with a sparse constant matrix: ``lower(x) <= A y <= upper(x)``, never written densely."""

from __future__ import annotations

from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import DeviceError, DTypeError, InfeasibleError, ShapeError, sentence
from hardnet.functional.sparse_rows import project_sparse_affine, solve_sparse_affine
from hardnet.modes import outside_compiler, refuse_transforms
from hardnet.sets.affine import interval_residual, interval_scale
from hardnet.sets.base import ConstraintSet, Name, Number
from hardnet.solvers.polyhedron.sparse_rows import SparseRows, prepare_sparse
from hardnet.solvers.solution import Solution
from hardnet.structure import join


class SparseNumbers(NamedTuple):
    """A in compressed rows, ``crow (m + 1,)``, ``col`` and ``values`` ``(k,)``, and the bounds of its rows at x."""

    crow: Tensor
    col: Tensor
    values: Tensor
    lower: Tensor | None
    upper: Tensor | None


class SparseAffine(ConstraintSet):
    """``lower(x) <= A y <= upper(x)`` with A kept as three plain buffers; ``hn.Affine(A.to_sparse_csr(), ...)`` is it.

    It has a projection of its own (method ``"cvx"``, which ``"auto"`` takes), by sparse factors of scipy on a CPU: the
    extra ``sparse``. Certificates add up the entries that are there. Rows of all kinds may go into one matrix: an
    equality has ``lower == upper``, a bound on an output is a row of the identity, and holds exactly. ``&`` of sparse
    rows, boxes, simplices and constant dense rows does that.

    Args:
        crow: Where each row begins among the entries, ``(m + 1,)`` int.
        col: The output of each entry, ``(k,)`` int.
        values: The entries, ``(k,)``.
        dim: n.
        lower: ``(m,)`` or a number for all rows, or a function that returns ``(*batch, m)``.
        upper: Like `lower`.
        equality: Whether `lower` is the right-hand side of equalities, and there is no `upper`.
        name: What errors and certificates call these rows, or a list of names, one for each row.
    """

    projectable = True
    compressed = True
    same_rows = True

    def __init__(
        self,
        crow: Tensor,
        col: Tensor,
        values: Tensor,
        dim: int,
        *,
        lower: Number | None = None,
        upper: Number | None = None,
        equality: bool = False,
        name: Name = None,
    ) -> None:
        super().__init__(name)
        if lower is None and upper is None:
            raise ShapeError(sentence("lower, upper", "at least one bound", "none", "pass lower=, upper= or both"))
        self._sizes |= {"n": int(dim), "m": len(crow) - 1}
        self.equality = bool(equality)
        self.register_buffer("crow", crow.detach().clone())
        self.register_buffer("col", col.detach().clone())
        self.take("values", values.detach(), ("k",), "finite")
        self.take("lower", lower, ("m",), "lower")
        self.take("upper", upper, ("m",), "upper")
        self._check_bounds()
        self._factors = Factors()

    def numbers(self, x: Any, like: Tensor) -> SparseNumbers:
        """A in compressed rows and the bounds at x, with one entry per row."""
        m = self._sizes["m"]
        values = self.number("values", x, like)
        lower, upper = (self.number(side, x, like, m=m) if self.has(side) else None for side in ("lower", "upper"))
        return SparseNumbers(
            self.get_buffer("crow"), self.get_buffer("col"), values, lower, lower if self.equality else upper
        )

    def residual(self, numbers: SparseNumbers, y: Tensor) -> Tensor:
        """``relu(A y - upper) + relu(lower - A y)``."""
        return interval_residual(product(numbers, numbers.values, y), numbers.lower, numbers.upper)

    def scale(self, numbers: SparseNumbers, y: Tensor) -> Tensor:
        """``|a|_1 |y|_inf + |bounds|``, row by row."""
        size = product(numbers, numbers.values.abs(), torch.ones_like(y[..., :1]).expand_as(y))
        return interval_scale(size, y, numbers.lower, numbers.upper)

    def row_count(self, numbers: SparseNumbers, like: Tensor) -> int:
        """M."""
        return self._sizes["m"]

    @outside_compiler
    def project(
        self,
        numbers: SparseNumbers,
        raw: Tensor,
        *,
        on_infeasible: str = "raise",
        on_unsolved: str = "auto",
        on_invalid: str = "raise",
    ) -> Tensor:
        """The exact projection, by sparse factors that are made once."""
        policies: dict[str, Any] = {
            "on_infeasible": on_infeasible,
            "on_unsolved": on_unsolved,
            "on_invalid": on_invalid,
        }
        rows = self._factors.of([numbers.values], numbers, raw)
        try:
            return project_sparse_affine(raw, rows, numbers.lower, numbers.upper, **policies)
        except InfeasibleError as error:
            raise error.named(self.row_names(numbers, raw)) from None

    @outside_compiler
    def solve(self, raw: Tensor, x: Any = None) -> Solution:
        """The projection with its `Solution`: status, residual, exchanges of rows and multipliers of each sample."""
        numbers = self.numbers(x, raw)
        rows = self._factors.of([numbers.values], numbers, raw)
        return solve_sparse_affine(raw, rows, numbers.lower, numbers.upper)


class Factors:
    """The factors of sparse rows, made once: a move or a load brings other tensors, and other factors."""

    def __init__(self) -> None:
        self._source: list[Tensor] = []
        self._rows: SparseRows | None = None

    def of(self, source: list[Tensor], numbers: SparseNumbers, raw: Tensor) -> SparseRows:
        """The factors of rows whose entries come from the tensors `source`; on a CPU, outside of transforms."""
        refuse_transforms("the projection onto sparse rows")
        if raw.device.type != "cpu":
            raise DeviceError(sentence("raw", "a tensor on the CPU beside sparse rows", raw.device, "give A densely"))
        same = len(source) == len(self._source) and all(map(is_, source, self._source))
        if self._rows is None or not same:
            self._source, self._rows = source, prepare_sparse(*numbers[:3], raw.shape[-1])
        return self._rows


@outside_compiler
def project_compressed(
    parts: list[ConstraintSet], numbers: tuple[Any, ...], raw: Tensor, factors: Factors, **policies: Any
) -> Tensor:
    """The exact projection onto several sets that all have the `same_rows` for every sample, kept sparse.

    Args:
        parts: The sets.
        numbers: The numbers of each.
        raw: ``(*batch, n)``.
        factors: What was prepared before.
        policies: What empty and invalid sets give.
    """
    return project_sparse_affine(raw, *_joined(parts, numbers, raw, factors), **policies)


@outside_compiler
def solve_compressed(parts: list[ConstraintSet], numbers: tuple[Any, ...], raw: Tensor, factors: Factors) -> Solution:
    """`project_compressed` with its `Solution`; multipliers in the order of the members' rows."""
    return solve_sparse_affine(raw, *_joined(parts, numbers, raw, factors))


def _joined(
    parts: list[ConstraintSet], numbers: tuple[Any, ...], raw: Tensor, factors: Factors
) -> tuple[SparseRows, Tensor | None, Tensor | None]:
    """The factors of all rows, one below the other, and their bounds."""
    whole = join_compressed([compressed_rows(*pair, raw) for pair in zip(parts, numbers, strict=True)])
    fixed = [part.fixed(name) for part in parts for name in ("values", "A")]
    rows = factors.of([entries for entries in fixed if entries is not None], whole, raw)
    return rows, whole.lower, whole.upper


def compressed_rows(part: ConstraintSet, numbers: Any, like: Tensor) -> SparseNumbers:
    """The rows of a set in compressed form, in the order of its `row_names`: those of a box are the identity's."""
    if isinstance(numbers, SparseNumbers):
        return numbers
    rows, n = part.structure(numbers, like), like.shape[-1]
    present = rows.A != 0
    crow = torch.nn.functional.pad(present.sum(-1).cumsum(0), (1, 0))
    general = SparseNumbers(crow, present.nonzero()[:, 1], rows.A[present], rows.lower, rows.upper)
    if not rows.boxed:
        return general
    place = torch.arange(n + 1, device=like.device)
    box = SparseNumbers(place, place[:-1], like.new_ones(n), rows.box_lower, rows.box_upper)
    return join_compressed([box, general]) if len(rows.A) else box


def join_compressed(parts: list[SparseNumbers]) -> SparseNumbers:
    """The rows of all parts, one below the other."""
    starts = torch.tensor([0, *(len(part.values) for part in parts)], device=parts[0].crow.device).cumsum(0)
    crow = torch.cat([starts[:1], *(part.crow[1:] + start for part, start in zip(parts, starts, strict=False))])
    col, values = (torch.cat(entries) for entries in zip(*(part[1:3] for part in parts), strict=True))
    absent = [values.new_full((len(part.crow) - 1,), torch.inf) for part in parts]
    lower = [-none if part.lower is None else part.lower for part, none in zip(parts, absent, strict=True)]
    upper = [none if part.upper is None else part.upper for part, none in zip(parts, absent, strict=True)]
    return SparseNumbers(crow, col, values, join(lower), join(upper))


def sparse_set(kind: type[ConstraintSet], A: Tensor, *rest: Any, **named: Any) -> SparseAffine:
    """What ``hn.Affine`` or ``hn.Equality`` of a sparse A is."""
    if A.layout is not torch.sparse_csr or A.dim() != 2:
        raise DTypeError(sentence("A", "a dense tensor or one in compressed rows", A.layout, "use A.to_sparse_csr()"))
    if A.requires_grad:
        raise DTypeError(sentence("A", "a constant where it is sparse", "one that asks for a gradient", "detach it"))
    parts = A.crow_indices(), A.col_indices(), A.values(), A.shape[-1]
    if kind.declares_equalities:
        b = named.pop("b") if "b" in named else rest[0]
        return SparseAffine(*parts, lower=b, equality=True, **named)
    return SparseAffine(*parts, *rest, **named)


def product(numbers: SparseNumbers, values: Tensor, y: Tensor) -> Tensor:
    """``A y`` ``(*batch, m)``, entry by entry."""
    counts = numbers.crow.diff()
    row = torch.repeat_interleave(torch.arange(len(counts), device=y.device), counts)
    terms = values * y[..., numbers.col.long()]
    return y.new_zeros(*y.shape[:-1], len(counts)).index_add(-1, row, terms)
