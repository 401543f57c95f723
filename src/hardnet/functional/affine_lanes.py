"""HardNet-Aff for few rows, with the batch as the last dimension: every operation runs over contiguous samples.

``A⁺ = A' W`` with ``W = (A A')⁻¹`` by m sweeps over the Gram matrices of the whole batch. The error of W grows with
cond(A)²; one pass with the residual ``A y - clamp(A raw, lower, upper)`` takes it out of y again. ``W_kk |a_k|²`` is
one over the squared distance of the unit row k from the other rows. Samples whose rows come too close, and these
alone, go through `affine_rows`; so this path must be free to look at values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.functional import affine_rows
from hardnet.functional.affine_bounds import clamp_lanes, combine, dot, moved, split_by_side, times, to_bounds

Saved = tuple[Tensor, ...]
Gradients = tuple[Tensor, Tensor | None, Tensor, Tensor]
LEAST_DISTANCE = {torch.float64: 1e-7, torch.float32: 1e-3}
"""Below this squared distance of a unit row from the others, a sample is left to `affine_rows`."""


def forward(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor, Saved]:
    """``y = raw + A' W s``, refined, for raw ``(B, n)``, A ``(B, m, n)``, bounds ``(B, m)`` or ``(m,)``."""
    rows, point = A.permute(1, 2, 0).contiguous(), raw.t().contiguous()
    product = dot(rows, point)
    target = clamp_lanes(product, lower, upper)
    excess = torch.sub(product, target).add_(product, alpha=0)  # NaN where raw is infinite
    gram = torch.bmm(A, A.mT).permute(1, 2, 0).contiguous()
    squares = gram.diagonal().clone()
    W = invert(gram)
    q = dot(W, excess)
    y = point - combine(q, rows)  # a zero step is +0.0 and keeps every bit of raw
    correction = dot(W, dot(rows, y).sub_(target))
    y.sub_(combine(correction, rows))
    saved = (rows, point, W, excess, q.add_(correction), y)
    closeness = W.diagonal().mul(squares)
    if closeness.abs().amax().item() < 1 / LEAST_DISTANCE[A.dtype]:
        return y.t(), saved
    close = (closeness.abs().amax(1) < 1 / LEAST_DISTANCE[A.dtype]).logical_not_().nonzero().squeeze(1)
    careful_y, careful = carefully(raw, A, lower, upper, close)
    return y.t().index_put((close,), careful_y), (*saved, close, *careful)


def backward(gradient: Tensor, raw: Tensor, A: Tensor, saved: Saved, wants_matrix: bool) -> Gradients:
    """The gradients of raw, A, lower and upper from that of y ``(B, n)``: see `hardnet.functional.affine_core`."""
    rows, point, W, excess, q, y = saved[:6]
    incoming = gradient.t().contiguous()
    w = dot(W, dot(rows, incoming))
    active, above, below = split_by_side(excess, w)
    grad_raw, grad_matrix = (incoming - combine(active, rows)).t(), None
    if wants_matrix:
        across = incoming - combine(w, rows)
        grad_matrix = (w.unsqueeze(1) * (point - y)).addcmul_(q.unsqueeze(1), across, value=-1)
        grad_matrix = grad_matrix.addcmul_(active.unsqueeze(1), point, value=-1).permute(2, 0, 1)
    grads = (grad_raw, grad_matrix, below.t(), above.t())
    return grads if len(saved) == 6 else _settle(grads, gradient, raw, A, saved[6], saved[7:])


def _settle(grads: Gradients, gradient: Tensor, raw: Tensor, A: Tensor, close: Tensor, careful: Saved) -> Gradients:
    """The gradients with those of the samples `close` by `affine_rows`."""
    exact = affine_rows.backward(gradient[close], raw[close], A[close], careful, grads[1] is not None)
    put = lambda part, new: part.index_put((close,), new)
    grad_matrix = None if grads[1] is None else put(grads[1], exact[1])
    return put(grads[0], exact[0]), grad_matrix, put(grads[2], exact[2]), put(grads[3], exact[3])


def invert(gram: Tensor) -> Tensor:
    """``G⁻¹`` of symmetric positive definite G ``(m, m, B)``, in place: one sweep for each row."""
    if len(gram) == 2:
        return _invert_pair(gram)
    for k, row in enumerate(gram.unbind()):
        pivot = row[k].reciprocal()
        scaled = row * pivot
        gram.addcmul_(row.clone().unsqueeze(1), scaled, value=-1)
        row.copy_(scaled)
        gram[:, k] = scaled
        torch.neg(pivot, out=row[k])
    return gram.neg_()


def _invert_pair(gram: Tensor) -> Tensor:
    """``G⁻¹`` of two rows: ``[[d, -b], [-b, a]] / (a d - b²)``."""
    (a, b), (_, d) = (row.unbind() for row in gram.unbind())
    determinant = (a * d).addcmul_(b, b, value=-1)
    minus = b.neg()
    return torch.stack((d, minus, minus, a)).view_as(gram).div_(determinant)


def carefully(
    raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, chosen: Tensor
) -> tuple[Tensor, Saved]:
    """The chosen samples by `affine_rows`, corrected at y, and what its backward reads."""
    lower, upper = (side if side is None or side.dim() == 1 else side[chosen] for side in (lower, upper))
    raw, A = raw[chosen], A[chosen]
    y, saved = affine_rows.forward(raw, A, lower, upper)
    rest = to_bounds(times(A, y), lower, upper)
    return moved(y, affine_rows.correct(rest, A, saved)), saved
