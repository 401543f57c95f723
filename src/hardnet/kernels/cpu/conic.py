"""Entry points of the compiled projection onto small curved sets and of its derivative.

Called by `hardnet.functional.conic_gradient` and `hardnet.solvers.conic.distance`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numba import carray
from torch import Tensor

from hardnet.kernels.cpu.compiling import Tile, compile_addresses, inner
from hardnet.kernels.cpu.conic_blocks import Foot, Rows
from hardnet.kernels.cpu.conic_steps import Sample, derive, settle
from hardnet.kernels.cpu.conic_system import System
from hardnet.kernels.cpu.launch import launch

Counter = npt.NDArray[np.int64]


class Numbers(NamedTuple):
    """The numbers of a set for all samples, as `conic_blocks.Rows` has them for one; b is B, or 1 for all samples.

    Attributes:
        J: ``(b, n R)``.
        k: ``(b, R)``.
        lower: ``(b, R)``.
        upper: ``(b, R)``.
        P: ``(b, C n n)``.
        bend: ``(b, C)``.
        q: ``(b, C n)``.
        curved: ``(C,)``.
        blocks: ``(blocks, 4)``.
    """

    J: Tensor
    k: Tensor
    lower: Tensor
    upper: Tensor
    P: Tensor
    bend: Tensor
    q: Tensor
    curved: Tensor
    blocks: Tensor


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
def furnish(room: Tile, source: Rows, n: int, R: int, order: int) -> Sample:
    """The arrays of one sample, cut out of one piece of memory.

    It comes from outside, so that numba counts no references to it: that would cost more than the arithmetic.
    """
    used, C, parts = np.zeros(1, dtype=np.int64), source.curved.size, source.blocks.shape[0]
    rows = Rows(
        matrix(room, used, n, R), vector(room, used, R), vector(room, used, R), vector(room, used, R),
        matrix(room, used, C, n * n), vector(room, used, C), matrix(room, used, C, n), source.curved, source.blocks,
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


def room_of(n: int, R: int, C: int, parts: int, order: int) -> int:
    """How many numbers `furnish` takes."""
    return 6 * n + 19 * R + (3 * n + 1 + R) * R + n * n + C * (n * n + n + 1) + (parts + 2) * order * order


@inner
def fetch(rows: Rows, source: Rows, b: int) -> None:
    """The numbers of sample b out of those of all, each array with one entry for each sample or one for all."""
    _copy(source.J, b, rows.J.reshape(rows.J.size))
    _copy(source.k, b, rows.k)
    _copy(source.lower, b, rows.lower)
    _copy(source.upper, b, rows.upper)
    _copy(source.P, b, rows.P.reshape(rows.P.size))
    _copy(source.bend, b, rows.bend)
    _copy(source.q, b, rows.q.reshape(rows.q.size))


@inner
def _copy(source: Tile, b: int, target: Tile) -> None:
    own = source[b % source.shape[0]]
    for i in range(target.size):
        target[i] = own[i]


@inner
def run(
    y: Tile, dual: Tile, found: Tile, raw: Tile, options: Tile, source: Rows, room: Tile, order: int, back: int,
    begin: int, end: int,
) -> int:  # fmt: skip
    """Samples `begin` to `end`: the projection, or (`back`) its derivative at y and dual for the gradient in raw."""
    sample = furnish(room, source, y.shape[1], dual.shape[1], order)
    for b in range(begin, end):
        fetch(sample.rows, source, b)
        sample.raw[:], sample.y[:], sample.dual[:] = raw[b], y[b], dual[b]
        if back:
            derive(sample, options[b, 0], options[b, 1], sample.raw)
            y[b], dual[b] = sample.system.move, sample.shift[0]
        else:
            found[b, 0], found[b, 1] = settle(sample, options[b, 0], options[b, 1] != 0.0)
            y[b], dual[b] = sample.y, sample.dual
    return 0


def _run(
    y: Any, dual: Any, found: Any, raw: Any, options: Any, curved: Any, blocks: Any, rooms: Any, J: Any, k: Any,
    lower: Any, upper: Any, P: Any, bend: Any, q: Any, back: int, curves: int, parts: int, order: int, threads: int,
    size: int, samples: int, R: int, n: int, Js: int, ks: int, lowers: int, uppers: int, Ps: int, bends: int, qs: int,
    begin: int, end: int,
) -> int:  # fmt: skip
    """`run` of addresses; each thread has its own room."""
    source = Rows(
        carray(J, (Js, n * R)), carray(k, (ks, R)), carray(lower, (lowers, R)), carray(upper, (uppers, R)),
        carray(P, (Ps, curves * n * n)), carray(bend, (bends, curves)), carray(q, (qs, curves * n)),
        carray(curved, (curves,)), carray(blocks, (parts, 4)),
    )  # fmt: skip
    return run(
        carray(y, (samples, n)), carray(dual, (samples, R)), carray(found, (samples, 2)), carray(raw, (samples, n)),
        carray(options, (samples, 2)), source, carray(rooms, (threads, size))[begin * threads // samples], order, back,
        begin, end,
    )  # fmt: skip


@cache
def _kernel() -> Callable[..., int]:
    """The compiled kernel of addresses."""
    return compile_addresses(_run, torch.float64)


def _launch(numbers: Numbers, outputs: list[Tensor], inputs: list[Tensor], back: bool) -> None:
    (samples, n), R, C = outputs[0].shape, outputs[1].shape[-1], numbers.curved.numel()
    parts, order, threads = numbers.blocks.shape[0], int(numbers.blocks[:, 3].max()), torch.get_num_threads()
    size = room_of(n, R, C, parts, order)
    inputs = [*inputs, numbers.curved, numbers.blocks, outputs[0].new_empty(threads, size)]
    counts = (int(back), C, parts, order, threads, size)
    launch(_kernel(), outputs, inputs, numbers[:7], torch.Size((samples, R, n)), *counts, tile=1)


def project(
    raw: Tensor, weight: Tensor, y: Tensor, dual: Tensor, numbers: Numbers
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """``min weight/2 |y - raw|^2`` over the set, from y ``(B, n)`` and multipliers ``(B, R)``.

    Returns y, multipliers, and two ``(B,)``: the residual, and the steps spent.
    """
    y, dual, found = y.clone(), dual.clone(), raw.new_empty(raw.shape[0], 2)
    known = (dual != 0).any(-1, keepdim=True).to(raw)
    _launch(numbers, [y, dual, found], [raw, torch.cat([weight, known], -1)], False)
    return y, dual, found.unbind(-1)


def project_back(
    grad: Tensor, weight: Tensor, tolerance: Tensor, y: Tensor, dual: Tensor, numbers: Numbers
) -> tuple[Tensor, Tensor]:
    """The cotangents of raw ``(B, n)`` and of the rows ``(B, R)``, of a weighted distance; see `conic_steps.derive`."""
    u, force, unused = y.clone(), dual.clone(), grad.new_empty(grad.shape[0], 2)
    _launch(numbers, [u, force, unused], [grad, torch.cat([weight, tolerance], -1)], True)
    return u, force
