"""The compiled projection onto small curved sets and its derivative: which sets it takes, and its launch.

The fields of all blocks are laid one after the other in memory, beside a table that says where each one begins. Blocks
are known by the names of `hardnet.solvers.conic.blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.cpu.launch import HAS_NUMBA, launch
from hardnet.kernels.cpu.ready import entries, ready
from hardnet.kernels.limits import CURVED, MOST_CONIC_NUMBERS, MOST_CONIC_ORDER, ROUNDINGS
from hardnet.rows import REALS

FORMS = {
    "Intervals": (0, 0, 3),
    "SecondOrder": (1, 1, 4),
    "Balls": (2, 1, 2),
    "SemiDefinite": (3, 2, 2),
    "Quadratics": (4, 0, 3),
}
"""How each block is written, which cone its rows lie in, and how many fields it has: `conic_entry`."""
LEAST = 1e-13
"""A residual that is always small enough."""

Shapes = tuple[tuple[int, ...], ...]


class Plan(NamedTuple):
    """How the numbers of some blocks lie in memory.

    Attributes:
        table: Kind, first row, rows, order, form, places and steps of four fields of each block, ``(blocks, 13)``.
        curved: The rows of quadratics, ``(C,)``.
        rows: R of all blocks.
        order: Of the largest matrix.
        small: Whether compiled code takes such blocks.
        room: How many numbers a thread needs to work in.
    """

    table: Tensor
    curved: Tensor
    rows: int
    order: int
    small: bool
    room: int


@lru_cache(maxsize=256)
def plan(kinds: tuple[str, ...], shapes: Shapes, n: int) -> Plan:
    """The plan of blocks whose fields have these shapes, each led by B or 1."""
    table, curved, row, place, rest = [], [], 0, 0, iter(shapes)
    for kind in kinds:
        form, cone, count = FORMS[kind]
        own = [next(rest) for _ in range(count)]
        order = own[0][-1] if kind == "SemiDefinite" else 0
        size = {"Intervals": own[0][-2], "SecondOrder": own[0][-2] + 1, "Balls": n + 1, "Quadratics": 1}.get(kind)
        size = order * (order + 1) // 2 if size is None else size
        sizes = [torch.Size(shape).numel() for shape in own]
        steps = [0 if shape[0] == 1 else whole // shape[0] for shape, whole in zip(own, sizes, strict=True)]
        places = [place + sum(sizes[:i]) for i in range(count)]
        unused = [0] * (4 - count)
        if size:
            table.append([cone, row, size, order, form, *places, *unused, *steps, *unused])
        curved += [row] if kind == "Quadratics" else []
        row, place = row + size, place + sum(sizes)
    return _planned(table, curved, row, n)


def _planned(table: list[list[int]], curved: list[int], R: int, n: int) -> Plan:
    """The plan with its sizes."""
    parts, order, C = len(table), max((line[3] for line in table), default=0), len(curved)
    room = 7 * n + 20 * R + (3 * n + 1 + R) * R + n * n + C * (n * n + n + 1) + (parts + 2) * order * order + parts
    small = 0 < n * R <= MOST_CONIC_NUMBERS and order <= MOST_CONIC_ORDER
    small = small and all(line[2] > 1 for line in table if line[0] == 1)  # a cone of a height alone is an interval
    exact = {"dtype": torch.float64, "device": "cpu"}
    return Plan(torch.tensor(table, **exact), torch.tensor(curved, **exact), R, order, small, room)


def _plan_of(raw: Tensor, kinds: Sequence[type], fields: Sequence[Tensor]) -> Plan:
    return plan(tuple(kind.__name__ for kind in kinds), tuple(tuple(field.shape) for field in fields), raw.shape[-1])


def takes(raw: Tensor, kinds: Sequence[type], fields: Sequence[Tensor]) -> bool:
    """Whether compiled code takes these blocks, in plain memory: small, on a CPU, and not empty."""
    if not (HAS_NUMBA and raw.is_cpu and raw.dtype in REALS and raw.numel()):
        return False
    return _plan_of(raw, kinds, fields).small and ready("conic_entry")


def project(
    raw: Tensor, kinds: Sequence[type], fields: Sequence[Tensor], tolerance: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """``argmin |y - raw|`` subject to every block, in float64.

    Args:
        raw: ``(B, n)``.
        kinds: The blocks that the fields make up.
        fields: Each led by B or 1.
        tolerance: Residual of a solved sample.

    Returns:
        y ``(B, n)``, multipliers ``(B, R)``, the steps and the residual ``(B,)``, and the samples that are left open:
        ``(k,)``, None for none.
    """
    eps, exact = torch.finfo(raw.dtype).eps, raw.detach().double()
    holds, rounding = min(ROUNDINGS * eps, CURVED.feasible), 8 * raw.shape[-1] * eps
    limits = torch.tensor(
        [CURVED.inside * eps, holds, max(tolerance * 1e-3, LEAST), tolerance, rounding], dtype=exact.dtype
    )
    y, dual = torch.empty_like(exact), exact.new_empty(len(raw), _plan_of(raw, kinds, fields).rows)
    found = exact.new_empty(len(raw), 3)
    left = _launch([y, dual, found], exact, limits, kinds, fields, False)
    residual, steps, is_open = found.unbind(-1)
    return y, dual, steps.long(), residual, is_open.nonzero().squeeze(-1) if left else None


def project_back(
    grad: Tensor, y: Tensor, dual: Tensor, kinds: Sequence[type], fields: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """The cotangents of raw ``(B, n)`` and of the values G of the blocks ``(B, R)``, all in float64."""
    u, weight = y.clone(), dual.clone()
    _launch([u, weight, y.new_empty(len(y), 3)], grad, grad.new_zeros(5), kinds, fields, True)
    return u, weight


def _launch(
    outputs: list[Tensor], raw: Tensor, limits: Tensor, kinds: Sequence[type], fields: Sequence[Tensor], back: bool
) -> int:
    """Run the kernel; how many samples it leaves open."""
    own, threads = _plan_of(raw, kinds, fields), torch.get_num_threads()
    numbers = torch.cat([field.detach().reshape(-1) for field in fields]).double()
    inputs = [raw, limits, numbers, own.table, own.curved, raw.new_empty(threads, own.room)]
    counts = (int(back), len(numbers), own.table.shape[-1], len(own.table), len(own.curved), own.order)
    shape = torch.Size((len(raw), own.rows, raw.shape[-1]))
    return launch(entries("conic_entry")[0], outputs, inputs, (), shape, *counts, threads, own.room, tile=1)
