"""Half precision: enforced in float32, and rounded to its own dtype at the end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from hardnet.errors import NonFiniteError, name_samples
from hardnet.functional.samples import look_is_free, sample_indices

HALF = (torch.bfloat16, torch.float16)


def working(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for half types, which have too few digits to factorise or to sum in."""
    return torch.float32 if dtype in HALF else dtype


def widen(value: Any) -> Any:
    """The same structure with its half-precision tensors in float32; anything else as it is."""
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.to(working(leaf.dtype)), value)


def narrow(y: Tensor, dtype: torch.dtype, on_invalid: str = "raise") -> Tensor:
    """Y ``(*batch, n)`` rounded to a half type; a sample beyond its range is an error, or NaN where no look is free."""
    rounded = y.to(dtype)
    lost = y.isfinite().all(dim=-1) & ~rounded.isfinite().all(dim=-1)
    if on_invalid == "raise" and look_is_free(y) and bool(lost.any()):
        samples = sample_indices(lost)
        text = f"y: expected outputs within the range of {dtype}, up to {torch.finfo(dtype).max:.5g}"
        where = f" in samples {name_samples(samples)}" if lost.dim() else ""
        raise NonFiniteError(f"{text}, got larger ones{where}; use bfloat16 or float32", samples)
    return torch.where(lost.unsqueeze(-1), torch.nan, rounded)
