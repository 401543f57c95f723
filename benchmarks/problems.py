"""The problems of every benchmark and the bytes that they must move; needs only torch, so any revision can be timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

NUMBERS = ("raw", "A", "lower", "upper")
DRAWN = 1000
"""Samples drawn for a large batch; the rest repeats them with different raw outputs."""


class Size(NamedTuple):
    """Numbers of samples, outputs, rows and equalities among the rows, and whether all samples share A."""

    B: int
    n: int
    m: int
    equalities: int = 0
    shared: bool = False

    def __str__(self) -> str:
        rows = f"({self.equalities}eq+{self.m - self.equalities})" if self.equalities else str(self.m)
        return f"{self.B}, {rows}x{self.n}{' shared' if self.shared else ''}"


def size_of(row: dict[str, Any]) -> Size:
    """The size of a recorded row."""
    return Size(*(row[field] for field in Size._fields))


class Case(NamedTuple):
    """One batch of problems: ``lower <= A y <= upper`` whose first `equalities` rows are tight."""

    raw: Tensor
    A: Tensor
    lower: Tensor
    upper: Tensor
    equalities: int = 0

    def take(self, count: int) -> Case:
        """The first `count` samples."""
        A = self.A if self.A.dim() == 2 else self.A[:count]
        return Case(self.raw[:count], A, self.lower[:count], self.upper[:count], self.equalities)

    def leaves(self) -> list[Tensor]:
        """New leaf tensors of the four numbers."""
        return [number.detach().clone().requires_grad_() for number in self[:4]]

    def rows(self) -> Tensor:
        """A expanded to one matrix per sample."""
        return self.A.expand(len(self.raw), *self.A.shape[-2:])


def problem(size: Size, device: str = "cpu", dtype: torch.dtype = torch.float64, seed: int = 0) -> Case:
    """A ~ N(0, 1), bounds A y0 -/+ |N(0, 1)| around a center, raw = y0 + 3 N(0, 1)."""
    source = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=source, dtype=torch.float64)
    A = draw(size.m, size.n) if size.shared else draw(size.B, size.m, size.n)
    center = draw(size.B, size.n)
    middle = (A @ center.unsqueeze(-1)).squeeze(-1)
    lower, upper = middle - draw(size.B, size.m).abs(), middle + draw(size.B, size.m).abs()
    lower[:, : size.equalities] = upper[:, : size.equalities] = middle[:, : size.equalities]
    numbers = (center + 3 * draw(size.B, size.n), A, lower, upper)
    raw, A, lower, upper = (number.to(device=device, dtype=dtype) for number in numbers)
    return Case(raw, A, lower, upper, size.equalities)


def large_problem(size: Size, device: str, dtype: torch.dtype, seed: int = 0) -> Case:
    """The same for a batch that would take too long to draw."""
    few = problem(size._replace(B=min(size.B, DRAWN)), device, dtype, seed)
    times = -(-size.B // len(few.raw))
    spread = lambda part: part.repeat(times, *[1] * (part.dim() - 1))[: size.B].contiguous()
    source = torch.Generator(device).manual_seed(seed)
    moved = 0.1 * torch.randn(size.B, size.n, generator=source, device=device, dtype=dtype)
    A = few.A if size.shared else spread(few.A)
    return Case(spread(few.raw) + moved, A, spread(few.lower), spread(few.upper), size.equalities)


def floors(size: Size, bandwidth: float, itemsize: int) -> tuple[float, float]:
    """Milliseconds to move the numbers of forward, and of forward and backward with all four gradients.

    `bandwidth` is in bytes per millisecond; every number is moved once.
    """
    matrix = (1 if size.shared else size.B) * size.m * size.n
    forward = matrix + size.B * (2 * size.n + 2 * size.m)
    backward = 2 * matrix + size.B * (3 * size.n + 4 * size.m)
    return forward * itemsize / bandwidth, (forward + backward) * itemsize / bandwidth


def operations(size: Size) -> float:
    """Floating-point operations of the closed form: ``A f``, ``A A'`` (half), its factor, two solves and ``A' q``."""
    return size.B * (4.0 * size.m * size.n + size.m * (size.m + 1) * size.n + size.m**3 / 3 + 2 * size.m**2)


def violation(case: Case, y: Tensor) -> float:
    """The largest violation of a row by y, evaluated in float64."""
    A, lower, upper = (part.double() for part in (case.A, case.lower, case.upper))
    product = (A @ y.double().unsqueeze(-1)).squeeze(-1)
    return torch.maximum(product - upper, lower - product).clamp_min(0).max().item()


def by_row(case: Case, grads: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradients, summed over the two bounds of an equality, since tools may split them as they like."""
    grads = {name: grad.to(case.raw) for name, grad in grads.items()}
    if "lower" in grads and "upper" in grads:
        total, tight = grads["lower"] + grads["upper"], torch.arange(case.A.shape[-2]) < case.equalities
        grads |= {name: torch.where(tight.to(total.device), total, grads[name]) for name in ("lower", "upper")}
    return grads


def errors(case: Case, found: tuple[Tensor, dict[str, Tensor]], exact: tuple[Tensor, dict[str, Tensor]]) -> dict:
    """Worst violation, worst distance to the exact y, and worst relative error of the gradients that a tool provides.

    The gradient of a shared A is a sum over the batch, so it is compared only if both used the same batch.
    """
    y, whole, right = found[0].detach().to(case.raw), by_row(case, found[1]), by_row(case, exact[1])
    comparable: Sequence[str] = [name for name in whole if name != "A" or case.A.dim() == 3 or len(y) == len(exact[0])]
    worst = [_relative(whole[name], right[name]) for name in comparable]
    return {
        "violation": violation(case, y),
        "distance": (y - exact[0][: len(y)].to(y)).abs().max().item(),
        "gradient_error": max(worst) if worst else None,
    }


def _relative(found: Tensor, exact: Tensor) -> float:
    exact = exact[: len(found)]
    return ((found - exact).norm() / exact.norm().clamp_min(1e-300)).item()
