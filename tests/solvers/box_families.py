"""Families of boxes with a few rows: raw, A, lower, upper, box_lower, box_upper of a batch with a point inside."""

import torch
from torch import Tensor

from hardnet.rows import boxed, take_rows

D = torch.float64
KINDS = ("plain", "integers", "dependent", "far", "mixed", "infinite", "fixed")


def box_family(kind: str, batch: int, k: int, n: int, seed: int = 0) -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=source, dtype=D)
    uniform = lambda *shape: torch.rand(*shape, generator=source, dtype=D)
    raw, A, low, high = 3 * normal(batch, n), normal(batch, k, n), -uniform(batch, n), uniform(batch, n)
    if kind == "integers":
        integer = lambda least, most, *shape: torch.randint(least, most, shape, generator=source).to(D)
        raw, A, low = integer(-3, 4, batch, n), integer(-1, 2, batch, k, n), integer(-2, 1, batch, n)
        high = low + integer(1, 3, batch, n)
    inner = low + (high - low) * (0.5 if kind == "integers" else uniform(batch, n))
    if kind == "dependent":
        A = A[:, :1] * torch.arange(1, k + 1, dtype=D)[:, None]
    if kind == "far":
        raw = 1e6 * raw
    if kind == "mixed":
        raw, low, high, inner = (10 ** torch.linspace(-3, 3, n, dtype=D) * part for part in (raw, low, high, inner))
    if kind == "infinite":
        low = torch.where(uniform(batch, n) < 0.5, -torch.inf, low)
        high = torch.where(uniform(batch, n) < 0.5, torch.inf, high)
    if kind == "fixed":
        chosen = uniform(batch, n) < 0.3
        low, high = torch.where(chosen, inner, low), torch.where(chosen, inner, high)
    product = (A * inner[:, None]).sum(-1)
    room = 0.3 * (product.abs() + 0.1) * uniform(batch, k)
    tight = uniform(batch, k) < 0.4
    return (
        raw, A, torch.where(tight, product, product - room), torch.where(tight, product, product + room), low, high,
    )  # fmt: skip


def dense_rows(A: Tensor, lower: Tensor, upper: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, ...]:
    eye = torch.eye(A.shape[-1], dtype=A.dtype).expand(len(A), -1, -1)
    return torch.cat([A, eye], -2), torch.cat([lower, low], -1), torch.cat([upper, high], -1)


def flat_box(raw, A, lower, upper, low, high):
    """The numbers as the solvers of a box and rows read them."""
    return boxed(take_rows(raw, A, lower, upper, None, low, high))
