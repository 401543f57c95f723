"""The record of a batch of affine rows: checked, flattened and classified once, where arguments enter.

`Batch` is a flat batch of raw outputs with their rows. It also records where the call runs and what transforms it, so
that functions, solvers and kernels read the record and never ask torch.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.modes import HALF, may_look, mode, plain
from hardnet.shapes import broadcast_batch, check_affine, check_bound, require_like
from hardnet.structure import BoxedRows

REALS = (torch.float64, torch.float32)


class Batch(NamedTuple):
    """``lower <= A y <= upper`` for every sample of a flat batch; half-precision types are widened to float32.

    Attributes:
        raw: ``(B, n)``.
        A: ``(B, m, n)``, or ``(m, n)`` for all samples.
        lower: ``(B, m)``, or ``(m,)`` for all samples, or None.
        upper: Like `lower`.
        factor: ``A⁺'`` if the caller keeps it, in the shape of A, or None.
        box_lower: Bounds on the outputs themselves, ``(B, n)``, or ``(n,)`` for all samples, or None.
        box_upper: Like `box_lower`.
        shape: The batch shape as given, for answers and for errors that name samples.
        mode: What transforms or records the call; see `hardnet.modes.mode`.
        look: Whether values may be read to decide what is computed; see `hardnet.modes.may_look`.
        memory: Whether every tensor is plain memory that kernels may read, with no transform around the call.
        trivial: Whether there is nothing to enforce: no samples, no rows, or no bounds.
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
    def boxed(self) -> bool:
        """Whether there are bounds on the outputs themselves."""
        return self.box_lower is not None or self.box_upper is not None

    @property
    def learned(self) -> bool:
        """Whether autograd needs a derivative of this call."""
        if torch.is_grad_enabled():
            for part in self[:7]:  # a loop, since a generator costs more than the test itself
                if part is not None and part.requires_grad:
                    return True
        return False

    @property
    def transformed(self) -> bool:
        """Whether a derivative may be needed although no tensor requires grad: torch.func, forward mode."""
        return self.mode in ("func", "forward")

    def take(self, index: Tensor) -> Batch:
        """The samples at an index ``(k,)``, as a batch of k."""
        own: Any = (
            part if part is None or part.dim() == core else part[index]
            for part, core in zip(self[1:7], CORES[1:], strict=True)
        )
        return self._make((self.raw[index], *own, torch.Size((len(index),)), *self[8:]))

    def dense(self) -> Batch:
        """The same record with the box appended below the other rows, as the n rows of the identity."""
        A, lower, upper = BoxedRows(*self[1:4], self.box_lower, self.box_upper).dense()
        return self._replace(A=A, lower=lower, upper=upper, box_lower=None, box_upper=None)

    def as_given(self, flat: Tensor) -> Tensor:
        """A flat answer ``(B, ...)`` reshaped to the batch shape that was given."""
        return flat.reshape(self.shape + flat.shape[1:])


CORES = (1, 2, 1, 1, 2, 1, 1)
"""Number of non-batch dimensions of raw, A, lower, upper, the factor and the two box bounds."""


def take_rows(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | float | None,
    upper: Tensor | float | None,
    factor: Tensor | None = None,
    box_lower: Tensor | float | None = None,
    box_upper: Tensor | float | None = None,
) -> Batch:
    """Make the record of these arguments, of any batch rank; raise an error that says what does not fit together.

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
    """The batch shape joined with the one of the box, and the bounds of the box as tensors."""
    low, high = (
        check_bound(name, bound, raw, raw.shape[-1])
        for name, bound in (("box_lower", box_lower), ("box_upper", box_upper))
    )
    for name, bound in (("box_lower", low), ("box_upper", high)):
        batch = batch if bound is None else broadcast_batch(name, batch, bound.shape[:-1])
    return batch, (low, high)


def _check_factor(factor: Tensor, A: Tensor) -> None:
    """Refuse a factor whose shape, dtype or device differs from A's."""
    require_like("factor", factor, A)
    if factor.shape != A.shape:
        expected = f"the shape of A, {tuple(A.shape)}"
        raise ShapeError(sentence("factor", expected, tuple(factor.shape), "call factorize(A)"))


def _ready(raw: Any, A: Any, lower: Any, upper: Any, factor: Any, low: Any, high: Any) -> bool:
    """Whether these arguments can be used as they are, with no further check and no reshaping.

    They can if raw is ``(B, n)``, A ``(B, m, n)`` or ``(m, n)``, the factor None or of the shape of A, the row bounds
    ``(B, m)`` or ``(m,)`` and the box bounds ``(B, n)`` or ``(n,)``; not all bounds are None; and all tensors are
    plain, nonempty, of one dtype and on one device. For any other arguments `check_affine` reports what is wrong.
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
    """One argument as ``(B, ...)``, or without a batch dimension if `share` allows it and all samples share it.

    Batch dimensions of size 1 count as shared too, except in a graph, which must not depend on whether a size is 1.
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
    """``lower <= upper`` elementwise, with neither bound NaN or infinite on the wrong side."""
    return upper - lower >= 0  # two infinities of the same sign give NaN, which is not >= 0


def or_one(size: Tensor) -> Tensor:
    """``size``, with 1 in place of zero: a safe divisor where the numerator is zero as well."""
    return torch.where(size > 0, size, 1.0)


def step_limit(A: Tensor) -> int:
    """The number of pivoting steps after which a sample is given up."""
    return 10 * sum(A.shape[-2:]) + 50


def lead(tensor: Tensor, batch: torch.Size, core: int) -> Tensor:
    """One argument with a single leading dimension before its `core` ones: 1 if all samples share it, else B."""
    if tensor.dim() == core:
        return tensor.unsqueeze(0)
    own = tensor.shape[tensor.dim() - core :]
    return tensor.expand(*batch, *own).reshape(math.prod(batch), *own)  # batch.numel() would fix a dynamic batch


def dense(tensor: Tensor | None, absent: Tensor) -> Tensor:
    """The same numbers, contiguous in memory; `absent` stands in for None, since a kernel needs some address."""
    if tensor is None:
        return absent
    return tensor if tensor.is_contiguous() and not tensor.is_neg() else tensor.resolve_neg().contiguous()


BoxedBatch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""A flat batch: raw ``(B, n)``, A ``(1 or B, k, n)``, lower and upper ``(1 or B, k)``, box bounds ``(1 or B, n)``."""


def boxed(rows: Batch, dtype: torch.dtype = torch.float64) -> BoxedBatch:
    """The record in the form that the solvers of a box and rows take: one dtype, infinities for absent bounds.

    Tensors that all samples share get a leading dimension of 1.
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
    """The record in the form that the solvers of general rows take: float64, bounds ``(B, m)``, infinite if absent."""
    raw, A = rows.raw.double(), rows.A.double()
    size = (raw.shape[0], A.shape[-2])
    lower, upper = (
        raw.new_full((), absent).expand(size) if bound is None else bound.double().expand(size)
        for bound, absent in ((rows.lower, -torch.inf), (rows.upper, torch.inf))
    )
    return rows._replace(raw=raw, A=A, lower=lower, upper=upper)
