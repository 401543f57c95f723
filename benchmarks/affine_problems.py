"""Problems of the closed form for the benchmarks, the bytes they must move, and their time on a device alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hardnet.experiments import timing

Size = tuple[int, int, int]
"""(B, n, m)."""
Enforce = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
DRAWN = 1000
"""Samples of a large batch that are drawn; the rest repeats them around other raw outputs."""
ROTATED_BYTES, MOST_SETS, SMALL_BYTES = 2e8, 20, 1e6
"""Sets of inputs that are timed in turns: together larger than a cache; one alone where only latency counts."""


def problem(size: Size, shared: bool, dtype: torch.dtype, device: str, seed: int) -> list[Tensor]:
    """A random feasible problem: A ~ N(0, 1), bounds around a centre y0, raw = y0 + 3 N(0, 1)."""
    samples, n, m = size
    source = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=source, dtype=torch.float64)
    A, centre = draw(m, n) if shared else draw(samples, m, n), draw(samples, n)
    product = (A @ centre.unsqueeze(-1)).squeeze(-1)
    numbers = centre + 3 * draw(samples, n), A, product - draw(samples, m).abs(), product + draw(samples, m).abs()
    return [number.to(device=device, dtype=dtype) for number in numbers]


def large_problem(size: Size, shared: bool, dtype: torch.dtype, device: str, seed: int) -> list[Tensor]:
    """The same for a batch that would take long to draw, and a gradient of y."""
    samples, n, m = size
    source = torch.Generator(device).manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=source, device=device, dtype=dtype)
    few = problem((min(samples, DRAWN), n, m), shared, dtype, device, seed)
    times = -(-samples // len(few[0]))
    raw, A, lower, upper = (
        part if shared and place == 1 else part.repeat(times, *[1] * (part.dim() - 1))[:samples].contiguous()
        for place, part in enumerate(few)
    )
    return [raw + 0.1 * draw(samples, n), A, lower, upper, draw(samples, n)]


def floors(size: Size, bandwidth: float, itemsize: int = 4, shared: bool = False) -> tuple[float, float]:
    """Milliseconds to move the numbers of the forward, and of forward and backward with all four gradients."""
    samples, n, m = size
    matrix = (1 if shared else samples) * m * n
    forward = matrix + samples * (2 * n + 2 * m)
    backward = 2 * matrix + samples * (3 * n + 4 * m)
    return forward * itemsize / bandwidth, (forward + backward) * itemsize / bandwidth


def gradients(enforce: Enforce, numbers: list[Tensor], weight: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of ``sum(weight * y)`` with respect to raw, A, lower and upper."""
    leaves = [number.detach().requires_grad_() for number in numbers]
    return torch.autograd.grad(enforce(*leaves), leaves, weight, allow_unused=True)


def replayed(enforce: Enforce, size: Size, shared: bool, dtype: torch.dtype, device: str, seed: int) -> dict:
    """Milliseconds of the forward, and of forward and backward, on the device alone: replays of a captured graph."""
    moved, _ = floors(size, 1.0, dtype.itemsize, shared)
    count = 1 if moved < SMALL_BYTES else max(2, min(MOST_SETS, int(ROTATED_BYTES / moved) + 1))
    sets = [large_problem(size, shared, dtype, device, seed + index) for index in range(count)]
    if shared:
        sets = [[raw, sets[0][1], *rest] for raw, _, *rest in sets]

    def forward(*numbers: Tensor) -> Tensor:
        with torch.no_grad():
            return enforce(*numbers[:4])

    return {
        "forward": timing.replay_time(forward, sets),
        "both": timing.replay_time(lambda *numbers: gradients(enforce, list(numbers[:4]), numbers[4]), sets),
    }
