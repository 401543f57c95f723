"""Who computes the closed form: one rule, one object per backend, each with the same two methods.

    forward(raw, A, lower, upper, factor) -> (y, kept, lost)
    backward(gradient, raw, A, lower, upper, factor, kept, wants_matrix) -> (g_raw, g_A | None, g_lower, g_upper)

What `forward` kept for it is handed to `backward`, together with the path itself, so that nobody chooses twice. Every
path answers NaN for a sample that it cannot bring to its bounds to rounding: invalid numbers, dependent rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from hardnet.functional.affine_factors import Factor, PseudoInverse, by_qr, make_factor, restore
from hardnet.functional.affine_formulas import (
    Gradients,
    moved,
    outer_sum,
    signed_violation,
    split_by_side,
    times,
    times_transposed,
    to_bounds,
    unverified,
)
from hardnet.kernels.cpu.affine import CompiledPath
from hardnet.kernels.gpu.affine import FusedPath
from hardnet.modes import may_look

Kept = tuple[Tensor, ...]
CORRECTIONS, MOST_CORRECTIONS = 2, 16
"""How often y is corrected with what is left of s at y; at most so often where a look tells who needs it."""


class Path(Protocol):
    """One way to compute the closed form and its gradients."""

    def wants_factor(self, A: Tensor) -> bool:
        """Whether both directions must be given ``P = A⁺'``."""
        ...

    def forward(
        self, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None
    ) -> tuple[Tensor, Kept, int]:
        """Y ``(B, n)``, what `backward` reads of it, and how many samples are known to have no answer."""
        ...

    def backward(
        self,
        gradient: Tensor,
        raw: Tensor,
        A: Tensor,
        lower: Tensor | None,
        upper: Tensor | None,
        factor: Tensor | None,
        kept: Kept,
        wants_matrix: bool,
    ) -> Gradients:
        """The gradients of raw, A (if wanted), lower and upper ``(B, m)``."""
        ...


def choose(raw: Tensor, A: Tensor, memory: bool) -> str:
    """Compiled code where it takes these tensors; else, and wherever something transforms them, the torch path.

    Kernels read `memory`, which is what `plain` tensors are. Under torch.compile those of a GPU are operators.
    """
    if PATHS["cpu"].takes(raw, A, memory):
        return "cpu"
    return "gpu" if PATHS["gpu"].takes(raw, A, memory) else "torch"


class TorchPath:
    """The formulas in torch, in float64 whatever the dtype, so that float32 rows lose nothing but their rounding."""

    def wants_factor(self, A: Tensor) -> bool:
        """It makes its own."""
        return False

    def forward(
        self, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None
    ) -> tuple[Tensor, Kept, int]:
        """``y = raw + A⁺ s``, corrected by what is left of s at y until that is rounding."""
        wide = Wide(*(widen(part) for part in (raw, A, lower, upper)))
        made = make_factor(wide.A, raw.dtype) if factor is None else PseudoInverse(widen(factor))
        y, violation = apply_factor(wide, made, raw.dtype)
        lost = int(y.isnan().any(-1).sum()) if may_look(y) else 0
        return y, (violation,) if factor is not None else (violation, *made.kept()), lost

    def backward(
        self,
        gradient: Tensor,
        raw: Tensor,
        A: Tensor,
        lower: Tensor | None,
        upper: Tensor | None,
        factor: Tensor | None,
        kept: Kept,
        wants_matrix: bool,
    ) -> Gradients:
        """The formulas of `affine_formulas` with the factor of the forward."""
        violation, *parts = kept
        made = PseudoInverse(widen(factor)) if factor is not None else restore(widen(A), parts)
        grads = pull_back(widen(gradient), widen(raw), widen(A), violation, made, wants_matrix)
        return tuple(None if grad is None else grad.to(raw.dtype) for grad in grads)  # pyright: ignore[reportReturnType]


PATHS: dict[str, Any] = {"torch": TorchPath(), "cpu": CompiledPath(), "gpu": FusedPath()}
"""Every way to compute the closed form, by the name that `choose` gives it."""


class Wide(NamedTuple):
    """The numbers of a call in float64."""

    raw: Tensor
    A: Tensor
    lower: Tensor | None
    upper: Tensor | None


def widen(tensor: Any) -> Any:
    """Float64, where the device has it; None stays None."""
    return tensor if tensor is None or tensor.device.type == "mps" else tensor.double()


def pull_back(
    gradient: Tensor, raw: Tensor, A: Tensor, violation: Tensor, made: Factor, wants_matrix: bool
) -> Gradients:
    """The gradients at the head of `affine_formulas` from the factor and s; differentiable where the factor is."""
    w = made.solve_transposed(gradient)
    active, below, above = split_by_side(violation, w)
    grad_raw = gradient - times_transposed(A, active)
    if not wants_matrix:
        return grad_raw, None, below, above
    step = made.solve(violation)
    square = A.shape[-1] == A.shape[-2]  # then nothing but rounding lies across the rows, which q would enlarge
    across = torch.zeros_like(gradient) if square else gradient - times_transposed(A, w)
    left = (made.solve_transposed(step), -w, -active)
    return grad_raw, outer_sum(A, left, (across, step, raw)), below, above


def apply_factor(wide: Wide, made: Factor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Y ``(B, n)`` in `dtype`, NaN for samples that do not reach their bounds, and s ``(B, m)``.

    The first step leaves rounding relative to the terms of A raw, which may be far larger than those of A y: every
    sample is corrected at y once. Where a look is free, the samples that need it are corrected again.
    """
    raw, A, lower, upper = wide
    rounding = torch.finfo(dtype).eps
    violation = signed_violation(times(A, raw), lower, upper)
    y = moved(raw, made.solve(violation))
    look = may_look(y)
    for count in range(MOST_CORRECTIONS if look else CORRECTIONS):
        rest = to_bounds(times(A, y), lower, upper)
        if look and count > 0:
            needs = unverified(rest, A, y, lower, upper, rounding / 4)
            if not bool(needs.any()):
                break
            rest = torch.where(needs.unsqueeze(-1), rest, 0)
        y = moved(y, made.solve(rest))
    y = y.to(dtype)
    bad = unverified(to_bounds(times(A, widen(y)), lower, upper), A, widen(y), lower, upper, rounding)
    return torch.where(bad.unsqueeze(-1), torch.nan, y), violation


def careful(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """Y of the samples that compiled code gave up, by QR in float64; NaN where that fails too."""
    wide = Wide(*(widen(part) for part in (raw, A, lower, upper)))
    return apply_factor(wide, PseudoInverse(by_qr(wide.A, raw.dtype)), raw.dtype)[0]
