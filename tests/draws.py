"""Tensors for tests, float64: drawn by a seed, or written out."""

import torch
from torch import Tensor

F64 = torch.float64


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def draw_uniform(*shape: int, seed: int = 0) -> Tensor:
    """Between 0 and 1."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def tensor(*values: object) -> Tensor:
    """One entry, or one row, per argument."""
    return torch.tensor(values, dtype=F64)
