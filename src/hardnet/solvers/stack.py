"""Several blocks as one map ``G(y) in K_1 x K_2 x ...``, and the linear system that Newton and gradients share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.solvers.blocks import Block


class Linear(NamedTuple):
    """The derivative of the projection seen from y: ``rows = Q' DG``, ``delta`` and the way back ``Q``.

    Attributes:
        rows: ``(B, r, n)``, the Jacobian of G in the eigenbasis of each cone.
        delta: ``(B, r)``.
    """

    rows: Tensor
    delta: Tensor


class Stack:
    """The product of blocks, split and joined along the last dimension.

    Args:
        blocks: Blocks of one output dimension n and one batch length (or 1).
        y: Any point ``(B, n)``: it tells how many rows each block has.
    """

    def __init__(self, blocks: Sequence[Block], y: Tensor) -> None:
        self.blocks = list(blocks)
        self.sizes = [block.value(y[:1]).shape[-1] for block in self.blocks]

    def value(self, y: Tensor) -> Tensor:
        """``G(y)``, ``(B, r)``."""
        return torch.cat([block.value(y) for block in self.blocks], dim=-1)

    def jacobian(self, y: Tensor) -> Tensor:
        """``DG(y)``, ``(B, r, n)``."""
        return torch.cat([block.jacobian(y).expand(y.shape[0], -1, -1) for block in self.blocks], dim=-2)

    def curvature(self, y: Tensor, dual: Tensor) -> Tensor:
        """``I + sum_i dual_i D2G_i``, ``(B, n, n)``."""
        total = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device).expand(y.shape[0], -1, -1)
        for block, own in zip(self.blocks, self.split(dual), strict=True):
            bend = block.curvature(own)
            total = total if bend is None else total + bend
        return total

    def project(self, z: Tensor) -> Tensor:
        """Block by block onto K."""
        pieces = zip(self.blocks, self.split(z), strict=True)
        return torch.cat([block.project(own) for block, own in pieces], dim=-1)

    def linear(self, y: Tensor, z: Tensor, tolerance: Tensor) -> tuple[Linear, list]:
        """The Jacobian in the eigenbases at z, and the frames that lead back."""
        pieces = zip(self.blocks, self.split(z), strict=True)
        frames = [block.frame(own, tolerance) for block, own in pieces]
        rows = [
            frame.rotate(block.jacobian(y).expand(y.shape[0], -1, -1))
            for block, frame in zip(self.blocks, frames, strict=True)
        ]
        return Linear(torch.cat(rows, dim=-2), torch.cat([frame.delta for frame in frames], dim=-1)), frames

    def rotate(self, frames: list, v: Tensor) -> Tensor:
        """``Q' v`` for a vector ``(B, r)``."""
        pieces = zip(frames, self.split(v), strict=True)
        return torch.cat([frame.rotate(own.unsqueeze(-1)).squeeze(-1) for frame, own in pieces], dim=-1)

    def restore(self, frames: list, v: Tensor) -> Tensor:
        """``Q v`` for a vector ``(B, r)``."""
        pieces = zip(frames, self.split(v), strict=True)
        return torch.cat([frame.restore(own.unsqueeze(-1)).squeeze(-1) for frame, own in pieces], dim=-1)

    def factor(self, y: Tensor) -> Tensor:
        """The scale of every row, ``(B, r)``."""
        factors = [
            block.factor(y).expand(y.shape[0], size) for block, size in zip(self.blocks, self.sizes, strict=True)
        ]
        return torch.cat(factors, dim=-1)

    def scaled(self, y: Tensor) -> Stack:
        """The same set with rows of unit size near y."""
        return Stack([block.scaled(block.factor(y)) for block in self.blocks], y)

    def size(self, y: Tensor) -> Tensor:
        """The terms that each row adds up, ``(B, r)``."""
        return torch.cat([block.size(y) for block in self.blocks], dim=-1)

    def tightened(self, y: Tensor, margin: Tensor) -> Stack:
        """Every inequality moved inwards by `margin` ``(B, r)``."""
        pieces = zip(self.blocks, self.split(margin), strict=True)
        return Stack([block.tightened(own) for block, own in pieces], y)

    def select(self, y: Tensor, index: Tensor) -> Stack:
        """The samples `index` alone; constants stay as they are."""
        chosen = [
            type(block)(*(field if field.shape[0] == 1 else field[index] for field in block)) for block in self.blocks
        ]
        return Stack(chosen, y)

    def split(self, v: Tensor) -> list[Tensor]:
        """Cut ``(B, r)`` at the blocks."""
        return list(v.split(self.sizes, dim=-1))


