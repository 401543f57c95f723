"""The closed form and its gradients in plain torch, in float64: the reference for the kernels."""

from __future__ import annotations

import torch
from torch import Tensor


def _prepare(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Signed violations ``s`` and the pseudo-inverse in float64, and which samples are valid."""
    products = torch.einsum("bmn,bn->bm", A.double(), raw.double())
    low = torch.full_like(products, -torch.inf) if lower is None else lower.double().expand_as(products)
    high = torch.full_like(products, torch.inf) if upper is None else upper.double().expand_as(products)
    signed = (low - products).clamp(min=0) - (products - high).clamp(min=0)
    valid = (low <= high).all(-1) & signed.isfinite().all(-1) & products.isfinite().all(-1)
    rows = A.double().where(valid[:, None, None], 0.0)
    inverse = torch.linalg.pinv(rows, rtol=0.0)
    spectrum = torch.linalg.svdvals(rows / rows.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny))
    cutoff = max(A.shape[-2:]) * min(torch.finfo(A.dtype).eps, torch.finfo(torch.float32).eps)
    return signed, inverse, valid & (spectrum[:, -1] > cutoff * spectrum[:, 0])


def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``y = raw + A^+ s``, ``s = relu(lower - A raw) - relu(A raw - upper)``; NaN for an invalid sample.

    Args:
        raw: ``(B, n)``.
        A: ``(B, m, n)`` with m <= n.
        lower: ``(B, m)``, ``(m,)`` or None.
        upper: Like lower.

    Returns:
        y: ``(B, n)``; a sample without violation keeps the bits of raw.
    """
    signed, inverse, valid = _prepare(raw, A, lower, upper)
    moved = (raw.double() + torch.einsum("bnm,bm->bn", inverse, signed)).to(raw.dtype)
    y = moved.where((signed != 0).any(-1, keepdim=True), raw)
    return y.where(valid[:, None], torch.nan)


def backward(
    grad_y: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of `forward` with respect to raw, A, lower and upper, one per sample.

    With ``w = A^+' g``, ``q = (A A')^-1 s`` and V the mask of violated rows::

        g_raw = g - A' V w,   g_lower = w [s > 0],   g_upper = w [s < 0],   g_A = -w (A^+ s)' + q (g - A'w)' - V w raw'
    """
    signed, inverse, valid = _prepare(raw, A, lower, upper)
    g, matrix = grad_y.double(), A.double()
    w = torch.einsum("bnm,bn->bm", inverse, g)
    image = torch.einsum("bnm,bm->bn", inverse, signed)
    q = torch.einsum("bnm,bn->bm", inverse, image)
    active = w.where(signed != 0, 0.0)
    normal = g - torch.einsum("bmn,bm->bn", matrix, w)
    grad_raw = g - torch.einsum("bmn,bm->bn", matrix, active)
    grad_A = (
        q[:, :, None] * normal[:, None] - w[:, :, None] * image[:, None] - active[:, :, None] * raw.double()[:, None]
    )
    gradients = (grad_raw, grad_A, w.where(signed > 0, 0.0), w.where(signed < 0, 0.0))
    poison = torch.where(valid, 0.0, torch.nan)
    return tuple((grad + poison.reshape(-1, *[1] * (grad.dim() - 1))).to(raw.dtype) for grad in gradients)  # pyright: ignore[reportReturnType]
