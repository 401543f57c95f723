"""The record of a batch of affine rows: checked, flattened and classified once where arguments enter.

`Batch` is a flat batch of raw outputs with their rows, which the functions on rows, the solvers and the kernels read.
`BoxedRows` is what polyhedral sets hand out: general rows beside a box, whose n rows are never written as a matrix
unless someone asks for `dense`.

Called by `hardnet.kernels.cpu.affine`, `hardnet.kernels.cpu.launch` and others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.modes import HALF, plain
from hardnet.shapes import check_affine, joint_batch, require_like

REALS = (torch.float64, torch.float32)
MOST_FEW_ROWS = 4
"""The most rows of the fixed program for the nearest point; each further row doubles it."""
MOST_BOX_ROWS = 8
"""The most rows beside a box that are solved in their multipliers."""

Structure = Literal["few rows in a box", "box and few rows", "few rows", "rows"]
"""What decides who projects onto a polyhedron: `hardnet.functional.nearest.PROJECTIONS`."""


class Batch(NamedTuple):
    """``lower <= A y <= upper`` for every sample of a flat batch; half types are widened to float32.

    Attributes:
        raw: ``(B, n)``.
        A: ``(B, m, n)``, or ``(m, n)`` for all samples.
        lower: ``(B, m)``, or ``(m,)`` for all samples, or None.
        upper: Like `lower`.
        factor: ``A⁺'`` where the caller keeps it, like A.
        shape: The batch as it was given, for answers and for errors that name samples.
        memory: Whether all are plain memory, which kernels may read and nothing transforms.
        trivial: Whether there is nothing to enforce: no sample, no row, or no bound.
    """

    raw: Tensor
    A: Tensor
    lower: Tensor | None
    upper: Tensor | None
    factor: Tensor | None = None
    shape: torch.Size = torch.Size()
    memory: bool = False
    trivial: bool = False

    @property
    def learned(self) -> bool:
        """Whether a derivative is asked for."""
        raw, A, lower, upper = self[:4]
        asked = raw.requires_grad or A.requires_grad
        asked = asked or (lower is not None and lower.requires_grad) or (upper is not None and upper.requires_grad)
        return asked and torch.is_grad_enabled()

    def take(self, index: Tensor) -> Batch:
        """The samples of an index ``(k,)``, as a batch of k."""
        parts = ((self.A, 2), (self.lower, 1), (self.upper, 1), (self.factor, 2))
        own: list[Any] = [part if part is None or part.dim() == core else part[index] for part, core in parts]
        return Batch(self.raw[index], *own, shape=torch.Size((len(index),)), memory=self.memory)


def take_rows(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | float | None,
    upper: Tensor | float | None,
    factor: Tensor | None = None,
) -> Batch:
    """The record of these arguments, of any batch rank; an error says what does not fit together.

    Args:
        raw: ``(*batch, n)``.
        A: ``(m, n)`` or ``(*batch, m, n)``.
        lower: ``(m,)``, ``(*batch, m)``, a number for all rows, or None.
        upper: Like `lower`.
        factor: Like A, or None.
    """
    if _ready(raw, A, lower, upper, factor):
        return Batch(raw, A, lower, upper, factor, raw.shape[:1], True)  # pyright: ignore[reportArgumentType]
    batch, low, high = check_affine(raw, A, lower, upper)
    if factor is not None:
        require_like("factor", factor, A)
        if factor.shape != A.shape:
            expected = f"the shape of A, {tuple(A.shape)}"
            raise ShapeError(sentence("factor", expected, tuple(factor.shape), "call factorize(A)"))
    parts = ((raw, 1, False), (A, 2, True), (low, 1, True), (high, 1, True), (factor, 2, True))
    flat: Any = [None if part is None else _flat(part, batch, core, share) for part, core, share in parts]
    trivial = 0 in batch or 0 in A.shape[-2:] or (lower is None and upper is None)
    return Batch(*flat, shape=batch, memory=plain(*flat), trivial=trivial)


def _ready(raw: Any, A: Any, lower: Any, upper: Any, factor: Any) -> bool:
    """Whether these need no further check and no other shape; what is odd about others `check_affine` says.

    That is raw ``(B, n)``, A ``(B, m, n)`` or ``(m, n)`` with a factor of its shape or none, bounds ``(B, m)`` or
    ``(m,)`` or one None, plain, not empty, and of one dtype on one device.
    """
    if not plain(raw, A, lower, upper, factor) or (lower is None and upper is None):
        return False
    dtype, size, rows = raw.dtype, raw.shape, A.shape
    if dtype not in REALS or len(size) != 2 or not 2 <= len(rows) <= 3 or 0 in size or 0 in rows:
        return False
    m, own = rows[-2], (size[0], rows[-2])
    if rows[-1] != size[1] or (len(rows) == 3 and rows[0] != size[0]) or (factor is not None and factor.shape != rows):
        return False
    for bound in (lower, upper):
        if bound is not None and bound.shape != own and bound.shape != (m,):
            return False
    on_cpu = raw.is_cpu
    for part in (A, lower, upper, factor):
        if part is not None and (part.dtype != dtype or not (part.is_cpu if on_cpu else part.device == raw.device)):
            return False
    return True


def _flat(tensor: Tensor, batch: torch.Size, core: int, share: bool) -> Tensor:
    """One argument as ``(B, ...)``; without the batch where it is shared by all samples and may stay so."""
    tensor = tensor.float() if tensor.dtype in HALF else tensor
    if share and tensor.dim() == core:
        return tensor
    if len(batch) == 1 and tensor.dim() == core + 1 and tensor.shape[0] == batch[0]:
        return tensor
    return tensor.expand(*batch, *tensor.shape[-core:]).reshape(-1, *tensor.shape[-core:])


def ordered(lower: Tensor, upper: Tensor) -> Tensor:
    """``lower <= upper``, neither of them NaN or infinite on the wrong side, entry by entry."""
    return upper - lower >= 0  # infinite ones of one sign leave NaN


def finite_size(bound: Tensor) -> Tensor:
    """``|bound|``, zero where there is none: by a comparison, since ONNX calls what leaves float32 infinite."""
    size = bound.abs()
    return torch.where(size < torch.inf, size, 0.0)


def bound_size(lower: Tensor | None, upper: Tensor | None, weight: Tensor) -> Tensor:
    """``|lower| + |upper|`` of the finite ones, at most twice the nearer to zero and `weight`; one of them is given.

    What rounding of a row is relative to, beside ``|a|_1 |y|``: the farther bound is broken by an ``|a'y|`` beyond it
    alone, so that 1e20 in the place of infinity says nothing of the other one. `weight` is ``|a|_1``: outputs of size
    1 give a bound of zero a size.
    """
    sides = [side for side in (lower, upper) if side is not None]
    total = reduce(torch.add, [finite_size(side) for side in sides])
    most = 2 * reduce(torch.minimum, [side.abs() for side in sides]) + weight
    return torch.where(most < total, most, total)


def or_one(size: Tensor) -> Tensor:
    """``size``, 1 where it is zero: what is divided by it is zero there."""
    return torch.where(size > 0, size, 1.0)


def step_limit(A: Tensor) -> int:
    """Steps of pivoting after which a sample is given up."""
    return 10 * sum(A.shape[-2:]) + 50


def lead(tensor: Tensor, batch: torch.Size, core: int) -> Tensor:
    """One argument with one dimension before its `core` ones: 1 where all samples share it, else that of the batch."""
    if tensor.dim() == core:
        return tensor.unsqueeze(0)
    own = tensor.shape[tensor.dim() - core :]
    return tensor.expand(*batch, *own).reshape(math.prod(batch), *own)  # batch.numel() would fix a dynamic batch


def dense(tensor: Tensor | None, absent: Tensor) -> Tensor:
    """The same numbers, one after the other in memory; some memory for no tensor."""
    if tensor is None:
        return absent
    return tensor if tensor.is_contiguous() and not tensor.is_neg() else tensor.resolve_neg().contiguous()


class BoxedRows(NamedTuple):
    """``lower <= A y <= upper`` and ``box_lower <= y <= box_upper``; an absent bound is None.

    Attributes:
        A: ``(m, n)`` or ``(*batch, m, n)``; m may be 0.
        lower: ``(m,)`` or ``(*batch, m)`` or None.
        upper: Like `lower`; ``lower == upper`` is an equality.
        box_lower: ``(n,)`` or ``(*batch, n)`` or None.
        box_upper: Like `box_lower`.
        equality: For each general row whether it was declared an equality, whatever its numbers; None: not known.
        weight: For each general row what a unit of its slack costs where it may give way, ``(m,)``; 0 where it may not.
            None: no row may.
    """

    A: Tensor
    lower: Tensor | None
    upper: Tensor | None
    box_lower: Tensor | None = None
    box_upper: Tensor | None = None
    equality: tuple[bool, ...] | None = None
    weight: Tensor | None = None

    @property
    def boxed(self) -> bool:
        """Whether some coordinate may have a bound of its own."""
        return self.box_lower is not None or self.box_upper is not None

    def classify(self) -> tuple[Structure, tuple[Tensor | None, ...]]:
        """Which structure this is, and its numbers as that takes them: with the box beside the rows, or as rows."""
        m = self.A.shape[-2]
        if self.boxed and m <= MOST_BOX_ROWS:
            few = m > 0 and m + self.A.shape[-1] <= MOST_FEW_ROWS
            return "few rows in a box" if few else "box and few rows", self[:5]
        return "few rows" if not self.boxed and 0 < m <= MOST_FEW_ROWS else "rows", self.dense()

    def dense(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """``A, lower, upper`` with the box as n more rows of the identity below."""
        if not self.boxed:
            return self.A, self.lower, self.upper
        eye = torch.eye(self.A.shape[-1], dtype=self.A.dtype, device=self.A.device)
        return join_rows([self._replace(box_lower=None, box_upper=None), BoxedRows(eye, *self[3:5])])[:3]

    def map(self, function: Callable[[Tensor, int], Tensor]) -> BoxedRows:
        """Every number through ``function(number, core)``, where core counts its dimensions after the batch."""
        names = ("lower", "upper", "box_lower", "box_upper")
        given = {name: number for name in names if (number := getattr(self, name)) is not None}
        return self._replace(A=function(self.A, 2), **{name: function(number, 1) for name, number in given.items()})


BoxedBatch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""A flat batch: raw ``(B, n)``, A ``(1 or B, k, n)``, lower and upper ``(1 or B, k)``, of the box ``(1 or B, n)``."""