class Saddle:
    """Solve ``[W C'; C 0] (d, v) = (b, q)`` for the tight rows C of a `Linear`, whatever their rank.

    ``W = W0 + rows' diag((1 - delta) / delta) rows`` over the rows that bend. With ``W = L L'`` and the thin SVD
    ``L^-1 C' = U S V'``: ``d = L^-T ((I - UU') L^-1 b + U S^+ V' q)`` and ``v = V S^+ (U' L^-1 b - S^+ V' q)``.
    """

    FLOOR = 1e-11
    """Below this eigenvalue of the projection's derivative a direction counts as tight."""

    def __init__(self, W0: Tensor, linear: Linear) -> None:
        tight = linear.delta <= self.FLOOR
        safe = torch.where(tight, torch.ones_like(linear.delta), linear.delta)
        self.tight, self.bend = tight, torch.where(tight, torch.zeros_like(safe), (1 - safe) / safe)
        self.inverse = torch.where(tight, torch.zeros_like(safe), 1 / safe)
        W = W0 + linear.rows.mT @ (self.bend.unsqueeze(-1) * linear.rows)
        self.L, _ = torch.linalg.cholesky_ex(W)
        C = torch.where(tight.unsqueeze(-1), linear.rows, torch.zeros_like(linear.rows))
        reduced = torch.linalg.solve_triangular(self.L, C.mT, upper=False)
        usable = reduced.isfinite().all(-1).all(-1)[:, None, None]  # LAPACK refuses a whole batch for one NaN
        self.U, S, self.Vt = torch.linalg.svd(torch.where(usable, reduced, 0.0), full_matrices=False)
        cut = max(reduced.shape[-2:]) * 8 * torch.finfo(S.dtype).eps * S.amax(-1, keepdim=True)
        self.pseudo = torch.where(cut < S, 1 / S.clamp_min(torch.finfo(S.dtype).tiny), torch.zeros_like(S))
        self.basis = torch.where((cut < S).unsqueeze(-2), self.U, torch.zeros_like(self.U))

    def down(self, b: Tensor) -> Tensor:
        """``L^-1 b``."""
        return torch.linalg.solve_triangular(self.L, b.unsqueeze(-1), upper=False)

    def up(self, b: Tensor) -> Tensor:
        """``L^-T b``."""
        return torch.linalg.solve_triangular(self.L.mT, b, upper=True).squeeze(-1)

    def reduce(self, b: Tensor) -> tuple[Tensor, Tensor]:
        """``N b`` and ``S^+ C W^-1 b`` (zero on rows that are not tight)."""
        half = self.down(b)
        within = self.basis.mT @ half
        dual = self.Vt.mT @ (self.pseudo.unsqueeze(-1) * (self.U.mT @ half))
        return self.up(half - self.basis @ within), dual.squeeze(-1)

    def lift(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """``W^-1 C' S^+ q`` and ``S^+ q``."""
        inner = self.pseudo.unsqueeze(-1) * (self.Vt @ q.unsqueeze(-1))
        return self.up(self.U @ inner), (self.Vt.mT @ (self.pseudo.unsqueeze(-1) * inner)).squeeze(-1)
