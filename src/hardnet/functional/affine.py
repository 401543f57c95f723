"""HardNet-Aff: ``y = raw + A⁺ (relu(lower - A raw) - relu(A raw - upper))``, in closed form."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from hardnet.errors import OptionError, RankError, ShapeError, UnsupportedSetError, sentence
from hardnet.functional.affine_factors import by_qr
from hardnet.functional.affine_paths import widen
from hardnet.functional.closed_form import Rows, closed_form
from hardnet.functional.diagnose import raise_invalid
from hardnet.functional.inputs import check_affine, require_float, require_like
from hardnet.functional.strict import tighten
from hardnet.kernels.arguments import well_formed
from hardnet.modes import may_look

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
    if on_invalid not in POLICIES:
        raise OptionError(sentence("on_invalid", "'raise' or 'nan'", repr(on_invalid)))
    arguments: Any = (raw, A, lower, upper, factor)
    if not strict and well_formed(*arguments):  # nothing to check, nothing to reshape
        look = on_invalid == "raise" and raw.is_cpu
        return closed_form(arguments, raw.shape[:1] if look else None, memory=True)
    batch, lower, upper = check_affine(raw, A, lower, upper)
    _check_factor(A, factor)
    m, n = A.shape[-2:]
    if m == 0 or 0 in batch or (lower is None and upper is None):
        return raw.expand(*batch, n)
    flat = flatten(batch, raw, A, lower, upper, factor)
    y = closed_form(flat, batch if on_invalid == "raise" else None)
    if strict:
        y = tighten(y.to(raw.dtype), *flat[1:4])
    return y.to(raw.dtype).reshape(*batch, n)


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
    factor = by_qr(widen(A.detach()), A.dtype)
    if may_look(A) and bool(factor.isnan().any()):
        flat = A.detach().flatten(0, -3) if A.dim() > 2 else A.detach()
        raise_invalid(A.new_zeros(1), flat, None, None, A.shape[:-2])
    return factor.to(A.dtype).contiguous()


def flatten(
    batch: torch.Size, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None
) -> Rows:
    """All arguments with one batch dimension, half types widened to float32; what is shared by the batch has none."""
    parts = ((raw, 1, False), (A, 2, True), (lower, 1, True), (upper, 1, True), (factor, 2, True))
    flat: Any = tuple(None if part is None else _flat(part, batch, core, share) for part, core, share in parts)
    return flat


def _flat(tensor: Tensor, batch: torch.Size, core: int, share: bool) -> Tensor:
    """One argument as ``(B, ...)``; without the batch where it is shared by all samples and may stay so."""
    tensor = tensor.float() if tensor.dtype in HALF else tensor
    if share and tensor.dim() == core:
        return tensor
    if len(batch) == 1 and tensor.dim() == core + 1 and tensor.shape[0] == batch[0]:
        return tensor
    return tensor.expand(*batch, *tensor.shape[-core:]).reshape(-1, *tensor.shape[-core:])


def _check_factor(A: Tensor, factor: Tensor | None) -> None:
    """Refuse m > n, and a factor of another A or of a learned one."""
    _check_rows(A)
    if factor is None:
        return
    require_like("factor", factor, A)
    if factor.shape != A.shape:
        expected = f"the shape of A, {tuple(A.shape)}"
        raise ShapeError(sentence("factor", expected, tuple(factor.shape), "call factorize(A)"))
    if A.requires_grad:
        raise UnsupportedSetError(sentence("factor", "None for an A that requires grad", "a factor", "leave it out"))


def _check_rows(A: Tensor) -> None:
    """Refuse more rows than outputs."""
    m, n = A.shape[-2:]
    if m > n:
        remedy = "merge or drop redundant rows, or use the exact projection (method='projection')"
        raise RankError(sentence("A", f"at most n = {n} linearly independent rows", f"m = {m} rows", remedy))
