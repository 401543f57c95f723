"""Features of the constraint as inputs for a network: the rows of C(x) and the distance of a point to each bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hardnet.errors import ShapeError, UnsupportedSetError, sentence
from hardnet.functional.derivatives import linearized
from hardnet.products import length, times
from hardnet.region import Kind, Own, SparseNumbers
from hardnet.sets.base import ConstraintSet
from hardnet.structure import BoxedRows, join

FAR_FEATURE = 1e6
"""Distances are cut off at this many units, also those to absent bounds."""


def features(constraint: ConstraintSet, x: Any, at: Tensor | float | Callable[[Any], Tensor] = 0.0) -> Tensor:
    """``(a_i / |a_i|, asinh((upper_i - a_i p) / |a_i|), asinh((a_i p - lower_i) / |a_i|))`` of C(x) at a point p.

    Unit rows, and the distance from p to each bound, positive inside; asinh compresses large distances. A row that
    does not depend on x is no information for a network and is left out, but its distances are not; an equality has
    one distance. A curved set or an L1 ball is replaced by its tangent at p; a union gives the features of each piece.
    Gradients flow to x and learned numbers.

    ``net(torch.cat([x, hn.features(constraint, x)], -1))`` knows the constraint that will be enforced on its output.

    Args:
        constraint: Any set with affine rows, curved sets, ``&`` of these, and unions ``|``.
        x: The input of the set; its first floating-point tensor determines batch, dtype and device.
        at: The point p: a number, ``(n,)``, ``(*batch, n)``, or a function of x, such as a nominal control.

    Returns:
        ``(*batch, count)``; the count is the same for every x.
    """
    point = _point(constraint, x, at)
    like, found = point.detach().new_zeros(point.shape[-1]), []
    parts = [
        (own, part)
        for piece in constraint.pieces
        for own, part in zip(piece.parts, piece.region(x, point).parts, strict=True)
    ]
    for own, part in parts:
        if isinstance(part.data, (Own, SparseNumbers)):
            expected = "affine rows or a curved set with a block"
            raise UnsupportedSetError(sentence("constraint", expected, type(own).__name__))
        found.append(_of_part(part.data, point, part.kind is not Kind.ROWS or own.fixed_matrix(like) is None))
    return join(found).expand(*point.shape[:-1], -1)


def _point(constraint: ConstraintSet, x: Any, at: Any) -> Tensor:
    """The point p as ``(*batch, n)``, in the dtype of x."""
    like = next((leaf for leaf in tree_leaves(x) if isinstance(leaf, Tensor) and leaf.is_floating_point()), None)
    if like is None:
        raise ShapeError(sentence("x", "an input with a floating-point tensor in it", type(x).__name__))
    value = torch.as_tensor(at(x) if callable(at) else at, dtype=like.dtype, device=like.device)
    n = constraint.dim or (value.shape[-1] if value.dim() else None)
    if n is None:
        remedy = "pass at= with one entry for each"
        raise ShapeError(sentence("constraint", "a set that knows its number of outputs", "functions of x", remedy))
    return value.expand(*like.shape[:-1], n)


def _of_part(data: Any, point: Tensor, moves: bool) -> Tensor:
    """The features of a part of the region."""
    if isinstance(data, BoxedRows):
        return _of_rows(data, point, moves)
    excess, slope = linearized(data.excess, point)
    size = _divisor(slope)
    return join([slope / size, _near(-excess / size)])


def _of_rows(rows: BoxedRows, point: Tensor, moves: bool) -> Tensor:
    """Distances to the rows' bounds and to the box, then the unit rows if they depend on x."""
    size = _divisor(rows.A)
    value = times(rows.A, point)
    parts = [_near((value - rows.lower) / size.squeeze(-1))] if rows.lower is not None else []
    if rows.upper is not None and not (rows.equality and all(rows.equality)):
        parts.append(_near((rows.upper - value) / size.squeeze(-1)))
    parts += [] if rows.box_lower is None else [_near(point - rows.box_lower)]
    parts += [] if rows.box_upper is None else [_near(rows.box_upper - point)]
    if moves:
        parts.append((rows.A / size).flatten(-2))
    return join(parts)


def _divisor(vectors: Tensor) -> Tensor:
    """``|a|`` along the last dimension, which is kept; 1 where it is 0."""
    size = length(vectors)
    return torch.where(size > 0, size, 1)


def _near(distance: Tensor) -> Tensor:
    """``asinh`` of a distance, cut off at `FAR_FEATURE`."""
    return torch.asinh(distance.clamp(-FAR_FEATURE, FAR_FEATURE))
