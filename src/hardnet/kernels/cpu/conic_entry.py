"""The entry of the compiled projection onto small curved sets and of its derivative: addresses, and room to work in."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray

from hardnet.kernels.cpu.compiling import Tile, bare, inner
from hardnet.kernels.cpu.conic_blocks import Foot, Rows, copy
from hardnet.kernels.cpu.conic_sample import Case, Limits, derive_sample, project_sample
from hardnet.kernels.cpu.conic_steps import Sample
from hardnet.kernels.cpu.conic_system import System

Counter = npt.NDArray[np.int64]


@inner
def vector(room: Tile, used: Counter, size: int) -> Tile:
    """The next numbers of the room."""
    first = used[0]
    used[0] += size
    return room[first : first + size]


@inner
def matrix(room: Tile, used: Counter, rows: int, columns: int) -> Tile:
    """The same as a matrix."""
    return vector(room, used, rows * columns).reshape((rows, columns))


@inner
def furnish(room: Tile, used: Counter, n: int, R: int, order: int, table: Tile, curved: Tile) -> Sample:
    """The arrays of one sample, cut out of one piece of memory.

    It comes from outside, so that numba counts no references to it: that would cost more than the arithmetic.
    """
    C, parts = curved.size, table.shape[0]
    rows = Rows(
        matrix(room, used, n, R), vector(room, used, R), vector(room, used, R), vector(room, used, R),
        matrix(room, used, C, n * n), vector(room, used, C), matrix(room, used, C, n), curved, table,
    )  # fmt: skip
    at = Foot(
        vector(room, used, R), vector(room, used, R), vector(room, used, R), vector(room, used, R),
        vector(room, used, parts * order * order).reshape((parts, order, order)), vector(room, used, R),
        vector(room, used, R), matrix(room, used, order, order), matrix(room, used, order, order),
    )  # fmt: skip
    system = System(
        matrix(room, used, n + 1, R), vector(room, used, R), matrix(room, used, n, n), matrix(room, used, R, n),
        matrix(room, used, R, R), vector(room, used, R), vector(room, used, n), vector(room, used, n),
        vector(room, used, R),
    )  # fmt: skip
    return Sample(
        rows, vector(room, used, n), vector(room, used, n), vector(room, used, R), at, system, vector(room, used, n),
        vector(room, used, n), vector(room, used, R), vector(room, used, R), matrix(room, used, 1, R),
        matrix(room, used, 3, R),
    )  # fmt: skip


@bare
def run(
    y: Tile, dual: Tile, found: Tile, raw: Tile, limits: Tile, numbers: Tile, sample: Sample, way: Tile, factor: Tile,
    checked: Tile, back: int, begin: int, end: int,
) -> int:  # fmt: skip
    """Samples `begin` to `end`: the projection, or (`back`) its derivative at y and dual for the gradient in raw."""
    allowed, left = Limits(limits[0], limits[1], limits[2], limits[3], limits[4]), 0
    checked[:] = 0.0
    for b in range(begin, end):
        case = Case(sample, numbers, b, raw[b], y[b], dual[b], way, factor, checked)
        if back:
            derive_sample(case, raw[b])
            continue
        copy(raw[b], y[b])
        dual[b] = 0.0
        residual, spent, is_open = project_sample(case, allowed)
        found[b, 0], found[b, 1], found[b, 2] = residual, spent, is_open
        left += is_open
    return left


def _run(
    y: Any, dual: Any, found: Any, raw: Any, limits: Any, numbers: Any, table: Any, curved: Any, rooms: Any,
    back: int, count: int, columns: int, parts: int, curves: int, order: int, threads: int, size: int, samples: int,
    R: int, n: int, begin: int, end: int,
) -> int:  # fmt: skip
    """`run` of addresses; each thread has its own room. How many samples are left open."""
    room, used = carray(rooms, (threads, size))[begin * threads // samples], np.zeros(1, dtype=np.int64)
    sample = furnish(room, used, n, R, order, carray(table, (parts, columns)), carray(curved, (curves,)))
    way, factor, checked = vector(room, used, n), vector(room, used, R), vector(room, used, parts)
    return run(
        carray(y, (samples, n)), carray(dual, (samples, R)), carray(found, (samples, 3)), carray(raw, (samples, n)),
        carray(limits, (5,)), carray(numbers, (count,)), sample, way, factor, checked, back, begin, end,
    )  # fmt: skip


ENTRIES = (_run,)
