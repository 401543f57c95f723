"""The closed form on plain tensors: one forward and one backward, and the one place that chooses who computes them.

Shapes are flat here: raw ``(B, n)``, A ``(B, m, n)`` or ``(m, n)``, bounds ``(B, m)`` or ``(m,)`` or None, in float32
or float64. Every path has the same two functions, and a third where it leaves the second pass below to `enforce`,

    forward(raw, A, lower, upper) -> (y, saved)
    correct(rest, A, saved) -> A⁺ rest
    backward(gradient, raw, A, saved, wants_matrix) -> (g_raw, g_A | None, g_lower, g_upper),

the last two of shape ``(B, m)``; `hardnet.functional.affine_plain.gradients` states the formulas.

`enforce` applies the closed form a second time, to its own answer. The first time leaves rounding relative to the
terms of A raw, and a raw output far outside its set has terms much larger than those of A y; the second leaves rounding
relative to the terms at y, which is what a certificate may hold it to. A sample that is inside is changed by neither.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

import hardnet.kernels.gpu.affine as gpu
from hardnet.functional import (
    affine_cramer,
    affine_fused,
    affine_gram,
    affine_lanes,
    affine_pinv,
    affine_rows,
    affine_single,
    affine_square,
)
from hardnet.functional.affine_bounds import corrections, may_look, moved, times, to_bounds
from hardnet.kernels.gpu import shared_launch

Saved = tuple[Any, ...]
MOST_UNROLLED_ROWS = 8
MOST_UNROLLED_NUMBERS = 256
"""Few rows are unrolled: up to this many, and up to this many numbers of A per sample."""

MOST_FUSED_ROWS = 2
"""Under the compiler so few rows stay plain formulas, which it fuses with what stands around them."""


class Path(NamedTuple):
    """One way to compute the closed form."""

    forward: Callable[[Tensor, Tensor, Tensor | None, Tensor | None], tuple[Tensor, Saved]]
    backward: Callable[[Tensor, Tensor, Tensor, Saved, bool], tuple[Tensor, Tensor | None, Tensor, Tensor]]
    correct: Callable[[Tensor, Tensor, Saved], Tensor] | None


def enforce(path: Path, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, Saved]:
    """The path's y, corrected by the closed form at y, and what its backward reads."""
    y, saved = path.forward(raw, A, lower, upper)
    if path.correct is None:
        return y, saved
    for _ in range(corrections(A)):
        y = moved(y, path.correct(to_bounds(times(A, y), lower, upper), A, saved))
    return y, saved


def choose(A: Tensor, factor: Tensor | None) -> Path:
    """The path for this A, from its shape, dtype, device and mode alone, so that forward and backward agree.

    On a GPU: the fused kernel, where it takes the shape; for a shared A of more rows the fused kernel that reads its
    factor, in eager code. A factor or a shared A elsewhere: its pseudo-inverse. One row, or two in the plane: their
    formulas. Few rows where no value may be looked at: unrolled Gram-Schmidt. Square: LU. Few rows: sweeps over small
    Gram matrices. Else: Cholesky of the Gram matrix.
    """
    fused_by_compiler = torch.compiler.is_compiling() and A.shape[-2] <= MOST_FUSED_ROWS
    if gpu.available(A) and not fused_by_compiler:
        return Path(gpu.forward, gpu.backward, None)  # float64 inside
    if factor is not None or A.dim() == 2:
        fused = shared_launch.available(A) and not torch.compiler.is_compiling()
        module = affine_fused if fused else affine_pinv
        return Path(partial(module.forward, factor=factor), partial(module.backward, factor=factor), None)
    module = _module(A)
    return Path(module.forward, module.backward, getattr(module, "correct", None))


def _module(A: Tensor) -> ModuleType:
    """The module that computes rows of this shape in plain torch; those without `correct` refine their y themselves."""
    m, n = A.shape[-2:]
    if m == 1:
        return affine_single
    if m == n == 2:
        return affine_cramer
    few = m <= MOST_UNROLLED_ROWS and m * n <= MOST_UNROLLED_NUMBERS
    if few and not may_look(A):
        return affine_rows
    if m == n:
        return affine_square
    return affine_lanes if few else affine_gram
