"""The nearest monotone profile within bounds: pool adjacent violators.

With bounds made monotone first (a lower bound holds for all later outputs, an upper one for all earlier), the answer is
constant on blocks, each at its weighted mean or at a bound of its ends, and

    y_i = max over a <= i of min over b >= i of clamp(mean(raw_a ... raw_b), lower_b, upper_a).

The blocks are found without derivatives, on a CPU by compiled code in O(n), else by this formula in tensor operations;
y is then a function of the means of the given blocks, whose derivative is exact wherever blocks do not change.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import (
    CROSSED,
    NOT_FINITE,
    NOT_POSITIVE,
    InfeasibleError,
    ShapeError,
    in_samples,
    sample_indices,
    sentence,
)
from hardnet.functional.derivatives import keep_value
from hardnet.functional.samples import Policy, reject
from hardnet.kernels.cpu.launch import HAS_NUMBA, launch
from hardnet.modes import may_look, plain
from hardnet.rows import ordered
from hardnet.shapes import broadcast_batch, check_bound, require_float

ENTRIES_AT_ONCE = 4096
"""Means of intervals of one sample that the tensor operations hold at once."""


def project_monotone(
    raw: Tensor,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    *,
    increasing: bool = True,
    weights: Tensor | None = None,
    on_infeasible: Policy = "raise",
    on_invalid: Policy = "raise",
) -> Tensor:
    """``argmin sum_i weights_i (y_i - raw_i)^2  s.t.  y_1 <= y_2 <= ... <= y_n,  lower <= y <= upper``.

    The order and the bounds hold exactly, as ``<=`` tells; what satisfies them already keeps its bits. O(n) on a CPU.

    Args:
        raw: ``(*batch, n)``.
        lower: ``(n,)``, ``(*batch, n)`` or a number for all outputs; None is -inf.
        upper: Like `lower`; None is +inf.
        increasing: Whether outputs rise, else they fall.
        weights: ``(n,)`` or ``(*batch, n)``, positive; None for ones.
        on_infeasible: Where no profile fits the bounds, on a CPU in eager mode, raise an error or return NaN for that
            sample; elsewhere NaN.
        on_invalid: The same for NaN, lower > upper, or a weight that is not positive.
    """
    require_float("raw", raw)
    n = raw.shape[-1] if raw.dim() else 0
    if n == 0:
        raise ShapeError(sentence("raw", "shape (*batch, n) with n >= 1", tuple(raw.shape)))
    named = {"lower": lower, "upper": upper, "weights": weights}
    low, high, weight = (check_bound(name, value, raw, n) for name, value in named.items())
    batch = raw.shape[:-1]
    for name, value in zip(named, (low, high, weight), strict=True):
        batch = batch if value is None else broadcast_batch(name, batch, value.shape[:-1])
    finite = raw.isfinite().all(-1)
    positive = finite if weight is None else (weight.isfinite() & (weight > 0)).all(-1)
    crossed = ~ordered(*_absent(low, high, raw)).all(-1)
    sound = finite & positive & ~crossed
    clean = torch.where(finite.unsqueeze(-1), raw, 0.0).expand(*batch, n).double()
    weight = None if weight is None else torch.where(positive.unsqueeze(-1), weight, 1.0)
    low, high, weight = (None if part is None else part.double() for part in (low, high, weight))
    sign = 1.0 if increasing else -1.0
    below, above = (None if part is None else sign * part for part in ((low, high) if increasing else (high, low)))
    y, fits = _pooled(sign * clean, below, above, weight)
    if may_look(y) and not bool((sound & fits).all()):
        if on_invalid == "raise":
            reject(~finite, NOT_FINITE, "raw")
            reject(~positive, NOT_POSITIVE, "weights")
            reject(crossed, CROSSED, "lower, upper")
        if on_infeasible == "raise":
            _refuse_empty((sound & ~fits).expand(batch), *_absent(below, above, clean))
    return torch.where((sound & fits).unsqueeze(-1), sign * y, torch.nan).to(raw.dtype)


def _absent(low: Tensor | None, high: Tensor | None, raw: Tensor) -> tuple[Tensor, Tensor]:
    """The bounds, infinite where there are none."""
    far = raw.new_full(raw.shape[-1:], torch.inf)
    return -far if low is None else low, far if high is None else high


def _pooled(raw: Tensor, low: Tensor | None, high: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """The rising profile ``(*batch, n)``: means of blocks, clamped to bounds of their ends; and which samples fit."""
    low = None if low is None else low.cummax(-1).values
    high = None if high is None else high.flip(-1).cummin(-1).values.flip(-1)
    rest = (None if part is None else part.detach() for part in (low, high, weight))
    start, last = blocks(raw.detach(), *rest)
    add = lambda part: torch.zeros_like(raw).scatter_add(-1, start, part.expand(raw.shape)).gather(-1, start)
    total, mass = (add(raw), last - start + 1) if weight is None else (add(weight * raw), add(weight))
    y = torch.where(start == last, raw, total / mass)
    if low is not None:
        y = torch.maximum(y, low.expand(raw.shape).gather(-1, last))
    if high is not None:
        y = torch.minimum(y, high.expand(raw.shape).gather(-1, start))
    least, most = _absent(low, high, raw)
    exact = torch.minimum(y.detach().cummax(-1).values, most.detach())  # without the roundings of the means
    return keep_value(y, exact), (least <= most).all(-1)


@torch.no_grad()
def blocks(raw: Tensor, low: Tensor | None, high: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """The first and the last output of the block of each output, ``(*batch, n)`` int64; all in float64, bounds rise."""
    least, most = _absent(low, high, raw)
    mass = raw.new_ones(raw.shape[-1:]) if weight is None else weight
    if HAS_NUMBA and raw.is_cpu and raw.numel() and plain(raw, mass, least, most):
        return _by_kernel(raw, least, most, mass)
    n = raw.shape[-1]
    place = torch.arange(n, device=raw.device)
    value = torch.full_like(raw, -torch.inf)
    rows = max(1, ENTRIES_AT_ONCE // n)
    for begin in range(0, n, rows):  # intervals that begin at these outputs
        inside = place >= place[begin : begin + rows].unsqueeze(-1)
        total, own = (torch.where(inside, part[..., None, :], 0.0).cumsum(-1) for part in (mass * raw, mass))
        above = most[..., begin : begin + rows, None]
        mean = torch.maximum(torch.minimum(total / own, above), least.unsqueeze(-2))  # if these cross, either will do
        lowest = torch.where(inside, mean, torch.inf).flip(-1).cummin(-1).values.flip(-1)
        value = torch.maximum(value, torch.where(inside, lowest, -torch.inf).amax(-2))
    new = value[..., 1:] != value[..., :-1]
    begins = torch.nn.functional.pad(new, (1, 0), value=True)
    ends = torch.nn.functional.pad(new, (0, 1), value=True)
    start = torch.where(begins, place, 0).cummax(-1).values
    return start, torch.where(ends, place, n - 1).flip(-1).cummin(-1).values.flip(-1)


def _by_kernel(raw: Tensor, low: Tensor, high: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The same by compiled code."""
    n = raw.shape[-1]
    flat = raw.reshape(-1, n)
    shared = lambda part: part if part.dim() == 1 else part.expand(raw.shape).reshape(-1, n)
    found = [torch.empty_like(flat), torch.empty_like(flat)]
    launch(_kernel(), found, [flat], (shared(weight), shared(low), shared(high)), torch.Size((len(flat), 1, n)))
    start, last = (part.reshape(raw.shape).long() for part in found)
    return start, last


@cache
def _kernel() -> Any:
    """The compiled search; the first call imports numba and compiles."""
    from hardnet.kernels.cpu import compiling, pooling

    return compiling.compile_addresses(pooling.ENTRIES[0], torch.float64)


def _refuse_empty(bad: Tensor, low: Tensor, high: Tensor) -> None:
    """Raise an `InfeasibleError` that names two outputs whose bounds contradict the order, if there are any."""
    if not bool(bad.any()):
        return
    least, most = (part.expand(*bad.shape, part.shape[-1])[bad][0] for part in (low, high))
    end = int((least.cummax(-1).values > most).nonzero()[0])
    begin = int(least[: end + 1].argmax())
    samples = sample_indices(bad) if bad.dim() else []
    text = f"the set is empty: the bounds of outputs {begin} and {end} contradict the order{in_samples(samples)}"
    raise InfeasibleError(f"{text}; pass on_infeasible='nan'", samples)
