"""Blocks: the numbers that a convex set is made of, each as it is usually written, and its image ``G(y) in K``.

Tensors may carry batch dimensions or not; the solver flattens them to one, of length B or 1 (constant).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.products import length, power_above
from hardnet.rows import ordered
from hardnet.shapes import joint_batch
from hardnet.solvers.conic.stack import (
    Image,
    IntervalImage,
    QuadraticImage,
    SecondOrderImage,
    SemiDefiniteImage,
    order,
    pack,
    unpack,
)


def convex(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether these are eigenvalues of a positive semidefinite matrix, to the rounding of the dtype it is given in.

    The entries of a product ``R'R`` computed in that dtype are off by about ``eps sqrt(n) |P|``, which moves its
    eigenvalues by up to ``2 sqrt(n)`` times as much; four times that is allowed.

    Args:
        values: In float64 and ascending, ``(*batch, n)``.
        dtype: That of the matrix.

    Returns:
        ``(*batch)`` bool; False for NaN.
    """
    tolerance = 8 * values.shape[-1] * torch.finfo(dtype).eps * values.abs().amax(-1)
    return values[..., 0] >= -tolerance


def _all_finite(*fields: Tensor) -> Tensor:
    """Samples whose fields, each led by one batch dimension, are all finite: ``(b,)``."""
    good = [field.isfinite().reshape(field.shape[0], prod(field.shape[1:])).all(-1) for field in fields]
    return torch.stack(torch.broadcast_tensors(*good)).all(0)


def _runs(blocks: Sequence[Block]) -> Iterator[tuple[type[Block], list[Any]]]:
    """Neighbors of one kind and of one size, which are worked on together."""
    for (kind, *_), run in groupby(blocks, key=lambda block: (type(block), *(part.shape for part in block))):
        yield kind, list(run)


def valid(blocks: Sequence[Block]) -> Tensor:
    """Samples whose numbers describe a convex set, ``(b,)``: as they were given, since roundings go by their dtype."""
    good = [kind.sound(run) for kind, run in _runs(blocks)]
    return torch.stack(torch.broadcast_tensors(*good)).all(0)


def _stacked(cores: Sequence[int], blocks: Sequence[Any], dtype: torch.dtype | None = None) -> list[Tensor]:
    """The fields of blocks of one kind and shape with a group dimension behind the batch: ``(*batch, g, *core)``."""
    columns = zip(cores, zip(*blocks, strict=True), strict=True)
    return [torch.stack(fields, dim=fields[0].dim() - core).to(dtype or fields[0].dtype) for core, fields in columns]


def in_units(block: Block, units: Tensor) -> Block:
    """The block as a set of ``y / units``, for units ``(*batch, n)``."""
    if isinstance(block, Balls):
        block = block.cone()  # an ellipsoid
    if isinstance(block, SecondOrder):
        return SecondOrder(block.A * units.unsqueeze(-2), block.b, block.c * units, block.d)
    if isinstance(block, SemiDefinite):
        return SemiDefinite(block.F0, block.F * units[..., None, None])
    if isinstance(block, Quadratics):
        return Quadratics(units.unsqueeze(-1) * block.P * units.unsqueeze(-2), units * block.q, block.r)
    return Intervals(block.A * units.unsqueeze(-2), block.lower, block.upper)


def images(blocks: Sequence[Block]) -> list[Image]:
    """The images of all blocks in float64; neighbors of one kind and size share one, so that their order stays."""
    return [kind.together(run, torch.float64) for kind, run in _runs(blocks)]


class Intervals(NamedTuple):
    """``lower <= A y <= upper``: A ``(m, n)``, bounds ``(m,)``, infinite where absent."""

    A: Tensor
    lower: Tensor
    upper: Tensor
    cores = (2, 1, 1)

    @property
    def rows(self) -> int:
        """One for each row of A."""
        return self.A.shape[-2]

    @classmethod
    def sound(cls, blocks: Sequence[Intervals]) -> Tensor:
        """A finite, ``lower <= upper``, and no bound infinite on the wrong side, ``(b,)``."""
        A, lower, upper = _stacked(cls.cores, blocks)
        return _all_finite(A) & ordered(lower, upper).flatten(1).all(-1)

    def image(self) -> Image:
        """``A y in [lower, upper]``."""
        return IntervalImage(*self)

    @classmethod
    def together(cls, blocks: Sequence[Intervals], dtype: torch.dtype | None = None) -> Image:
        """The rows of all, one below the other."""
        A, lower, upper = zip(*blocks, strict=True)
        return IntervalImage(
            *(part.to(dtype or part.dtype) for part in (torch.cat(A, -2), torch.cat(lower, -1), torch.cat(upper, -1)))
        )

    def residual(self, y: Tensor) -> Tensor:
        """``relu(A y - upper) + relu(lower - A y)``, ``(*batch, m)``."""
        value = self.image().value(y)
        return (value - self.upper).clamp_min(0) + (self.lower - value).clamp_min(0)

    def scale(self, y: Tensor) -> Tensor:
        """The size of the terms of each row, ``(*batch, m)``."""
        return self.image().size(y)


