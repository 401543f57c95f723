"""Tiles of samples for the kernels on a CPU: the sample (lane) is the last, contiguous index of every array.

So every inner loop compiles to vector instructions, and a tile stays in the cache.
"""

from __future__ import annotations

import numpy as np

from hardnet.kernels.cpu.compiling import Tile, compiled, summed

LARGEST = np.finfo(np.float64).max
"""A bound on a square is clamped to this, since infinity would not bound anything."""
WIDE, NARROW, FEW_NUMBERS = 512, 64, 16
"""WIDE samples per tile for up to FEW_NUMBERS numbers of A each, else NARROW, so that a tile stays in the cache."""


@compiled
def lanes_for(samples: int, numbers: int) -> int:
    """How many lanes a tile has, for this many samples with this many numbers of A each.

    Always whole vectors of the machine, so that every lane is computed in the same way, regardless of their number.
    """
    return min(WIDE, (samples + NARROW - 1) // NARROW * NARROW) if numbers <= FEW_NUMBERS else NARROW


@compiled
def copy(source: Tile, target: Tile) -> None:
    """Copy every number of a contiguous tile."""
    flat_source, flat_target = source.reshape(source.size), target.reshape(target.size)
    for index in range(flat_source.size):
        flat_target[index] = flat_source[index]


@compiled
def fill(target: Tile, value: float) -> None:
    """Set every number of a contiguous tile."""
    flat = target.reshape(target.size)
    for index in range(flat.size):
        flat[index] = value


@compiled
def dot(left: Tile, right: Tile, out: Tile) -> None:
    """``l'r`` of tiles ``(n, lanes)``: ``(lanes,)``."""
    for lane in range(out.shape[-1]):
        out[lane] = left[0, lane] * right[0, lane]
    for j in range(1, left.shape[0]):
        for lane in range(out.shape[-1]):
            out[lane] += left[j, lane] * right[j, lane]


@compiled
def add(weights: Tile, vectors: Tile, out: Tile) -> None:
    """``out += V' w`` for weights ``(m, lanes)`` and vectors ``(m, n, lanes)``."""
    for i in range(vectors.shape[0]):
        for j in range(vectors.shape[1]):
            for lane in range(out.shape[-1]):
                out[j, lane] += weights[i, lane] * vectors[i, j, lane]


@compiled
def subtract(weights: Tile, vectors: Tile, out: Tile) -> None:
    """``out -= V' w`` for weights ``(m, lanes)`` and vectors ``(m, n, lanes)``."""
    for i in range(vectors.shape[0]):
        for j in range(vectors.shape[1]):
            for lane in range(out.shape[-1]):
                out[j, lane] -= weights[i, lane] * vectors[i, j, lane]


@compiled
def load(source: Tile, first: int, tile: Tile) -> None:
    """Load numbers ``(B, k)`` of the samples from `first` on into a tile ``(k, lanes)``; the last fills empty lanes."""
    full = min(tile.shape[-1], source.shape[0] - first)
    for j in range(tile.shape[0]):
        for lane in range(full):
            tile[j, lane] = source[first + lane, j]
        for lane in range(full, tile.shape[-1]):
            tile[j, lane] = source[source.shape[0] - 1, j]


@compiled
def load_bound(source: Tile, first: int, absent: float, tile: Tile) -> None:
    """Load a bound ``(B, m)``, or ``(1, m)`` shared by all samples, or ``(0, m)`` where there is none."""
    if source.shape[0] > 1:
        load(source, first, tile)
        return
    for i in range(tile.shape[0]):
        for lane in range(tile.shape[-1]):
            tile[i, lane] = absent if source.shape[0] == 0 else source[0, i]


@compiled
def store(tile: Tile, good: Tile, first: int, target: Tile) -> int:
    """Store a tile ``(k, lanes)`` in numbers ``(B, k)``, NaN for samples that are not good; return their number."""
    lost = 0
    for lane in range(min(tile.shape[-1], target.shape[0] - first)):
        lost += good[lane] == 0.0
        for j in range(tile.shape[0]):
            target[first + lane, j] = tile[j, lane] if good[lane] != 0.0 else np.nan
    return lost


@compiled
def keep(raw: Tile, good: Tile, moves: Tile, first: int, y: Tile) -> None:
    """Copy the bits of raw for good samples that need not move: adding zero would lose the sign of -0.0."""
    for lane in range(min(moves.shape[-1], y.shape[0] - first)):
        kept = (good[lane] != 0.0) & (moves[lane] == 0.0)
        for j in range(y.shape[1]):
            y[first + lane, j] = raw[first + lane, j] if kept else y[first + lane, j]


@compiled
def split(w: Tile, signed: Tile, below: Tile, above: Tile) -> None:
    """Split w into its parts on rows below their lower and above their upper bound; zero elsewhere."""
    for i in range(w.shape[0]):
        for lane in range(w.shape[-1]):
            below[i, lane] = w[i, lane] if signed[i, lane] > 0.0 else 0.0
            above[i, lane] = w[i, lane] if signed[i, lane] < 0.0 else 0.0


@compiled
def outer(q: Tile, across: Tile, w: Tile, step: Tile, below: Tile, above: Tile, point: Tile, out: Tile) -> None:
    """``q (g - A⁺ A g)' - w step' - V w raw'``: ``(m, n, lanes)``."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            for lane in range(out.shape[-1]):
                active = below[i, lane] + above[i, lane]
                entry = q[i, lane] * across[j, lane] - w[i, lane] * step[j, lane]
                out[i, j, lane] = entry - active * point[j, lane]


@compiled
def sound(product: float, low: float, high: float) -> bool:
    """Whether a row has valid bounds and a finite product."""
    return (low <= high) & (low < np.inf) & (high > -np.inf) & (abs(product) < np.inf)


@compiled
def bound_of(bounds: Tile, sample: int, row: int, absent: float) -> float:
    """One number of bounds ``(B, m)``, or ``(1, m)`` shared by all samples, or ``(0, m)`` where there are none."""
    return bounds[min(sample, bounds.shape[0] - 1), row] if bounds.shape[0] > 0 else absent


@compiled
def clamp(product: Tile, low: Tile, high: Tile, target: Tile, good: Tile) -> None:
    """``clamp(p, lower, upper)``; a sample with invalid bounds or an infinite product is not good."""
    for i in range(product.shape[0]):
        for lane in range(product.shape[-1]):
            p, lo, hi = product[i, lane], low[i, lane], high[i, lane]
            good[lane] = good[lane] if sound(p, lo, hi) else 0.0
            target[i, lane] = min(max(p, lo), hi)


@compiled
def rest(rows: Tile, point: Tile, target: Tile, out: Tile) -> None:
    """``target - A v`` for rows ``(m, n, lanes)`` and v ``(n, lanes)``."""
    for i in range(rows.shape[0]):
        dot(rows[i], point, out[i])
        for lane in range(out.shape[-1]):
            out[i, lane] = target[i, lane] - out[i, lane]


@compiled
def violation(
    rows: Tile, point: Tile, low: Tile, high: Tile, target: Tile, signed: Tile, good: Tile, moves: Tile
) -> None:
    """``clamp(A v, lower, upper)`` in `target`, its difference from A v in `signed`, 1 in `moves` where it is not 0."""
    for i in range(rows.shape[0]):
        dot(rows[i], point, signed[i])
    clamp(signed, low, high, target, good)
    for i in range(rows.shape[0]):
        for lane in range(signed.shape[-1]):
            signed[i, lane] = target[i, lane] - signed[i, lane]
            moves[lane] = 1.0 if signed[i, lane] != 0.0 else moves[lane]


VERIFIED = 12.0
"""By how many roundings of its size a row may be violated at y; the same as in `hardnet.functional.affine_formulas`."""


@compiled
def measure(point: Tile, most: Tile) -> None:
    """``max |v_j|`` of each lane of a tile ``(n, lanes)``: ``(lanes,)``."""
    fill(most, 0.0)
    for j in range(point.shape[0]):
        for lane in range(most.size):
            most[lane] = max(most[lane], abs(point[j, lane]))


@compiled
def suspicious(signed: Tile, size: Tile, most: Tile, rounding: float) -> bool:
    """Whether, before the last correction, some row of ``clamp(A raw) - A y`` exceeds the rounding of ``|a| |y|``.

    Args:
        signed: ``(m, lanes)``.
        size: ``|a|^2``, ``(m, lanes)``.
        most: ``max |y|``, ``(lanes,)``.
        rounding: The relative rounding of float64 sums.
    """
    found, part = 0, rounding * rounding
    for i in range(signed.shape[0]):
        for lane in range(most.size):
            left = signed[i, lane] * signed[i, lane]
            found += not left <= min(part * size[i, lane] * most[lane] * most[lane], LARGEST)
    return found > 0


@compiled
def verify(rows: Tile, point: Tile, low: Tile, high: Tile, rounding: float, good: Tile) -> None:
    """Mark a lane as not good if one of its rows is not `at_bounds`."""
    most = np.empty(good.size)
    measure(point, most)
    for lane in range(point.shape[-1]):
        for i in range(rows.shape[0]):
            product, weight = 0.0, 0.0
            for j in range(point.shape[0]):
                product += rows[i, j, lane] * point[j, lane]
                weight += abs(rows[i, j, lane])
            met = at_bounds(product, low[i, lane], high[i, lane], weight, most[lane], rounding)
            good[lane] = good[lane] if met else 0.0


@compiled
def bound_size(lower: float, upper: float, weight: float) -> float:
    """``|lower| + |upper|`` of the finite ones, at most twice the nearer and ``|a|_1``: `hardnet.rows.bound_size`."""
    first, second = abs(lower), abs(upper)
    total = (first if first < np.inf else 0.0) + (second if second < np.inf else 0.0)
    most = 2.0 * min(first, second) + weight
    return most if most < total else total


@compiled
def at_bounds(product: float, low: float, high: float, weight: float, largest: float, rounding: float) -> bool:
    """Whether a row violates its bounds by no more than `VERIFIED` roundings of ``|a|_1 max |y| + |bounds|``.

    Args:
        product: ``a'y``.
        low: -inf where absent.
        high: inf where absent.
        weight: ``|a|_1``.
        largest: ``max |y|``.
        rounding: The relative rounding of y.
    """
    bounds = bound_size(low, high, weight)
    size = weight * largest + (bounds if bounds > 0.0 else rounding * weight)
    return size < np.inf and abs(product - min(max(product, low), high)) <= VERIFIED * rounding * size


@summed
def inner(left: Tile, right: Tile) -> float:
    """``l'r`` over the length of l."""
    total = 0.0
    for j in range(left.shape[0]):
        total += left[j] * right[j]
    return total


@summed
def largest(row: Tile) -> float:
    """``max |v_j|``."""
    most = 0.0
    for j in range(row.shape[0]):
        most = max(most, abs(row[j]))
    return most


@summed
def row_dot(a: Tile, b: Tile) -> float:
    """``a'b``."""
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total
