"""Unions: ``y in C_1(x) or y in C_2(x) or ...``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from hardnet.errors import ShapeError, UnsupportedSetError, sentence
from hardnet.region import Kind
from hardnet.sets.base import ConstraintSet, Name

MOST_PIECES = 16
"""The most pieces of a union; each is solved for every sample."""


class Union(ConstraintSet):
    """The points that lie in at least one piece: ``a | b``; nested unions are flattened.

    ``(a | b) & c`` is ``(a & c) | (b & c)``. A certificate has one row, which is that of the piece that y is in, or
    misses by least.

    Args:
        members: Two to 16 sets of the same output dimension, none of them `Relaxed`.
        name: What errors and certificates call it.
    """

    def __init__(self, members: Sequence[ConstraintSet], *, name: Name = None) -> None:
        super().__init__(name)
        flat = [piece for member in members for piece in member.pieces]
        if not 2 <= len(flat) <= MOST_PIECES:
            remedy = "write rules on x as functions of x, and boxes that touch as one"
            raise UnsupportedSetError(sentence("members", f"2 to {MOST_PIECES} pieces of a union", len(flat), remedy))
        known = {piece.dim for piece in flat if piece.dim is not None}
        if len(known) > 1:
            raise ShapeError(sentence("members", "sets of one output dimension", f"dimensions {sorted(known)}"))
        if any(Kind.SOFT in piece.kinds for piece in flat):
            remedy = "every point misses such a set by some slack; leave it out"
            raise UnsupportedSetError(sentence("members", "sets that do not give way", "Relaxed", remedy))
        self.members: nn.ModuleList = nn.ModuleList(flat)

    @property
    def pieces(self) -> list[ConstraintSet]:
        """The members as a typed list."""
        return [cast(ConstraintSet, member) for member in self.members]

    @property
    def label(self) -> str:
        """The name of the union, or those of its pieces."""
        return self.name if isinstance(self.name, str) else " | ".join(self.piece_labels)

    @property
    def piece_labels(self) -> list[str]:
        """What each piece is called: its name, or those of its parts."""
        return [
            piece.name if isinstance(piece.name, str) else " & ".join(part.label for part in piece.parts)
            for piece in self.pieces
        ]

    @property
    def constant(self) -> bool:
        """Whether every piece is constant."""
        return all(piece.constant for piece in self.pieces)

    @property
    def tolerance(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The largest that a piece has."""
        return max(piece.tolerance for piece in self.pieces)

    @property
    def dim(self) -> int | None:
        """The first output dimension that a piece knows."""
        return next((piece.dim for piece in self.pieces if piece.dim is not None), None)

    def follow(self, like: Tensor) -> bool:
        """Move the written constants of all pieces."""
        return sum(piece.follow(like) for piece in self.pieces) > 0  # `any` would stop at the first

    def numbers(self, x: Any, like: Tensor) -> tuple[Any, ...]:
        """The numbers of each piece."""
        return tuple(piece.numbers(x, like) for piece in self.pieces)

    def row_count(self, numbers: tuple[Any, ...], like: Tensor) -> int:
        """One."""
        return 1

    def residual(self, numbers: tuple[Any, ...], y: Tensor) -> Tensor:
        """``min_k max_i residual_ki``: how far y misses the worst row of the best piece, one row."""
        return self._worst_of_best(numbers, y)[0]

    def scale(self, numbers: tuple[Any, ...], y: Tensor) -> Tensor:
        """The size of the terms of that row."""
        return self._worst_of_best(numbers, y)[1]

    def _worst_of_best(self, numbers: tuple[Any, ...], y: Tensor) -> tuple[Tensor, Tensor]:
        """Residual and scale of the worst row of the best piece, ``(*batch, 1)`` each."""
        found = []
        for piece, own in zip(self.pieces, numbers, strict=True):
            residual, scale = piece.residual(own, y), piece.scale(own, y)
            worst = residual.argmax(-1, keepdim=True)
            found.append((residual.gather(-1, worst), scale.expand_as(residual).gather(-1, worst)))
        residual, scale = (torch.cat(parts, dim=-1) for parts in zip(*found, strict=True))
        best = residual.argmin(-1, keepdim=True)
        return residual.gather(-1, best), scale.gather(-1, best)
