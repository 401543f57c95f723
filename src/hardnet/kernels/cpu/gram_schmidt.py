"""Gram-Schmidt on tiles of samples: ``A = L R`` with orthogonal rows R, and triangular solves with L."""

from __future__ import annotations

import numpy as np

from hardnet.kernels.cpu.compiling import Tile, compiled
from hardnet.kernels.cpu.tiles import dot, fill

CLOSE = 1e-6
"""Below this squared distance of a unit row from the rows before it, a row is orthogonalized twice."""


@compiled
def orthogonalize(R: Tile, L: Tile, inverse: Tile, size: Tile, rounding: float, good: Tile) -> None:
    """``A = L R`` in place of A ``(m, n, lanes)``: L, ``1 / D`` of ``D = R R'``; not `good` if rows nearly depend.

    Modified Gram-Schmidt, row by row. A row close to the span of those before it has lost its orthogonality to them and
    is orthogonalized again, lane by lane, so that no sample changes the bits of another.
    """
    along, chosen = np.empty(R.shape[-1]), np.empty(R.shape[-1])
    for i in range(R.shape[0]):
        dot(R[i], R[i], size[i])
        fill(chosen, 1.0)
        for k in range(i):
            take_out(R, L, inverse, i, k, along, chosen, 0.0)
        dot(R[i], R[i], inverse[i])
        close = 0
        for lane in range(R.shape[-1]):
            chosen[lane] = 1.0 if inverse[i, lane] < CLOSE * size[i, lane] else 0.0
            close += inverse[i, lane] < CLOSE * size[i, lane]
        if close > 0:
            for k in range(i):
                take_out(R, L, inverse, i, k, along, chosen, 1.0)
            dot(R[i], R[i], inverse[i])
        for lane in range(R.shape[-1]):
            good[lane] = good[lane] if inverse[i, lane] > rounding * size[i, lane] else 0.0
            inverse[i, lane] = 1.0 / inverse[i, lane]


@compiled
def take_out(R: Tile, L: Tile, inverse: Tile, i: int, k: int, along: Tile, chosen: Tile, kept: float) -> None:
    """Subtract from row i its component along row k in the chosen lanes, and store it in L (added if `kept`)."""
    dot(R[i], R[k], along)
    for lane in range(along.size):
        along[lane] = along[lane] * inverse[k, lane] if chosen[lane] != 0.0 else 0.0
        L[i, k, lane] = along[lane] + (L[i, k, lane] if kept != 0.0 else 0.0)
    for j in range(R.shape[1]):
        for lane in range(along.size):
            R[i, j, lane] -= along[lane] * R[k, j, lane]


@compiled
def substitute(L: Tile, inverse: Tile, right: Tile) -> None:
    """``D⁻¹ L⁻¹ r`` in place of r ``(m, lanes)``."""
    for i in range(right.shape[0]):
        for k in range(i):
            for lane in range(right.shape[-1]):
                right[i, lane] -= L[i, k, lane] * right[k, lane]
    for i in range(right.shape[0]):
        for lane in range(right.shape[-1]):
            right[i, lane] *= inverse[i, lane]


@compiled
def substitute_transposed(L: Tile, right: Tile) -> None:
    """``L⁻' r`` in place of r ``(m, lanes)``."""
    for i in range(right.shape[0] - 1, -1, -1):
        for k in range(i + 1, right.shape[0]):
            for lane in range(right.shape[-1]):
                right[i, lane] -= L[k, i, lane] * right[k, lane]