def flatten_boxed(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | None,
    upper: Tensor | None,
    box_lower: Tensor | None,
    box_upper: Tensor | None,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Size, BoxedBatch]:
    """One flat batch in this dtype, with a batch of 1 for what all samples share and infinities for absent bounds."""
    (k, n), shapes = A.shape[-2:], [raw.shape[:-1], A.shape[:-2]]
    shapes += [bound.shape[:-1] for bound in (lower, upper, box_lower, box_upper) if bound is not None]
    batch = joint_batch(*shapes)
    flat = lambda part, core: lead(part.to(dtype), batch, core)
    bound = lambda part, size, absent: flat(raw.new_full((), absent).expand(size) if part is None else part, 1)
    rows = bound(lower, k, -torch.inf), bound(upper, k, torch.inf)
    box = bound(box_lower, n, -torch.inf), bound(box_upper, n, torch.inf)
    return batch, (raw.to(dtype).expand(*batch, n).reshape(-1, n), flat(A, 2), *rows, *box)


def join_rows(parts: list[BoxedRows]) -> BoxedRows:
    """The intersection: general rows one below the other, boxes clipped to each other."""
    A = join([part.A for part in parts], dim=-2)
    lower = _join_bounds(parts, "lower", -torch.inf)
    upper = _join_bounds(parts, "upper", torch.inf)
    box_lower = _tightest([part.box_lower for part in parts], torch.maximum)
    box_upper = _tightest([part.box_upper for part in parts], torch.minimum)
    declared = [part.equality for part in parts]
    equality = None if None in declared else tuple(row for rows in declared if rows is not None for row in rows)
    return BoxedRows(A, lower, upper, box_lower, box_upper, equality, _join_weights(parts))


