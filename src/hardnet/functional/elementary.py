"""Sets whose exact projection is one formula: the box, the simplex, the ball, and the second-order and PSD cones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.errors import NEGATIVE, NOT_FINITE, ShapeError, sentence
from hardnet.functional.derivatives import attach, keep_value
from hardnet.functional.samples import Policy, find_invalid, reject
from hardnet.kernels.backends import find
from hardnet.kernels.limits import MOST_BOX_COLUMNS
from hardnet.modes import may_look, plain
from hardnet.products import length
from hardnet.rows import Batch, boxed, ordered
from hardnet.shapes import broadcast_batch, check_bound, check_number, joint_batch, require_float, require_like
from hardnet.solvers.algebra.small import ascending
from hardnet.solvers.conic.blocks import (
    Frame,
    pack,
    project_second_order,
    project_semidefinite,
    second_order_frame,
    semidefinite_frame,
    unpack,
)
from hardnet.solvers.solution import Solution, Status


def project_box(
    raw: Tensor,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    *,
    on_invalid: Policy = "raise",
) -> Tensor:
    """``clamp(raw, lower, upper)``, coordinate by coordinate; an absent bound is infinite.

    Args:
        raw: ``(*batch, n)``.
        lower: ``(n,)``, ``(*batch, n)`` or a number for all coordinates.
        upper: Like `lower`.
        on_invalid: On NaN or lower > upper on a CPU in eager mode, raise an error or return NaN for that sample.
    """
    require_float("raw", raw)
    n = raw.shape[-1] if raw.dim() else 0
    bounds = [check_bound(name, side, raw, n) for name, side in (("lower", lower), ("upper", upper))]
    low = raw.new_full((n,), -torch.inf) if bounds[0] is None else bounds[0]
    high = raw.new_full((n,), torch.inf) if bounds[1] is None else bounds[1]
    broadcast_batch("upper", broadcast_batch("lower", raw.shape[:-1], low.shape[:-1]), high.shape[:-1])
    y = torch.minimum(torch.maximum(raw, low), high)
    number = (raw.isfinite() & ~low.isnan() & ~high.isnan()).all(-1)
    sound = number & ordered(low, high).all(-1)
    y = torch.where(sound.unsqueeze(-1), y, torch.nan)
    if on_invalid == "raise" and may_look(y) and not bool(sound.all()):
        for finding in find_invalid(raw, None, *bounds):
            raise finding.error()
    return y


def project_simplex(raw: Tensor, total: Tensor | float = 1.0, *, on_invalid: Policy = "raise") -> Tensor:
    """``argmin |y - raw|  s.t.  y >= 0, sum(y) = total``: ``y = relu(raw - shift)``.

    With raw sorted in descending order, ``shift = max_k (raw_1 + ... + raw_k - total) / k``. Sums are in float64. On a
    CPU in eager mode the kernel for a box and one row finds it without sorting.

    Args:
        raw: ``(*batch, n)``.
        total: A number, or ``(*batch)``; not negative. A total of zero gives the origin.
        on_invalid: On NaN or a negative total on a CPU in eager mode, raise an error or return NaN for that sample.
    """
    require_float("raw", raw)
    if raw.dim() == 0 or raw.shape[-1] == 0:
        raise ShapeError(sentence("raw", "shape (*batch, n) with n >= 1", tuple(raw.shape)))
    total = check_number("total", total, raw).double()
    y = _simplex_by_kernel(raw, total)
    y = (_simplex_by_sorting(raw, total) if y is None else y).to(raw.dtype)
    bad = ~((total >= 0) & total.isfinite() & raw.isfinite().all(-1))
    y = torch.where(bad.unsqueeze(-1), torch.nan, y)
    if on_invalid == "raise" and may_look(y) and bool(bad.any()):
        reject(bad & ~raw.isfinite().all(-1), NOT_FINITE, "raw")
        reject(bad, NEGATIVE, "total")
    return y


def _simplex_by_kernel(raw: Tensor, total: Tensor) -> Tensor | None:
    """The simplex as the box ``[0, inf)`` and a row of ones, in O(n); None if no kernel takes it."""
    n, batch = raw.shape[-1], joint_batch(raw.shape[:-1], total.shape)
    if raw.is_cuda and n <= MOST_BOX_COLUMNS and plain(raw, total) and 0 not in batch:
        from hardnet.functional.nearest import project_box_rows

        aim = total.to(raw.dtype).unsqueeze(-1)
        quiet: Any = {"on_infeasible": "nan", "on_unsolved": "nan", "on_invalid": "nan"}
        return project_box_rows(raw.expand(*batch, n), raw.new_ones(1, n), aim, aim, 0.0, **quiet)
    if not (may_look(raw) and plain(raw, total)):
        return None
    with torch.no_grad():
        aim = total.expand(batch).reshape(-1, 1)
        wide = raw.double().expand(*batch, n).reshape(-1, n)
        rows = Batch(wide, wide.new_ones(1, n), aim, aim, None, wide.new_zeros(n), look=True, memory=True)
        kernel = find("box_rows", rows)
        if kernel is None:
            return None
        y, place, _, _, status, _ = kernel.forward(boxed(rows), torch.finfo(raw.dtype).eps)
    y, support, left = y.reshape(*batch, n), (place == 0).reshape(*batch, n), status == int(Status.NOT_CONVERGED)
    y = attach(lambda *_: ((y,), (support,)), _on_support, (raw.double(), total))
    return torch.where(left.reshape(*batch, 1), _simplex_by_sorting(raw, total), y) if bool(left.any()) else y


def _on_support(grad: Tensor, saved: Any, inputs: Any, needed: Any) -> tuple[Tensor, Tensor]:
    """``g - mean(g)`` to raw and ``mean(g)`` to the total, over the support, whose entries alone move."""
    (support,) = saved
    mean = torch.where(support, grad, 0.0).sum(-1, keepdim=True) / support.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(support, grad - mean, 0.0), mean.squeeze(-1)


def _simplex_by_sorting(raw: Tensor, total: Tensor) -> Tensor:
    """``raw - mean(raw over the support) + total / |support|`` on the support, which sorting finds.

    The largest entry is subtracted from raw first, so that a common offset costs no digits. An entry at zero with a
    zero multiplier is in the support.
    """
    exact, aim = raw.double(), total.unsqueeze(-1)
    # entries farther below the largest than the total become zero anyway, so infinity may be clipped
    away = (exact - exact.detach().amax(-1, keepdim=True)).clamp_min(-torch.finfo(torch.float64).max)
    ordered = away.detach().sort(dim=-1, descending=True).values
    count = torch.arange(1, raw.shape[-1] + 1, device=raw.device, dtype=torch.float64)
    shift = ((ordered.cumsum(-1) - aim.detach()) / count).amax(-1, keepdim=True)
    support = away.detach() >= shift
    mean = (torch.where(support, away, 0.0).sum(-1, keepdim=True) - aim) / support.sum(-1, keepdim=True).clamp_min(1)
    y = torch.where(support, away - mean, 0.0)
    slack = 4 * torch.finfo(raw.dtype).eps * (exact.abs().sum(-1) + total.abs())
    inside = (exact >= 0).all(-1) & ((exact.sum(-1) - total).abs() <= slack) & slack.isfinite()
    return keep_value(y, torch.where(inside.unsqueeze(-1), exact, y.clamp_min(0.0)))


def project_ball(raw: Tensor, center: Tensor, radius: Tensor | float, *, on_invalid: Policy = "raise") -> Tensor:
    """``center + (raw - center) min(1, radius / |raw - center|)``.

    Args:
        raw: ``(*batch, n)``.
        center: ``(n,)`` or ``(*batch, n)``.
        radius: A number, or ``(*batch)``; not negative. A radius of zero gives `center` itself.
        on_invalid: On NaN or a negative radius on a CPU in eager mode, raise an error or return NaN for that sample.
    """
    radius = _check_ball(raw, center, radius)
    reach, offset = radius.unsqueeze(-1), raw - center
    finite = offset.isfinite().all(-1, keepdim=True)
    sound = finite & (reach >= 0) & reach.isfinite()
    # bad samples take harmless numbers, since 0 times NaN would reach the numbers that all samples share
    reach, offset = torch.where(sound, reach, 0.0), torch.where(sound, offset, 0.0)
    outside = length(offset.detach()) > reach
    # where the norm is not used, take it of a harmless vector: at zero its gradient is NaN
    distance = length(torch.where(outside, offset, 1.0))
    y = torch.where(outside, _drawn_in(center + offset * (reach / distance), center, reach), raw)
    y, bad = torch.where(sound, y, torch.nan), ~sound.squeeze(-1)
    if on_invalid == "raise" and may_look(y) and bool(bad.any()):
        reject(bad & ~finite.squeeze(-1), NOT_FINITE, "raw, center")
        reject(bad, NEGATIVE, "radius")
    return y


@torch.no_grad()
def solve_ball(raw: Tensor, center: Tensor, radius: Tensor) -> Solution:
    """`project_ball` with its multipliers ``(raw - y, -|raw - y|)``, ``(*batch, n + 1)``, status and residual.

    The multipliers are those of the cone ``|y - center| <= radius``; the residual is how far y is outside the ball,
    relative to the size of its terms.
    """
    y = project_ball(raw, center, radius, on_invalid="nan")
    bad, step = y.isnan().any(-1), raw - y
    outside = length(y - center) - radius.unsqueeze(-1)
    size = length(y) + length(center) + radius.unsqueeze(-1)
    residual = (outside / torch.where(size > 0, size, 1.0)).clamp_min(0.0).squeeze(-1)
    status = torch.where(bad, int(Status.INVALID), int(Status.SOLVED)).to(torch.int8)
    dual = torch.cat([step, -length(step)], dim=-1)
    return Solution(y, dual, status, torch.zeros_like(status, dtype=torch.long), residual.expand(bad.shape))


def _drawn_in(y: Tensor, center: Tensor, reach: Tensor) -> Tensor:
    """Undo the rounding that may leave y outside by an ulp or two, by shrinking the offset by that much."""
    offset = (y - center).detach()
    shrunk = center.detach() + offset * (1 - 2 * torch.finfo(y.dtype).eps)
    return keep_value(y, torch.where(length(offset) > reach, shrunk, y))


def _check_ball(raw: Tensor, center: Tensor, radius: Tensor | float) -> Tensor:
    """Check shape, dtype and device of all arguments; return the radius as a tensor."""
    require_float("raw", raw)
    require_like("center", center, raw)
    if raw.dim() == 0 or center.dim() == 0 or center.shape[-1] != raw.shape[-1]:
        expected = f"shape (n,) or (*batch, n) with the n of raw, {tuple(raw.shape)}"
        raise ShapeError(sentence("center", expected, tuple(center.shape)))
    broadcast_batch("center", raw.shape[:-1], center.shape[:-1])
    return check_number("radius", radius, raw)


def project_second_order_cone(z: Tensor) -> Tensor:
    """``argmin |w - z|  s.t.  |w_u| <= w_t`` for ``z = (u, t)``, with the height t last.

    Inside: z itself. ``|u| <= -t``: the apex. Else ``a (u / |u|, 1)`` with ``a = (|u| + t) / 2``.

    Args:
        z: ``(*batch, k + 1)``.
    """
    require_float("z", z)
    if z.dim() == 0 or z.shape[-1] < 2:
        raise ShapeError(sentence("z", "shape (*batch, k + 1) with k >= 1, the height last", tuple(z.shape)))
    return attach(_on_cone, _through_cone, (z,), "a projection onto the second-order cone")


def project_psd(X: Tensor) -> Tensor:
    """``V relu(Lambda) V'`` of the symmetric part of X: the nearest positive semidefinite matrix.

    The derivative needs no gap between eigenvalues: only differences between eigenvalues of opposite sign enter.

    Args:
        X: ``(*batch, k, k)``; its antisymmetric part is dropped.
    """
    require_float("X", X)
    if X.dim() < 2 or X.shape[-1] != X.shape[-2]:
        raise ShapeError(sentence("X", "shape (*batch, k, k)", tuple(X.shape)))
    return attach(_on_psd, _through_psd, (X,), "a projection onto semidefinite matrices")


def _apply_frame(frame: Frame, vector: Tensor) -> Tensor:
    """``Q diag(delta) Q' v``: the derivative of a projection is symmetric, so this is its transpose too."""
    return frame.restore(frame.delta.unsqueeze(-1) * frame.rotate(vector.unsqueeze(-1))).squeeze(-1)


def _on_cone(z: Tensor) -> Any:
    return (project_second_order(z),), ()


def _through_cone(grad: Tensor, saved: Any, inputs: Any, needed: Any) -> list[Tensor]:
    (z,) = inputs
    return [_apply_frame(second_order_frame(z, torch.zeros_like(z[..., :1])), grad)]


def _on_psd(X: Tensor) -> Any:
    finite = X.isfinite().all(-1).all(-1)[..., None, None]  # LAPACK refuses a whole batch for one NaN
    symmetric = torch.where(finite, (X + X.mT) / 2, 0.0)
    return (torch.where(finite, project_semidefinite(symmetric), torch.nan),), (symmetric,)


def _through_psd(grad: Tensor, saved: Any, inputs: Any, needed: Any) -> list[Tensor]:
    values, V = ascending(saved[0])
    frame = semidefinite_frame(values, V, torch.zeros_like(values[..., :1]))
    return [unpack(_apply_frame(frame, pack(grad)), grad.shape[-1])]
