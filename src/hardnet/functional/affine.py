"""HardNet-Aff: ``y = raw + A⁺ (relu(lower - A raw) - relu(A raw - upper))``, in closed form."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import RankError, ShapeError, UnsupportedSetError, sentence
from hardnet.functional import affine_compiled
from hardnet.functional.affine_bounds import may_look
from hardnet.functional.affine_function import apply, apply_eager
from hardnet.functional.affine_pinv import pseudo_inverse
from hardnet.functional.diagnose import raise_invalid
from hardnet.functional.inputs import check_affine, require_float, require_like
from hardnet.functional.strict import tighten
from hardnet.functional.transforms import transformed
from hardnet.kernels.arguments import well_formed
from hardnet.kernels.cpu import launch as cpu
from hardnet.kernels.gpu import shared_launch

OnInvalid = Literal["raise", "nan"]
POLICIES = ("raise", "nan")
HALF = (torch.bfloat16, torch.float16)


def enforce_affine(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    *,
    factor: Tensor | None = None,
    strict: bool = False,
    on_invalid: OnInvalid = "raise",
) -> Tensor:
    """``y = raw + A⁺ (relu(lower - A raw) - relu(A raw - upper))``, so that ``A y = clamp(A raw, lower, upper)``.

    HardNet-Aff (Min & Azizan): rows that hold stay where they are, violated rows land on their bound, and y - raw
    lies in the row space of A. A raw output that is inside already is returned bit for bit. The rows of A must be
    linearly independent (so m <= n). Gradients flow to raw, A, lower and upper, to any order.

    Bad numbers (NaN, lower > upper, dependent rows) make NaN of their own sample and leave the others alone. In
    eager code on a CPU an error that names the samples is raised instead, unless ``on_invalid="nan"``; compiled
    code, transforms and accelerators never look at values, and there NaN is the answer.

    Args:
        raw: The network's output, ``(*batch, n)``, in float64, float32, bfloat16 or float16 (the last two are
            computed in float32).
        A: ``(m, n)`` for all samples, or ``(*batch, m, n)``.
        lower: ``(m,)``, ``(*batch, m)`` or a number for all rows; None or -inf where there is no lower bound.
        upper: Like `lower`; ``lower == upper`` is an equality.
        factor: `factorize` of this A, to be reused over many calls; not for an A that requires grad.
        strict: Let the inequality rows hold for the returned floating-point numbers in exact arithmetic, at the cost
            of a few roundings of distance to the bound; see `hardnet.functional.rounding_bound` for equalities.
        on_invalid: ``"raise"`` or ``"nan"``.

    Returns:
        y ``(*batch, n)``, in the dtype and on the device of raw.

    Raises:
        ShapeError, DTypeError, DeviceError: The arguments do not fit together.
        RankError: m > n, a zero row, or rows that are dependent to rounding.
        NonFiniteError: NaN or infinity in raw or A.
        BoundsError: lower > upper, lower = +inf, upper = -inf, or a NaN bound.
    """
    if isinstance(raw, Tensor) and torch.is_autocast_enabled(raw.device.type):  # its products are in half precision
        with torch.autocast(raw.device.type, enabled=False):
            return enforce_affine(raw, A, lower, upper, factor=factor, strict=strict, on_invalid=on_invalid)
    arguments: Any = (raw, A, lower, upper, factor)
    if not strict and on_invalid in POLICIES and well_formed(*arguments):  # no other check is needed
        if not may_look(A):
            return apply_eager(*arguments) if A.dim() == 3 else apply_eager(*_shared(*arguments))
        if cpu.compiles(A, factor):
            y, lost = affine_compiled.enforce(*arguments)
            if lost and on_invalid == "raise":
                raise_invalid(raw, A, arguments[2], arguments[3], raw.shape[:1])
            return y
    batch, lower, upper = check_affine(raw, A, lower, upper)
    _check_options(A, factor, on_invalid)
    m, n = A.shape[-2:]
    if m == 0 or 0 in batch or (lower is None and upper is None):
        return raw.expand(*batch, n)
    flat = _flatten(batch, raw, A, lower, upper, factor)
    y = apply(*flat)
    if strict:
        y = tighten(y.to(raw.dtype), flat.A, flat.lower, flat.upper)
    if on_invalid == "raise" and may_look(y) and not transformed() and math.isnan(y.detach().sum().item()):
        raise_invalid(flat.raw, flat.A, flat.lower, flat.upper, batch)
    return y.to(raw.dtype) if len(batch) == 1 else y.to(raw.dtype).reshape(*batch, n)


def factorize(A: Tensor) -> Tensor:
    """``A⁺'``, the transposed pseudo-inverse of a constant A, for ``enforce_affine(..., factor=factorize(A))``.

    Computed by QR in float64 and rounded once to the dtype of A.

    Args:
        A: ``(m, n)`` or ``(*batch, m, n)`` with linearly independent rows.

    Returns:
        The factor, of the shape, dtype and device of A.
    """
    require_float("A", A)
    if A.dim() < 2:
        raise ShapeError(sentence("A", "shape (m, n) or (*batch, m, n)", tuple(A.shape)))
    _check_rows(A)
    factor = pseudo_inverse(A.detach())
    if may_look(A) and not transformed() and math.isnan(factor.sum().item()):
        raise_invalid(
            A.new_zeros(1), A.detach().flatten(0, -3) if A.dim() > 2 else A.detach(), None, None, A.shape[:-2]
        )
    return factor


def _check_options(A: Tensor, factor: Tensor | None, on_invalid: str) -> None:
    """Refuse m > n, a factor of another A or of a learned one, and an unknown policy."""
    _check_rows(A)
    if on_invalid not in POLICIES:
        raise ValueError(sentence("on_invalid", "'raise' or 'nan'", repr(on_invalid)))
    if factor is None:
        return
    require_like("factor", factor, A)
    if factor.shape != A.shape:
        raise ShapeError(
            sentence("factor", f"the shape of A, {tuple(A.shape)}", tuple(factor.shape), "call factorize(A)")
        )
    if A.requires_grad:
        raise UnsupportedSetError(sentence("factor", "None for an A that requires grad", "a factor", "leave it out"))


def _check_rows(A: Tensor) -> None:
    """Refuse more rows than outputs."""
    m, n = A.shape[-2:]
    if m > n:
        remedy = "merge or drop redundant rows, or use the exact projection (method='projection')"
        raise RankError(sentence("A", f"at most n = {n} linearly independent rows", f"m = {m} rows", remedy))


class Flat(NamedTuple):
    """The arguments with one batch dimension, half types widened; what is shared by the batch has none."""

    raw: Tensor
    A: Tensor
    lower: Tensor | None
    upper: Tensor | None
    factor: Tensor | None


def _flatten(
    batch: torch.Size, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None
) -> Flat:
    """Join the batch dimensions of every argument."""
    A = A.float() if A.dtype in HALF else A
    share = any(size != 1 for size in batch) or _takes_one(A)
    return Flat(
        _flat(raw, batch, 1, False),
        _flat(A, batch, 2, share),
        None if lower is None else _flat(lower, batch, 1, share),
        None if upper is None else _flat(upper, batch, 1, share),
        None if factor is None else _flat(factor, batch, 2, share),
    )


def _shared(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None) -> Flat:
    """Well-formed arguments with a shared A, which a batch of one has for itself: like `_flatten`."""
    if raw.shape[0] > 1 or _takes_one(A):
        return Flat(raw, A, lower, upper, factor)
    return Flat(raw, A.unsqueeze(0), lower, upper, None if factor is None else factor.unsqueeze(0))


def _takes_one(A: Tensor) -> bool:
    """Whether one sample stays with the kernel of a shared A, for the bits that it has in company.

    Elsewhere it takes the path of an A per sample, which needs no pseudo-inverse.
    """
    return A.dim() == 2 and shared_launch.available(A) and not torch.compiler.is_compiling()


def _flat(tensor: Tensor, batch: torch.Size, core: int, share: bool) -> Tensor:
    """One argument as ``(B, ...)``; without the batch where it is shared by several samples and may stay so."""
    tensor = tensor.float() if tensor.dtype in HALF else tensor
    if share and tensor.dim() == core:
        return tensor
    if len(batch) == 1 and tensor.dim() == core + 1 and tensor.shape[0] == batch[0]:
        return tensor
    return tensor.expand(*batch, *tensor.shape[-core:]).reshape(-1, *tensor.shape[-core:])
