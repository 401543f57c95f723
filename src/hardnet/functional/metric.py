"""The nearest point in another metric: ``argmin (y - raw)'W(y - raw)  subject to  lower <= A y <= upper``.

With ``W = L L'`` and ``z = L'y`` this is the Euclidean nearest point in the variables z, with the rows ``A L^-T``. For
a diagonal W the change of variables scales each output.

Mapping z back to ``y = L^-T z`` multiplies its rounding by the condition number of L, so rows that z satisfies may be
violated at y. A step from y, the shortest in W, corrects that; the step is tiny, and so is its rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.errors import OptionError, ShapeError, in_samples, sample_indices, sentence
from hardnet.functional.derivatives import keep_value
from hardnet.functional.strict import STRICT_ROUNDINGS, Project, relative_violation
from hardnet.products import times
from hardnet.rows import Batch
from hardnet.shapes import require_like
from hardnet.solvers.polyhedron.fixed import within_unit_rows
from hardnet.solvers.solution import Found

LAST = 1e-9
"""The largest violation, relative to the terms of a row, for which the correction may use the Euclidean metric."""


class InMetric(NamedTuple):
    """Y ``(B, n)``, how far its rows are violated beyond rounding, relative to their terms, ``(B,)``, and the answer.

    The multipliers of `found` are those of y.
    """

    y: Tensor
    left: Tensor
    found: Found


class _Plane(NamedTuple):
    """The change of variables: raw and A in the variables z, and the map back to y."""

    raw: Tensor
    A: Tensor
    back: Callable[[Tensor], Tensor]


def in_metric(
    rows: Batch, metric: Tensor, project: Callable[[Batch], Found], again: Project, on_invalid: str = "raise"
) -> InMetric:
    """``argmin (y - raw)'W(y - raw)  subject to  lower <= A y <= upper`` by `project` in other variables.

    Args:
        rows: The record of the call.
        metric: W as `take_metric` returns it.
        project: The Euclidean projection.
        again: The same without errors or warnings: NaN for samples without an answer.
        on_invalid: What to do with an invalid metric where values may be read: raise an error, or return NaN for that
            sample alone.
    """
    low, high = (None if bound is None else bound.double() for bound in (rows.lower, rows.upper))
    wide = rows._replace(raw=rows.raw.double(), A=rows.A.double(), lower=low, upper=high)
    plane = _plane(wide, metric.double(), on_invalid)
    found = project(wide._replace(raw=plane.raw, A=plane.A))
    z, y = found.y, plane.back(found.y)
    y = keep_value(y, within_unit_rows(y, wide.A, low, high))
    unmoved = (z == plane.raw).all(-1, keepdim=True)
    y = torch.where(unmoved, keep_value(y, wide.raw), y)
    point, left = _back_onto_rows(y, wide, plane, again, torch.finfo(rows.raw.dtype).eps)
    return InMetric(keep_value(y, point).to(rows.raw.dtype), left, found)


def take_metric(metric: Tensor, raw: Tensor, rows: Batch) -> Tensor:
    """W in the batch shape of the record: a diagonal ``(1, n)`` or ``(B, 1, n)``, or ``(n, n)`` or ``(B, n, n)``.

    Args:
        metric: Positive ``(n,)``, ``(*batch, n)`` or ``(*batch, 1, n)``, or positive definite ``(n, n)`` or
            ``(*batch, n, n)``; ``(n, n)`` is a matrix even if the batch has n samples.
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
    """``L'raw``, ``A L^-T`` and ``z -> L^-T z`` in float64; NaN for samples whose W is not a metric."""
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
    """Whether a metric is a diagonal; ``(n, n)`` is a matrix even if the batch has n samples.

    The order of the tests matters: in a graph with a dynamic batch, evaluating the later ones would fix its size.
    """
    if metric.dim() == 1 or metric.shape[-2] == 1:
        return True
    return metric.shape[-2] != n or (metric.dim() > 2 and metric.shape == raw.shape)


def _refuse_metric(bad: Tensor, rows: Batch, on_invalid: str) -> None:
    """Raise for the samples ``(B,)``, or ``()`` for all of them, whose W is not a metric, where values may be read."""
    if on_invalid == "raise" and rows.look and bool(bad.any()):
        named = sample_indices(rows.as_given(bad)) if bad.dim() and rows.shape else []
        got = f"one that is not, NaN or infinity{in_samples(named)}"
        raise OptionError(sentence("metric", "positive numbers or a positive definite matrix", got))


@torch.no_grad()
def _back_onto_rows(y: Tensor, rows: Batch, plane: _Plane, project: Project, eps: float) -> tuple[Tensor, Tensor]:
    """``y + argmin d'Wd  subject to  low - A y <= A d <= high - A y`` where rows are violated, and what remains.

    A second step, the Euclidean projection, which satisfies its rows, removes the last roundings. The derivative
    ignores both steps: it is the one of the exact answer.
    """
    y, A = y.detach(), rows.A.detach()
    low, high = (None if bound is None else bound.detach() for bound in (rows.lower, rows.upper))
    fixed = rows._replace(A=A, lower=low, upper=high)

    def in_plane(y: Tensor) -> Tensor:
        product = times(A, y)
        least, most = (None if bound is None else bound - product for bound in (low, high))
        step = fixed._replace(raw=torch.zeros_like(y), A=plane.A.detach(), lower=least, upper=most)
        return y + plane.back(project(step)).detach()

    off = lambda point: torch.nn.functional.relu(relative_violation(point, A, low, high, eps) - STRICT_ROUNDINGS * eps)
    left = off(y)
    for step, most in ((in_plane, torch.inf), (lambda y: project(fixed._replace(raw=y)), LAST)):
        if rows.look and not bool((left > 0).any()):
            break
        moved = within_unit_rows(step(y), A, low, high)
        better = (off(moved) < left) & (left <= most)
        y, left = torch.where(better.unsqueeze(-1), moved, y), torch.where(better, off(moved), left)
    return y, left
