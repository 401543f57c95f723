"""The nearest point in another metric: ``argmin (y - raw)'W(y - raw)  subject to  lower <= A y <= upper``.

With ``W = L L'`` and ``z = L'y`` it is the nearest point in the plane of z, under the rows ``A L^-T``. For a diagonal W
the change of variables is a scale of each output.

A rounding of z is one of y times the condition of L, so that rows which z meets may be violated at ``y = L^-T z``. They
are met again by a step from y, the least one in W, whose rounding is that of a tiny number.

Called by `hardnet.functional.polyhedron` and `hardnet.functional.solve`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.errors import OptionError, ShapeError, in_samples, sample_indices, sentence
from hardnet.functional.derivatives import keep_value
from hardnet.functional.polyhedron_fixed import within_unit_rows
from hardnet.functional.strict import ROUNDINGS, Project, relative_violation
from hardnet.products import times
from hardnet.rows import Batch
from hardnet.shapes import require_like

LAST = 1e-9
"""Violations, relative to the terms of a row, that are so small that the way back may be the shortest in any metric."""


class InMetric(NamedTuple):
    """Y ``(B, n)``, and by how much its rows are violated beyond rounding, in their terms ``(B,)``."""

    y: Tensor
    left: Tensor

    @property
    def lost(self) -> Tensor:
        """Samples ``(B,)`` with a row that a certificate would call violated."""
        return self.left > ROUNDINGS * torch.finfo(self.y.dtype).eps


class _Plane(NamedTuple):
    """The change of variables: raw and A in the plane of z, and the map back from it."""

    raw: Tensor
    A: Tensor
    back: Callable[[Tensor], Tensor]


def in_metric(rows: Batch, metric: Tensor, project: Project, again: Project, on_invalid: str = "raise") -> InMetric:
    """``argmin (y - raw)'W(y - raw)  subject to  lower <= A y <= upper`` by `project` in other variables.

    Args:
        rows: The record of the call.
        metric: W as `take_metric` has it.
        project: The Euclidean projection.
        again: The same without a word: NaN where there is no answer.
        on_invalid: What a metric that is none gives where a look is free: an error, or NaN for that sample alone.
    """
    low, high = (None if bound is None else bound.double() for bound in (rows.lower, rows.upper))
    wide = rows._replace(raw=rows.raw.double(), A=rows.A.double(), lower=low, upper=high)
    plane = _plane(wide, metric.double(), on_invalid)
    z = project(wide._replace(raw=plane.raw, A=plane.A))
    y = within_unit_rows(plane.back(z), wide.A, low, high)
    unmoved = (z == plane.raw).all(-1, keepdim=True)
    y = torch.where(unmoved, keep_value(y, wide.raw), y)
    point, left = _back_onto_rows(y, wide, plane, again, torch.finfo(rows.raw.dtype).eps)
    return InMetric(keep_value(y, point).to(rows.raw.dtype), left)


def take_metric(metric: Tensor, raw: Tensor, rows: Batch) -> Tensor:
    """W beside the record: a diagonal ``(1, n)`` or ``(B, 1, n)``, or a matrix ``(n, n)`` or ``(B, n, n)``.

    Args:
        metric: Positive ``(n,)``, ``(*batch, n)`` or ``(*batch, 1, n)``, or positive definite ``(n, n)`` or
            ``(*batch, n, n)``; ``(n, n)`` is a matrix also beside a batch of n samples.
        raw: The outputs as they were given.
        rows: Their record.
    """
    require_like("metric", metric, raw)
    n = raw.shape[-1]
    if metric.dim() == 0 or metric.shape[-1] != n:
        raise ShapeError(sentence("metric", f"shape (*batch, {n}) or (*batch, {n}, {n})", tuple(metric.shape)))
    W = metric.to(rows.raw.dtype)
    if _diagonal(metric, raw, n):
        W = W.squeeze(-2) if W.dim() > raw.dim() else W
        return W.unsqueeze(-2) if W.dim() == 1 else W.expand(*rows.shape, n).reshape(-1, 1, n)
    return W if W.dim() == 2 else W.expand(*rows.shape, n, n).reshape(-1, n, n)


def _plane(rows: Batch, W: Tensor, on_invalid: str) -> _Plane:
    """``L'raw``, ``A L^-T`` and ``z -> L^-T z`` in float64; NaN for the samples whose W is no metric."""
    raw, A = rows.raw, rows.A
    if W.shape[-2] == 1:
        bad = ~((W > 0) & W.isfinite()).flatten(-2).all(-1)
        _refuse_metric(bad, rows, on_invalid)
        root = torch.where(bad[..., None, None], torch.nan, W.sqrt())
        return _Plane(root.squeeze(-2) * raw, A / root, lambda z: z / root.squeeze(-2))
    L, info = torch.linalg.cholesky_ex(W / 2 + W.mT / 2)
    bad = (info != 0) | ~W.isfinite().flatten(-2).all(-1)
    _refuse_metric(bad, rows, on_invalid)
    L = torch.where(bad[..., None, None], torch.nan, L)
    turned = torch.linalg.solve_triangular(L, A.mT, upper=False).mT
    back = lambda z: torch.linalg.solve_triangular(L.mT, z.unsqueeze(-1), upper=True).squeeze(-1)
    return _Plane(times(L.mT, raw), turned, back)


