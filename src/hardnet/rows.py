"""The record of a batch of affine rows: checked, flattened and classified once, where arguments enter.

`Batch` is a flat batch of raw outputs with their rows. It also says where the call runs and what transforms it, so that
functions, solvers and kernels ask the record and never torch.

Called by `hardnet.kernels.cpu.affine`, `hardnet.kernels.cpu.launch` and others.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.modes import HALF, may_look, mode, plain
from hardnet.shapes import broadcast_batch, check_affine, check_bound, require_like
from hardnet.structure import BoxedRows

REALS = (torch.float64, torch.float32)


class Batch(NamedTuple):
    """``lower <= A y <= upper`` for every sample of a flat batch; half types are widened to float32.

    Attributes:
        raw: ``(B, n)``.
        A: ``(B, m, n)``, or ``(m, n)`` for all samples.
        lower: ``(B, m)``, or ``(m,)`` for all samples, or None.
        upper: Like `lower`.
        factor: ``A⁺'`` where the caller keeps it, like A.
        box_lower: Bounds of the outputs themselves, ``(B, n)``, or ``(n,)`` for all samples, or None.
        box_upper: Like `box_lower`.
        shape: The batch as it was given, for answers and for errors that name samples.
        mode: What transforms or records the call, see `hardnet.modes.mode`.
        look: Whether a value may decide what is computed: eager code on a CPU.
        memory: Whether all are plain memory, which kernels may read and nothing transforms.
        trivial: Whether there is nothing to enforce: no sample, no row, or no bound.
    """

    raw: Tensor
    A: Tensor
    lower: Tensor | None
    upper: Tensor | None
    factor: Tensor | None = None
    box_lower: Tensor | None = None
    box_upper: Tensor | None = None
    shape: torch.Size = torch.Size()
    mode: str = "eager"
    look: bool = False
    memory: bool = False
    trivial: bool = False

    @property
    def numbers(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """raw, A, lower and upper."""
        return self[:4]

    @property
    def learned(self) -> bool:
        """Whether a derivative is asked for."""
        if torch.is_grad_enabled():
            for part in self[:7]:  # a generator takes longer than the question
                if part is not None and part.requires_grad:
                    return True
        return False

    @property
    def transformed(self) -> bool:
        """Whether a derivative may be asked for without a tensor that says so: torch.func, forward mode."""
        return self.mode in ("func", "forward")

    def take(self, index: Tensor) -> Batch:
        """The samples of an index ``(k,)``, as a batch of k."""
        own: Any = (
            part if part is None or part.dim() == core else part[index]
            for part, core in zip(self[1:7], CORES[1:], strict=True)
        )
        return self._make((self.raw[index], *own, torch.Size((len(index),)), *self[8:]))

    def dense(self) -> Batch:
        """The same with the box as n more rows of the identity below the others."""
        A, lower, upper = BoxedRows(*self[1:4], self.box_lower, self.box_upper).dense()
        return self._replace(A=A, lower=lower, upper=upper, box_lower=None, box_upper=None)

    def as_given(self, flat: Tensor) -> Tensor:
        """A flat answer ``(B, ...)`` with the batch as it was given."""
        return flat.reshape(self.shape + flat.shape[1:])


CORES = (1, 2, 1, 1, 2, 1, 1)
"""Dimensions of raw, A, lower, upper, the factor and the box that are not of the batch."""


def take_rows(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | float | None,
    upper: Tensor | float | None,
    factor: Tensor | None = None,
    box_lower: Tensor | float | None = None,
    box_upper: Tensor | float | None = None,
) -> Batch:
    """The record of these arguments, of any batch rank; an error says what does not fit together.

    Args:
        raw: ``(*batch, n)``.
        A: ``(m, n)`` or ``(*batch, m, n)``.
        lower: ``(m,)``, ``(*batch, m)``, a number for all rows, or None.
        upper: Like `lower`.
        factor: Like A, or None.
        box_lower: ``(n,)``, ``(*batch, n)``, a number for all outputs, or None.
        box_upper: Like `box_lower`.
    """
    given = (raw, A, lower, upper, factor, box_lower, box_upper)
    if _ready(*given):
        return Batch(*given, raw.shape[:1], "eager", may_look(raw), True)  # pyright: ignore[reportArgumentType]
    batch, low, high = check_affine(raw, A, lower, upper)
    batch, box = _check_box(batch, raw, box_lower, box_upper)
    if factor is not None:
        _check_factor(factor, A)
    around = mode()
    flat: Any = [
        None if part is None else _flat(part, batch, core, share=index > 0, eager=around == "eager")
        for index, (part, core) in enumerate(zip((raw, A, low, high, factor, *box), CORES, strict=True))
    ]
    bounded = any(part is not None for part in (low, high, *box))
    memory = around == "eager" and plain(*flat)
    trivial = 0 in batch or raw.shape[-1] == 0 or not bounded or (A.shape[-2] == 0 and box == (None, None))
    return Batch._make((*flat, batch, around, may_look(raw), memory, trivial))


def _check_box(
    batch: torch.Size, raw: Tensor, box_lower: Tensor | float | None, box_upper: Tensor | float | None
) -> tuple[torch.Size, tuple[Tensor | None, Tensor | None]]:
    """The batch joined with that of the box, and the bounds of the box as tensors."""
    low, high = (
        check_bound(name, bound, raw, raw.shape[-1])
        for name, bound in (("box_lower", box_lower), ("box_upper", box_upper))
    )
    for name, bound in (("box_lower", low), ("box_upper", high)):
        batch = batch if bound is None else broadcast_batch(name, batch, bound.shape[:-1])
    return batch, (low, high)


def _check_factor(factor: Tensor, A: Tensor) -> None:
    """Refuse a factor of another shape, dtype or device than A."""
    require_like("factor", factor, A)
    if factor.shape != A.shape:
        expected = f"the shape of A, {tuple(A.shape)}"
        raise ShapeError(sentence("factor", expected, tuple(factor.shape), "call factorize(A)"))


def _ready(raw: Any, A: Any, lower: Any, upper: Any, factor: Any, low: Any, high: Any) -> bool:
    """Whether these need no further check and no other shape; what is odd about others `check_affine` says.

    That is raw ``(B, n)``, A ``(B, m, n)`` or ``(m, n)`` with a factor of its shape or none, bounds ``(B, m)`` or
    ``(m,)``, of a box ``(B, n)`` or ``(n,)``, not all of them None, plain, not empty, of one dtype on one device.
    """
    if not plain(raw, A, lower, upper, factor, low, high) or (lower is upper is low is high is None):
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
    for part in (A, lower, upper, factor, low, high):
        if part is not None and (part.dtype != dtype or not (part.is_cpu if on_cpu else part.device == raw.device)):
            return False
    if low is high:  # both are None
        return True
    return all(bound is None or bound.shape in (size, size[1:]) for bound in (low, high))


def _flat(tensor: Tensor, batch: torch.Size, core: int, *, share: bool, eager: bool) -> Tensor:
    """One argument as ``(B, ...)``; without the batch where all samples share it and it may stay so.

    A batch of ones is shared as well, but not in a graph, which must not depend on whether a dimension is 1.
    """
    tensor = tensor.float() if tensor.dtype in HALF else tensor
    if share and tensor.dim() == core:
        return tensor
    own = tensor.shape[tensor.dim() - core :]
    if len(batch) == 1 and tensor.dim() == core + 1 and tensor.shape[0] == batch[0]:
        return tensor
    if share and eager and tensor.shape[: tensor.dim() - core].numel() == 1 < batch.numel():
        return tensor.reshape(own)
    return tensor.expand(*batch, *own).reshape(-1, *own)


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


BoxedBatch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""A flat batch: raw ``(B, n)``, A ``(1 or B, k, n)``, lower and upper ``(1 or B, k)``, of the box ``(1 or B, n)``."""


