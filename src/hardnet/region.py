"""What C(x) is at x, as data: the records that sets make and that solvers read."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Polyhedron(NamedTuple):
    """``lower <= A y <= upper`` beside ``box_lower <= y <= box_upper`` for a flat batch; an absent bound is infinite.

    A number that all samples share has no batch dimension.

    Attributes:
        A: ``(m, n)`` or ``(B, m, n)``; m may be 0.
        lower: ``(m,)`` or ``(B, m)``; ``lower == upper`` is an equality.
        upper: Like `lower`.
        box_lower: ``(n,)`` or ``(B, n)``; bounds of single outputs, which are never rows of A.
        box_upper: Like `box_lower`.
    """

    A: Tensor
    lower: Tensor
    upper: Tensor
    box_lower: Tensor
    box_upper: Tensor