def _diagonal(metric: Tensor, raw: Tensor, n: int) -> bool:
    """Whether a metric is a diagonal; ``(n, n)`` beside a batch of n samples is a matrix.

    The first question that is answered decides: in a graph with a dynamic batch the last two would fix its size.
    """
    if metric.dim() == 1 or metric.shape[-2] == 1:
        return True
    return metric.shape[-2] != n or (metric.dim() > 2 and metric.shape == raw.shape)


def _refuse_metric(bad: Tensor, rows: Batch, on_invalid: str) -> None:
    """Raise for the samples ``(B,)``, or ``()`` for all of them, whose W is no metric, where a look is free."""
    if on_invalid == "raise" and rows.look and bool(bad.any()):
        named = sample_indices(rows.as_given(bad)) if bad.dim() and rows.shape else []
        got = f"one that is not, NaN or infinity{in_samples(named)}"
        raise OptionError(sentence("metric", "positive numbers or a positive definite matrix", got))


@torch.no_grad()
def _back_onto_rows(y: Tensor, rows: Batch, plane: _Plane, project: Project, eps: float) -> tuple[Tensor, Tensor]:
    """``y + argmin d'Wd  subject to  low - A y <= A d <= high - A y``, where rows are violated; what is left of that.

    The last roundings by the nearest point as such, which is known to meet its rows. Both steps are left out of the
    derivative, which is that of the exact answer.
    """
    y, A = y.detach(), rows.A.detach()
    low, high = (None if bound is None else bound.detach() for bound in (rows.lower, rows.upper))
    fixed = rows._replace(A=A, lower=low, upper=high)

    def in_plane(y: Tensor) -> Tensor:
        product = times(A, y)
        least, most = (None if bound is None else bound - product for bound in (low, high))
        step = fixed._replace(raw=torch.zeros_like(y), A=plane.A.detach(), lower=least, upper=most)
        return y + plane.back(project(step)).detach()

    off = lambda point: torch.nn.functional.relu(relative_violation(point, A, low, high, eps) - ROUNDINGS * eps)
    left = off(y)
    for step, most in ((in_plane, torch.inf), (lambda y: project(fixed._replace(raw=y)), LAST)):
        if rows.look and not bool((left > 0).any()):
            break
        moved = within_unit_rows(step(y), A, low, high)
        better = (off(moved) < left) & (left <= most)
        y, left = torch.where(better.unsqueeze(-1), moved, y), torch.where(better, off(moved), left)
    return y, left