def boxed(rows: Batch, dtype: torch.dtype = torch.float64) -> BoxedBatch:
    """The record as the solvers of a box and rows read it: all in this dtype, infinities for absent bounds.

    What all samples share leads with a batch of 1.
    """
    raw, A, lower, upper, _, box_lower, box_upper = rows[:7]
    k, n = A.shape[-2:]
    leading = lambda part, core: part.unsqueeze(0) if part.dim() == core else part

    def bound(part: Tensor | None, size: int, absent: float) -> Tensor:
        return leading(raw.new_full((), absent).expand(size) if part is None else part, 1).to(dtype)

    box = bound(box_lower, n, -torch.inf), bound(box_upper, n, torch.inf)
    between = bound(lower, k, -torch.inf), bound(upper, k, torch.inf)
    return raw.to(dtype), leading(A, 2).to(dtype), *between, *box


def in_double(rows: Batch) -> Batch:
    """The record as the solvers of any rows read it: float64, bounds ``(B, m)``, infinite where there is none."""
    raw, A = rows.raw.double(), rows.A.double()
    size = (raw.shape[0], A.shape[-2])
    lower, upper = (
        raw.new_full((), absent).expand(size) if bound is None else bound.double().expand(size)
        for bound, absent in ((rows.lower, -torch.inf), (rows.upper, torch.inf))
    )
    return rows._replace(raw=raw, A=A, lower=lower, upper=upper)
