"""Affine rows with a sparse constant matrix: ``lower(x) <= A y <= upper(x)``, never written densely."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.errors import DTypeError, ShapeError, sentence
from hardnet.region import Kind, SparseNumbers
from hardnet.sets.base import ConstraintSet, Name, Number


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

    kind = Kind.SPARSE

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

    def numbers(self, x: Any, like: Tensor) -> SparseNumbers:
        """A in compressed rows and the bounds at x, with one entry per row."""
        m = self._sizes["m"]
        values = self.number("values", x, like)
        lower, upper = (self.number(side, x, like, m=m) if self.has(side) else None for side in ("lower", "upper"))
        return SparseNumbers(
            self.get_buffer("crow"), self.get_buffer("col"), values, lower, lower if self.equality else upper
        )

    def data(self, numbers: SparseNumbers, like: Tensor) -> SparseNumbers:
        """The numbers themselves."""
        return numbers


def sparse_set(kind: type[ConstraintSet], A: Tensor, *rest: Any, **named: Any) -> SparseAffine:
    """What ``hn.Affine`` or ``hn.Equality`` of a sparse A is."""
    if A.layout is not torch.sparse_csr or A.dim() != 2:
        raise DTypeError(sentence("A", "a dense tensor or one in compressed rows", A.layout, "use A.to_sparse_csr()"))
    if A.requires_grad:
        raise DTypeError(sentence("A", "a constant where it is sparse", "one that asks for a gradient", "detach it"))
    parts = A.crow_indices(), A.col_indices(), A.values(), A.shape[-1]
    if kind.all_equal:
        b = named.pop("b") if "b" in named else rest[0]
        return SparseAffine(*parts, lower=b, equality=True, **named)
    return SparseAffine(*parts, *rest, **named)
