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
from hardnet.functional.strict import ROUNDINGS, Bound, Project, relative_violation
from hardnet.modes import may_look
from hardnet.products import times
from hardnet.shapes import require_like

LAST = 1e-9
"""Violations, relative to the terms of a row, that are so small that the way back may be the shortest in any metric."""


class InMetric(NamedTuple):
    """Y ``(*batch, n)``, and by how much its rows are violated beyond rounding, in their terms ``(*batch)``."""

    y: Tensor
    left: Tensor

    @property
    def lost(self) -> Tensor:
        """Samples ``(*batch)`` with a row that a certificate would call violated."""
        return self.left > ROUNDINGS * torch.finfo(self.y.dtype).eps


class _Plane(NamedTuple):
    """The change of variables: raw and A in the plane of z, and the map back from it."""

    raw: Tensor
    A: Tensor
    back: Callable[[Tensor], Tensor]


def in_metric(
    raw: Tensor,
    A: Tensor,
    lower: Bound,
    upper: Bound,
    metric: Tensor,
    project: Project,
    again: Project,
    on_invalid: str = "raise",
) -> InMetric:
    """``argmin (y - raw)'W(y - raw)  subject to  lower <= A y <= upper`` by `project` in other variables.

    Args:
        raw: ``(*batch, n)``.
        A: ``(m, n)`` or ``(*batch, m, n)``.
        lower: ``(m,)``, ``(*batch, m)`` or None.
        upper: Like `lower`.
        metric: W: positive ``(n,)``, ``(*batch, n)`` or ``(*batch, 1, n)``, or positive definite ``(n, n)`` or
            ``(*batch, n, n)``.
        project: The Euclidean projection.
        again: The same without a word: NaN where there is no answer.
        on_invalid: What a metric that is none gives where a look is free: an error, or NaN for that sample alone.
    """
    raw_, A_ = raw.double(), A.double()
    low, high = (None if bound is None else bound.double() for bound in (lower, upper))
    plane = _plane(raw, A, metric, on_invalid)
    z = project(plane.raw, plane.A, low, high)
    y = within_unit_rows(plane.back(z), A_, low, high)
    unmoved = (z == plane.raw).all(-1, keepdim=True)
    y = torch.where(unmoved, keep_value(y, raw_.expand_as(y)), y)
    point, left = _back_onto_rows(y, A_, low, high, plane, again, torch.finfo(raw.dtype).eps)
    return InMetric(keep_value(y, point).to(raw.dtype), left)


def _plane(raw: Tensor, A: Tensor, metric: Tensor, on_invalid: str) -> _Plane:
    """``L'raw``, ``A L^-T`` and ``z -> L^-T z`` in float64; NaN for the samples whose W is no metric."""
    require_like("metric", metric, raw)
    n, (raw, A, W) = raw.shape[-1], (part.double() for part in (raw, A, metric))
    if metric.dim() == 0 or metric.shape[-1] != n:
        raise ShapeError(sentence("metric", f"shape (*batch, {n}) or (*batch, {n}, {n})", tuple(metric.shape)))
    if _diagonal(metric, raw, n):
        W = W.squeeze(-2) if W.dim() > raw.dim() else W
        bad = ~((W > 0) & W.isfinite()).all(-1)
        _refuse_metric(bad, on_invalid)
        root = torch.where(bad.unsqueeze(-1), torch.nan, W.sqrt())
        return _Plane(root * raw, A / root.unsqueeze(-2), lambda z: z / root)
    L, info = torch.linalg.cholesky_ex(W / 2 + W.mT / 2)
    bad = (info != 0) | ~W.isfinite().flatten(-2).all(-1)
    _refuse_metric(bad, on_invalid)
    L = torch.where(bad[..., None, None], torch.nan, L)
    rows = torch.linalg.solve_triangular(L, A.mT, upper=False).mT
    back = lambda z: torch.linalg.solve_triangular(L.mT, z.unsqueeze(-1), upper=True).squeeze(-1)
    return _Plane(times(L.mT, raw), rows, back)


def _diagonal(metric: Tensor, raw: Tensor, n: int) -> bool:
    """Whether a metric is a diagonal; ``(n, n)`` beside a batch of n samples is a matrix.

    The first question that is answered decides: in a graph with a dynamic batch the last two would fix its size.
    """
    if metric.dim() == 1 or metric.shape[-2] == 1:
        return True
    return metric.shape[-2] != n or (metric.dim() > 2 and metric.shape == raw.shape)


def _refuse_metric(bad: Tensor, on_invalid: str) -> None:
    """Raise for the samples ``(*batch)`` whose W is no metric, where a look is free."""
    if on_invalid == "raise" and may_look(bad) and bool(bad.any()):
        got = f"one that is not, NaN or infinity{in_samples(sample_indices(bad) if bad.dim() else [])}"
        raise OptionError(sentence("metric", "positive numbers or a positive definite matrix", got))


@torch.no_grad()
def _back_onto_rows(
    y: Tensor, A: Tensor, low: Bound, high: Bound, plane: _Plane, project: Project, eps: float
) -> tuple[Tensor, Tensor]:
    """``y + argmin d'Wd  subject to  low - A y <= A d <= high - A y``, where rows are violated; what is left of that.

    The last roundings by the nearest point as such, which is known to meet its rows. Both steps are left out of the
    derivative, which is that of the exact answer.
    """
    y, A, rows = y.detach(), A.detach(), plane.A.detach()
    low, high = (None if bound is None else bound.detach() for bound in (low, high))

    def in_plane(y: Tensor) -> Tensor:
        product = times(A, y)
        bounds = (None if bound is None else bound - product for bound in (low, high))
        return y + plane.back(project(torch.zeros_like(y), rows, *bounds)).detach()

    off = lambda point: torch.nn.functional.relu(relative_violation(point, A, low, high, eps) - ROUNDINGS * eps)
    left = off(y)
    for step, most in ((in_plane, torch.inf), (lambda y: project(y, A, low, high), LAST)):
        if may_look(y) and not bool((left > 0).any()):
            break
        moved = within_unit_rows(step(y), A, low, high)
        better = (off(moved) < left) & (left <= most)
        y, left = torch.where(better.unsqueeze(-1), moved, y), torch.where(better, off(moved), left)
    return y, left
