"""``A^-1 v`` for each sample, differentiable under every transform."""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.modes import mode
from hardnet.products import times_each


def solve_square(matrix: Tensor, right: Tensor) -> Tensor:
    """``matrix^-1 right`` for matrix ``(*batch, n, n)`` and right ``(*batch, n)``; not finite where it is singular.

    Forward-mode differentiation uses the inverse, refined twice: torch 2.13 assigns the forward derivatives of
    `linalg.solve` to the wrong samples under nested maps, as in ``vmap(jacfwd(f))`` and ``vmap(hessian(f))``.
    """
    if mode() != "forward":
        return torch.linalg.solve_ex(matrix, right.unsqueeze(-1)).result.squeeze(-1)
    return refined(torch.linalg.inv_ex(matrix).inverse, matrix, right)


def refined(inverse: Tensor, matrix: Tensor, right: Tensor) -> Tensor:
    """``matrix^-1 right`` by a computed inverse, whose error two corrections remove."""
    found = times_each(inverse, right)
    for _ in range(2):
        found = found + times_each(inverse, right - times_each(matrix, found))
    return found