class SecondOrder(NamedTuple):
    """``|A y + b| <= c'y + d``: A ``(k, n)``, b ``(k,)``, c ``(n,)``, d ``()``."""

    A: Tensor
    b: Tensor
    c: Tensor
    d: Tensor
    cores = (2, 1, 1, 0)

    @property
    def rows(self) -> int:
        """Those of A, and the height."""
        return self.A.shape[-2] + 1

    @classmethod
    def sound(cls, blocks: Sequence[SecondOrder]) -> Tensor:
        """All finite, ``(b,)``."""
        return _all_finite(*_stacked(cls.cores, blocks))

    def image(self) -> Image:
        """``(A y + b, c'y + d)`` in the second-order cone."""
        return self.together([self])

    @classmethod
    def together(cls, blocks: Sequence[SecondOrder], dtype: torch.dtype | None = None) -> Image:
        """Cones of one size as one image."""
        A, b, c, d = _stacked(cls.cores, blocks, dtype)
        K = [A, c.unsqueeze(-2)]
        k = [b, d.unsqueeze(-1)]
        batch = joint_batch(*(row.shape[:-2] for row in K))
        own = joint_batch(*(offset.shape[:-1] for offset in k))
        return SecondOrderImage(
            torch.cat([row.expand(*batch, *row.shape[-2:]) for row in K], dim=-2),
            torch.cat([offset.expand(*own, offset.shape[-1]) for offset in k], dim=-1),
        )

    def excess(self, y: Tensor) -> Tensor:
        """``|A y + b| - c'y - d``, one row."""
        z = self.image().value(y)
        return length(z[..., :-1]) - z[..., -1:]

    def residual(self, y: Tensor) -> Tensor:
        """``relu(|A y + b| - c'y - d)``, one row."""
        return self.excess(y).clamp_min(0)

    def scale(self, y: Tensor) -> Tensor:
        """The norm of ``|A||y| + |b|`` and ``|c|'|y| + |d|`` together, one row."""
        return self.image().size(y)[..., :1]


class Balls(NamedTuple):
    """``|y - center| <= radius``: center ``(n,)``, radius ``()``."""

    center: Tensor
    radius: Tensor
    cores = (1, 0)

    @property
    def rows(self) -> int:
        """Those of its cone."""
        return self.center.shape[-1] + 1

    def cone(self) -> SecondOrder:
        """``|I y - center| <= 0'y + radius``, with a batch of 1 for I where the center has one."""
        center, n = self.center, self.center.shape[-1]
        eye = torch.eye(n, dtype=center.dtype, device=center.device).expand(*(1 for _ in center.shape[:-1]), n, n)
        return SecondOrder(eye, -center, torch.zeros_like(eye[..., 0, :]), self.radius)

    @classmethod
    def sound(cls, blocks: Sequence[Balls]) -> Tensor:
        """All finite, ``(b,)``."""
        return _all_finite(*_stacked(cls.cores, blocks))

    @classmethod
    def together(cls, blocks: Sequence[Balls], dtype: torch.dtype | None = None) -> Image:
        """Their cones as one image."""
        return SecondOrder.together([block.cone() for block in blocks], dtype)

    def excess(self, y: Tensor) -> Tensor:
        """``|y - center| - radius``, one row."""
        return length(y - self.center) - self.radius.unsqueeze(-1)

    def residual(self, y: Tensor) -> Tensor:
        """``relu(|y - center| - radius)``, one row."""
        return self.excess(y).clamp_min(0)

    def scale(self, y: Tensor) -> Tensor:
        """``|y| + |center| + radius``, one row."""
        return length(y) + length(self.center) + self.radius.abs().unsqueeze(-1)


