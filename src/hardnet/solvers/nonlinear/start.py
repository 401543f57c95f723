"""The starting point of the iteration: on the affine rows, where the rows of g are finite."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.rows import ordered
from hardnet.solvers.nonlinear.measure import fixed_direction, row_size
from hardnet.solvers.nonlinear.rows import Derivatives, Rows
from hardnet.solvers.polyhedron.projection import project_affine
from hardnet.solvers.solution import Status

OTHERS = ((0.5, 0.0), (0.1, 0.0), (1.0, 1.0), (1.0, -1.0), (1.0, 2.0), (1.0, -2.0), (0.0, 0.1), (0.0, 0.0))
"""Other starts where g is not finite: a multiple of raw, and a distance from there relative to the sample's size."""


class Start(NamedTuple):
    """First points ``(b, n)``, the rows there, where these are finite, and where the affine rows are infeasible."""

    y: Tensor
    at: Derivatives
    finite: Tensor
    empty: Tensor


def sound_bounds(rows: Rows) -> Tensor:
    """Whether the bounds are valid: not NaN, in order, and not infinite on the wrong side: ``(B,)``."""
    return ordered(rows.lower, rows.upper).all(-1)


def first_points(rows: Rows, raw: Tensor, start: Tensor, at: Derivatives) -> Start:
    """The starts, moved onto the affine rows; where g or its slope is not finite there, the first of `OTHERS` that is.

    Args:
        rows: The rows.
        raw: ``(b, n)``.
        start: ``(b, n)``, finite.
        at: The rows at raw.
    """
    y, empty = on_affine_rows(rows, start)
    at = at if y is raw else rows.evaluate(y)
    finite = _finite(at)
    for number, (share, distance) in enumerate(OTHERS):
        todo = (~finite).nonzero().squeeze(-1)
        if len(todo) == 0:
            break
        some = rows.take(todo)
        point = _around(raw[todo], share, distance, number)
        point = on_affine_rows(some, point)[0]
        there = some.evaluate(point)
        y, finite = y.index_copy(0, todo, point), finite.index_copy(0, todo, _finite(there))
        at = Derivatives(*(old.index_copy(0, todo, new) for old, new in zip(at[:2], there[:2], strict=True)))  # pyright: ignore[reportOptionalMemberAccess, reportArgumentType]
    return Start(y, at, finite, empty)


def elsewhere(rows: Rows, raw: Tensor, attempt: int) -> Tensor:
    """A point about as far from raw as raw is large, in a fixed direction, on the affine rows."""
    return on_affine_rows(rows, _around(raw, 1.0, 1.0, attempt))[0]


def on_affine_rows(rows: Rows, y: Tensor) -> tuple[Tensor, Tensor]:
    """The projection onto the affine rows alone, and where they are infeasible."""
    if not rows.A.shape[-2]:
        return y, torch.zeros(len(y), dtype=torch.bool, device=y.device)
    found = project_affine(y, rows.A, rows.lower[:, rows.curved :], rows.upper[:, rows.curved :])
    return found.y, found.status == int(Status.INFEASIBLE)


def _around(raw: Tensor, share: float, distance: float, number: int) -> Tensor:
    """``share raw + distance size direction``."""
    return share * raw + distance * row_size(raw, raw).clamp_min(0.1) * fixed_direction(raw, number)


def _finite(at: Derivatives) -> Tensor:
    """Whether values and slopes are finite, ``(b,)``; a number that is not finite makes their sum not finite."""
    if bool((at.value.sum() + at.jacobian.sum()).isfinite()):
        return torch.ones_like(at.value[:, 0], dtype=torch.bool)
    return at.value.isfinite().all(-1) & at.jacobian.isfinite().flatten(1).all(-1)
