"""Affine rows with a sparse constant matrix: ``lower(x) <= A y <= upper(x)``, never written densely."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import DTypeError, ShapeError, sentence
from hardnet.functional.sparse_rows import project_sparse_affine
from hardnet.sets.affine import interval_residual, interval_scale
from hardnet.sets.base import ConstraintSet, Number
from hardnet.solvers.sparse_factor import SparseRows, prepare_sparse


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
    extra ``sparse``. Certificates add up the entries that are there. Rows of all kinds go into one matrix: an equality
    has ``lower == upper``, a bound on an output is a row of the identity, and holds exactly.

    Args:
        crow: Where each row begins among the entries, ``(m + 1,)`` int.
        col: The output of each entry, ``(k,)`` int.
        values: The entries, ``(k,)``.
        dim: n.
        lower: ``(m,)`` or a number for all rows, or a function that returns ``(*batch, m)``.
        upper: Like `lower`.
        equality: Whether `lower` is the right-hand side of equalities, and there is no `upper`.
        name: What errors and certificates call these rows.
    """

    projectable = True

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
        name: str | None = None,
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
        self._factors: tuple[Tensor, SparseRows] | None = None

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
        return interval_residual(_product(numbers, numbers.values, y), numbers.lower, numbers.upper)

    def scale(self, numbers: SparseNumbers, y: Tensor) -> Tensor:
        """``|a|_1 |y|_inf + |lower| + |upper|``, row by row."""
        size = _product(numbers, numbers.values.abs(), torch.ones_like(y[..., :1]).expand_as(y))
        return interval_scale(size * y.abs().amax(-1, keepdim=True), numbers.lower, numbers.upper)

    def row_count(self, numbers: SparseNumbers, like: Tensor) -> int:
        """M."""
        return self._sizes["m"]

    def project(
        self, numbers: SparseNumbers, raw: Tensor, *, on_infeasible: str = "raise", on_invalid: str = "raise"
    ) -> Tensor:
        """The exact projection, by sparse factors that are made once."""
        policies = {"on_infeasible": on_infeasible, "on_invalid": on_invalid}
        return project_sparse_affine(raw, self._prepared(numbers.values), numbers.lower, numbers.upper, **policies)

    def _prepared(self, values: Tensor) -> SparseRows:
        """The factors of the entries as they are now: a move or a load brings another tensor."""
        if self._factors is None or self._factors[0] is not values:
            rows = prepare_sparse(self.get_buffer("crow"), self.get_buffer("col"), values, self._sizes["n"])
            self._factors = values, rows
        return self._factors[1]


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


def _product(numbers: SparseNumbers, values: Tensor, y: Tensor) -> Tensor:
    """``A y`` ``(*batch, m)``, entry by entry."""
    counts = numbers.crow.diff()
    row = torch.repeat_interleave(torch.arange(len(counts), device=y.device), counts)
    terms = values * y[..., numbers.col.long()]
    return y.new_zeros(*y.shape[:-1], len(counts)).index_add(-1, row, terms)
