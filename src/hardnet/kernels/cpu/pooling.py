"""Pool adjacent violators on a CPU: the blocks of a bounded monotone profile, sample by sample, compiled by numba.

A block is an interval of outputs with one value, its weighted mean clamped to the bounds of its ends. Outputs are added
one by one; a block whose value is below that of the block before it is merged with it. This takes O(n).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from hardnet.kernels.cpu.compiling import Tile, compiled


@compiled
def pool(start: Tile, last: Tile, raw: Tile, weight: Tile, low: Tile, high: Tile, begin: int, end: int) -> int:
    """Write the first and the last output of the block of each output, ``(B, n)``.

    Weights and bounds may be shared by all samples. Bounds rise themselves, so a block ``[i, j]`` may take what lies
    between ``low[j]`` and ``high[i]``.
    """
    n = raw.shape[1]
    total, mass, value, first = np.empty(n), np.empty(n), np.empty(n), np.empty(n + 1, np.int64)
    for b in range(begin, end):
        own, least, most = weight[b % weight.shape[0]], low[b % low.shape[0]], high[b % high.shape[0]]
        blocks = 0
        for j in range(n):
            total[blocks], mass[blocks], first[blocks] = own[j] * raw[b, j], own[j], j
            value[blocks] = min(max(raw[b, j], least[j]), most[j])
            while blocks > 0 and value[blocks - 1] > value[blocks]:
                blocks -= 1
                total[blocks] += total[blocks + 1]
                mass[blocks] += mass[blocks + 1]
                value[blocks] = min(max(total[blocks] / mass[blocks], least[j]), most[first[blocks]])
            blocks += 1
        first[blocks] = n
        for block in range(blocks):
            start[b, first[block] : first[block + 1]] = first[block]
            last[b, first[block] : first[block + 1]] = first[block + 1] - 1
    return 0


def _pool(
    start: Any, last: Any, raw: Any, weight: Any, low: Any, high: Any, samples: int, m: int, n: int,
    weights: int, lows: int, highs: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`pool`, called with addresses; m is 1."""
    return pool(
        carray(start, (samples, n)), carray(last, (samples, n)), carray(raw, (samples, n)),
        carray(weight, (weights, n)), carray(low, (lows, n)), carray(high, (highs, n)), begin, end,
    )  # fmt: skip


ENTRIES = (_pool,)
"""The entry point to compile; it takes addresses."""
