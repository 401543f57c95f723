"""Measures for a sample: the size of its outputs, lengths and scales of its rows, and the relative violation."""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.kernels.limits import ELASTIC
from hardnet.solvers.nonlinear.rows import Derivatives, Rows

FINE = 3e-15
"""Part of a row's scale to which a violation is reduced as long as steps reduce it; a certificate allows 3.6e-15."""


def row_size(y: Tensor, raw: Tensor) -> Tensor:
    """``max |y|``, at least ``min(1, max |raw|)``: the size of a sample's outputs, ``(b, 1)``."""
    return size_from(y, raw.abs().amax(-1, keepdim=True).clamp_max(1.0))


def size_from(y: Tensor, least: Tensor) -> Tensor:
    """`row_size` from the least size ``(b, 1)``."""
    return torch.maximum(y.abs().amax(-1, keepdim=True), least)


def row_norms(jacobian: Tensor) -> Tensor:
    """``|J_i|``, ``(b, m)``; 1 for a zero row."""
    norm = torch.linalg.vector_norm(jacobian, dim=-1)
    return norm + (norm == 0)


def elastic_rows(rows: Rows, jacobian: Tensor, soft: Tensor | None = None) -> Tensor:
    """The elasticity of each row: `soft` or the least elasticity for the rows of g, 0 for affine rows, ``(b, m)``."""
    soft = ELASTIC * row_norms(jacobian) if soft is None else soft
    if not rows.A.shape[-2]:
        return soft
    return torch.cat([soft[:, : rows.curved], torch.zeros_like(soft[:, rows.curved :])], dim=-1)


def relative_error(rows: Rows, at: Derivatives, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
    """The largest violation relative to its row's scale, ``(b,)``, and these scales ``(b, m)``."""
    return error_of(rows, rows.violation(at.value), at.jacobian, row_size(y, raw))


def error_of(rows: Rows, violation: Tensor, jacobian: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """The same from the violations and the size of the outputs.

    A scale that is zero or not finite is replaced by the smallest normal number, so that any violation of the row
    counts as huge: an infinite slope must not make every violation look small.
    """
    tiny, scale = torch.finfo(size.dtype).tiny, rows.scale(jacobian, size)
    scale = torch.where(scale < torch.inf, scale, tiny).clamp_min(tiny)
    return (violation / scale).amax(-1), scale


def fixed_direction(y: Tensor, number: int = 0) -> Tensor:
    """A fixed direction ``(n,)`` without symmetries, the same for every sample; another one for each `number`."""
    place = torch.arange(1, y.shape[-1] + 1, dtype=y.dtype, device=y.device)
    return ((1.7 + 0.9 * number) * place + 0.3 + number).sin()
