"""Which arguments of the closed form are memory that a kernel may read as it is.

Kernels read memory behind torch's back, so they are for plain tensors in eager mode alone: what traces, transforms,
fakes or broadcasts tensors takes the formulas in torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.modes import plain

REALS = (torch.float64, torch.float32)
MOST_ON_CHIP = 32
"""Most rows and outputs of a projection that one program of a GPU holds."""


def well_formed(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None) -> bool:
    """Whether these need no further check and no other shape; anything odd about them is for others to judge.

    That is raw ``(B, n)``, A ``(B, m, n)`` or ``(m, n)`` with a factor of its shape or none, bounds ``(B, m)`` or
    ``(m,)`` or one None, plain and of one dtype on one device.
    """
    if not plain(raw, A, lower, upper, factor) or (lower is None and upper is None):
        return False
    dtype, device, size, rows = raw.dtype, raw.device, raw.shape, A.shape
    if dtype not in REALS or len(size) != 2 or not 2 <= len(rows) <= 3 or 0 in size:
        return False
    m, n = rows[-2], rows[-1]
    if not 0 < m <= n or n != size[1] or (len(rows) == 3 and rows[0] != size[0]):
        return False
    if factor is not None and (factor.shape != rows or A.requires_grad):
        return False
    allowed = ((size[0], m), (m,))
    for bound in (lower, upper):
        if bound is not None and bound.shape not in allowed:
            return False
    for part in (A, lower, upper, factor):
        if part is not None and (part.dtype != dtype or part.device != device):
            return False
    return True


def padded(size: int) -> int:
    """The power of two that holds a size, of at least 16: what a tile of the matrix units has."""
    return max(16, 1 << (size - 1).bit_length())


def dense(tensor: Tensor | None, absent: Tensor) -> Tensor:
    """The same numbers, one after the other in memory; some memory for no tensor."""
    if tensor is None:
        return absent
    return tensor if tensor.is_contiguous() and not tensor.is_neg() else tensor.resolve_neg().contiguous()
