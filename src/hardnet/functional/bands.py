"""The nearest profiles within limits on values, steps and second differences, by compiled code in O(T) a step.

An interior point finds the active rows, and a solve on these the exact point; `hardnet.kernels.cpu.bands`. A sample
that it does not solve, and all code without the kernel, is left to the projection onto the same rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from hardnet.kernels.cpu.launch import HAS_NUMBA, launch
from hardnet.modes import may_look, plain
from hardnet.nearest.derivative import Route, nearest
from hardnet.rows import Batch
from hardnet.solvers.solution import Found, Status


def project_bands(raw: Tensor, low: Tensor, high: Tensor, weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """``argmin sum_t weight_t (z_t - raw_t)^2`` with limits on values, steps and second differences of z.

    What stands before the first value is left out of its rows. The answer is in the dtype of raw, beside which problems
    are solved; None where no compiled code runs.

    Args:
        raw: ``(*batch, T)``.
        low: ``(*batch, 3, T)`` or with fewer dimensions in front: of values, steps and second differences; may be
            infinite.
        high: Like `low`.
        weight: ``(T,)`` or ``(*batch, T)``, positive.
    """
    if not (HAS_NUMBA and may_look(raw) and plain(raw, low, high, weight) and raw.numel()):
        return None
    T, batch = raw.shape[-1], raw.shape[:-1]
    exact = raw.double()
    least, most = (part.double().expand(*batch, 3, T).reshape(-1, 3 * T) for part in (low, high))
    mass = weight.double() if weight.dim() == 1 else weight.double().expand(*batch, T).reshape(-1, T)
    flat = exact.reshape(-1, T)
    route = Route(_find, _product, last="a profile within limits on its differences")
    found = nearest(route, Batch(flat, mass, least, most))
    return found.y.reshape(raw.shape).to(raw.dtype), (found.status == int(Status.SOLVED)).reshape(batch)


def rows_of(z: Tensor) -> Tensor:
    """Values, steps and second differences ``(P, 3 T)`` of ``(P, T)``."""
    first = torch.nn.functional.pad(z[:, :-1], (1, 0))
    second = torch.nn.functional.pad(z[:, :-2], (2, 0)) if z.shape[-1] > 1 else torch.zeros_like(z)
    return torch.cat([z, z - first, z - 2 * first + second], dim=-1)


def _find(rows: Batch) -> Found:
    """The nearest points ``(P, T)`` by the kernel; problems inside keep their bits."""
    raw, weight, low, high = rows.numbers
    assert low is not None
    assert high is not None
    at = rows_of(raw)
    inside = ((at >= low) & (at <= high)).all(-1)
    sound = (low <= high).all(-1) & (weight > 0).all() & weight.isfinite().all() & raw.isfinite().all(-1)
    left = (~inside & sound).nonzero().squeeze(-1)
    y, place, solved = raw.clone(), torch.zeros_like(low), inside & sound
    if len(left):
        own = [raw[left], weight if weight.dim() == 1 else weight[left], low[left], high[left]]
        found = [torch.empty_like(own[0]), torch.empty_like(own[2]), raw.new_empty(len(left), 1)]
        shape = torch.Size((len(left), 3, raw.shape[-1]))
        launch(_kernel(0), found, own[:1], (own[1], own[2], own[3]), shape, tile=16)
        y[left], place[left], solved[left] = found[0], found[1], found[2].squeeze(-1) > 0
    status = torch.where(solved, int(Status.SOLVED), int(Status.NOT_CONVERGED)).to(torch.int8)
    return Found(y, None, place, None, status, torch.zeros_like(raw[:, 0]))


def _product(gradient: Tensor, rows: Batch, found: Found, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """``W u`` to raw, ``u (raw - y)`` to the weights, and the multipliers to the active bounds."""
    raw, weight, place = rows.raw, rows.A, found.dual
    to_raw, to_rows = gradient.clone(), torch.zeros_like(place)
    left = (place != 0).any(-1).nonzero().squeeze(-1)
    if len(left):
        own = [gradient[left].contiguous(), place[left]]
        passed = [torch.empty_like(own[0]), torch.empty_like(own[1])]
        shape = torch.Size((len(left), 3, raw.shape[-1]))
        mass = weight if weight.dim() == 1 else weight[left]
        launch(_kernel(1), passed, own, (mass,), shape, tile=16)
        to_raw[left], to_rows[left] = passed
    to_weight = (to_raw / weight * (raw - found.y)).sum_to_size(weight.shape)
    bounds = torch.where(place < 0, to_rows, 0.0), torch.where(place > 0, to_rows, 0.0)
    return to_raw, to_weight, *bounds, None, None


@cache
def _kernel(direction: int) -> Any:
    """The kernel of one direction; the first call imports numba and compiles."""
    from hardnet.kernels.cpu import bands, compiling

    return compiling.compile_addresses(bands.ENTRIES[direction], torch.float64)
