"""The closed form on plain tensors: one forward and one backward, and the one place that chooses who computes them.

Shapes are flat here: raw ``(B, n)``, A ``(B, m, n)`` or ``(m, n)``, bounds ``(B, m)`` or ``(m,)`` or None, in float32
or float64. Every path has the same two functions,

    forward(raw, A, lower, upper) -> (y, saved)
    backward(gradient, raw, A, saved, wants_matrix) -> (g_raw, g_A | None, g_lower, g_upper),

the last two of shape ``(B, m)``; `hardnet.functional.affine_plain.gradients` states the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

import hardnet.kernels.affine as kernel
from hardnet.functional import affine_gram, affine_pair, affine_pinv, affine_rows, affine_single, affine_square

Saved = tuple[Any, ...]
MOST_UNROLLED_ROWS = 8
MOST_UNROLLED_NUMBERS = 512
"""Few rows are unrolled: up to this many, and up to this many numbers of A per sample."""


class Path(NamedTuple):
    """One way to compute the closed form."""

    forward: Callable[[Tensor, Tensor, Tensor | None, Tensor | None], tuple[Tensor, Saved]]
    backward: Callable[[Tensor, Tensor, Tensor, Saved, bool], tuple[Tensor, Tensor | None, Tensor, Tensor]]


def choose(A: Tensor, factor: Tensor | None) -> Path:
    """The path for this A, from its shape, dtype and device alone, so that forward and backward agree.

    A factor or a shared A: its pseudo-inverse. On a GPU: the fused kernel, where it takes the shape. One or two
    rows: their formulas. Few rows: unrolled Gram-Schmidt. Square: LU. Else: the Gram matrix.
    """
    m, n = A.shape[-2:]
    if factor is not None or A.dim() == 2:
        return Path(partial(affine_pinv.forward, factor=factor), partial(affine_pinv.backward, factor=factor))
    if kernel.available(A):
        return Path(kernel.forward, kernel.backward)
    if m == 1:
        return Path(affine_single.forward, affine_single.backward)
    if m == 2:
        return Path(affine_pair.forward, affine_pair.backward)
    if m <= MOST_UNROLLED_ROWS and m * n <= MOST_UNROLLED_NUMBERS:
        return Path(affine_rows.forward, affine_rows.backward)
    if m == n:
        return Path(affine_square.forward, affine_square.backward)
    return Path(affine_gram.forward, affine_gram.backward)