def _join_weights(parts: list[BoxedRows]) -> Tensor | None:
    """The weights of all parts' rows, 0 for those that may not give way; None where no part has any."""
    if all(part.weight is None for part in parts):
        return None
    return torch.cat([part.A.new_zeros(part.A.shape[-2]) if part.weight is None else part.weight for part in parts])


def join(pieces: list[Tensor], dim: int = -1) -> Tensor:
    """Concatenate along `dim` (-1 or -2) after broadcasting the batch dimensions, which constants lack.

    A piece without rows tells nothing, such as the matrix of a box.
    """
    core = -dim
    pieces = [piece for piece in pieces if piece.shape[dim] or len(piece.shape) > core] or pieces[:1]
    if len(pieces) == 1:
        return pieces[0]
    batch = joint_batch(*(piece.shape[:-core] for piece in pieces))
    return torch.cat([piece.expand(*batch, *piece.shape[-core:]) for piece in pieces], dim=dim)


def _join_bounds(parts: list[BoxedRows], side: str, absent: float) -> Tensor | None:
    """One side's bounds of all parts; None where no part has one."""
    bounds = [getattr(part, side) for part in parts]
    if all(bound is None for bound in bounds):
        return None
    full = [
        part.A.new_full((part.A.shape[-2],), absent) if bound is None else bound
        for part, bound in zip(parts, bounds, strict=True)
    ]
    return join(full)


def _tightest(bounds: list[Tensor | None], pick: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
    """The tightest of several bounds of the coordinates; None where there is none."""
    given = [bound for bound in bounds if bound is not None]
    return reduce(pick, given) if given else None