class SemiDefinite(NamedTuple):
    """``F0 + sum_i y_i F_i`` positive semidefinite: F0 ``(k, k)``, F ``(n, k, k)``; only symmetric parts count."""

    F0: Tensor
    F: Tensor
    cores = (2, 3)

    @property
    def rows(self) -> int:
        """The packed entries."""
        return self.F0.shape[-1] * (self.F0.shape[-1] + 1) // 2

    @classmethod
    def sound(cls, blocks: Sequence[SemiDefinite]) -> Tensor:
        """All finite, ``(b,)``."""
        return _all_finite(*_stacked(cls.cores, blocks))

    def image(self) -> Image:
        """The packed matrix in the semidefinite cone."""
        return self.together([self])

    @classmethod
    def together(cls, blocks: Sequence[SemiDefinite], dtype: torch.dtype | None = None) -> Image:
        """Matrices of one order as one image."""
        F0, F = _stacked(cls.cores, blocks, dtype)
        return SemiDefiniteImage(pack(F).mT, pack(F0))

    def excess(self, y: Tensor) -> Tensor:
        """``-lambda_min``, one row; NaN where y is."""
        packed = self.image().value(y)
        finite = packed.isfinite().all(-1, keepdim=True)  # LAPACK refuses a whole batch for one NaN
        matrix = unpack(torch.where(finite, packed, 0.0), order(packed.shape[-1]))
        return torch.where(finite, -torch.linalg.eigvalsh(matrix)[..., :1], torch.nan)

    def residual(self, y: Tensor) -> Tensor:
        """``relu(-lambda_min)``, one row; NaN where y is."""
        return self.excess(y).clamp_min(0)

    def scale(self, y: Tensor) -> Tensor:
        """The norm of ``|F0| + sum_i |y_i| |F_i|``, one row."""
        return self.image().size(y)[..., :1]


class Quadratics(NamedTuple):
    """``1/2 y'Py + q'y + r <= 0``: P ``(n, n)`` positive semidefinite, q ``(n,)``, r ``()``."""

    P: Tensor
    q: Tensor
    r: Tensor
    cores = (2, 1, 0)

    @property
    def rows(self) -> int:
        """One."""
        return 1

    @classmethod
    def sound(cls, blocks: Sequence[Quadratics]) -> Tensor:
        """All finite, and every P has a Cholesky factor once rounding is added to its diagonal, ``(b,)``."""
        P, q, r = _stacked(cls.cores, blocks)
        finite = _all_finite(P, q, r)
        exact = torch.where(_all_finite(P)[:, None, None, None], P.detach().double(), 0.0)
        exact = (exact + exact.mT) / 2
        largest = exact.abs().sum(-1).amax(-1)
        rounding = 8 * P.shape[-1] * torch.finfo(P.dtype).eps * largest + torch.finfo(exact.dtype).tiny
        _, failed = torch.linalg.cholesky_ex(exact + torch.diag_embed(rounding.unsqueeze(-1).expand(exact.shape[:-1])))
        return finite & (failed == 0).all(-1)

    def image(self) -> Image:
        """The value in ``(-inf, 0]``."""
        return self.together([self])

    @classmethod
    def together(cls, blocks: Sequence[Quadratics], dtype: torch.dtype | None = None) -> Image:
        """All of them as one image, with the entries of each P of size one."""
        P, q, r = _stacked(cls.cores, blocks, dtype)
        bend = power_above(P.detach().abs().amax((-2, -1)))
        P = P / bend[..., None, None]
        return QuadraticImage((P + P.mT) / 2, bend, q, r)

    def excess(self, y: Tensor) -> Tensor:
        """``1/2 y'Py + q'y + r``, one row."""
        return self.image().value(y)

    def residual(self, y: Tensor) -> Tensor:
        """``relu(1/2 y'Py + q'y + r)``, one row."""
        return self.excess(y).clamp_min(0)

    def scale(self, y: Tensor) -> Tensor:
        """The same sum over absolute values, one row."""
        return self.image().size(y)


Block = Intervals | SecondOrder | Balls | SemiDefinite | Quadratics
"""What a convex set is made of."""


def gather(kinds: Sequence[type[Block]], flat: Sequence[Tensor]) -> list[Block]:
    """Cut a flat list of tensors back into blocks."""
    fields = iter(flat)
    return [kind(*(next(fields) for _ in kind.cores)) for kind in kinds]
