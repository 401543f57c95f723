"""Oracles of the campaign: which answers are silently outside of C(x), and which are not the nearest.

An answer that says so, by an error, a warning or NaN, is not silent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

import hardnet as hn
from hardnet.region import Kind
from tests.campaigns.drawing import Draw, Round
from tests.solvers.oracles import nearest_point

FARTHER = 1e-6
"""How much farther than the nearest point a projection may be, relative to the distance, beside its rounding."""
PROMISED = 1e-8
"""What a layer that promises a tolerance may be off, relative to the terms of a row."""
NEAR = (1.0, 1e-2)
"""How far beside y, relative to its distance from raw, other points of the set are asked for."""


def answer(case: Round, raw: Tensor, x: Any) -> tuple[Tensor | None, str]:
    """What the layer answers to raw, and how the call ended: answered, warned, or the error's name."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with torch.no_grad():
                y = case.layer(raw, x)
        except hn.errors.HardNetError as error:
            return None, type(error).__name__
    if any(issubclass(warning.category, hn.errors.NotConvergedWarning) for warning in said):
        return None, "NotConvergedWarning"
    return y, "answered"


def examine(case: Round) -> tuple[Tensor, str]:
    """Which samples are silently outside ``(count,)``, and how the call ended."""
    y, ended = answer(case, case.raw, case.x)
    if y is None:
        return torch.zeros(len(case.raw), dtype=torch.bool), ended
    certificate = hn.check(case.layer.constraint, y, case.x)
    outside = ~(certificate.violation <= allowed(case, certificate)).all(-1)
    return outside & ~y.isnan().any(-1), ended


def allowed(case: Round, certificate: Any) -> Tensor:
    """The certificate's tolerance, 16 roundings of the terms of a row; more of them for a layer that promises less."""
    exact = case.layer.guarantee is hn.layers.base.Guarantee.EXACT
    roundings = PROMISED / torch.finfo(case.raw.dtype).eps / 16
    return certificate.tolerance * (1.0 if exact else max(1.0, roundings))


def by_rows(case: Round, draw: Draw) -> int:
    """Whether ``raw - y`` of a sample is no non-negative combination of the rows that y meets: a nearer point exists.

    Lawson and Hanson's algorithm (scipy) is the oracle; what it leaves is how much nearer, relative to the distance.
    Nonlinear rows are taken as their tangents at y.
    """
    raw, x, y = one_sample(case, draw)
    step, eps = raw - y, torch.finfo(case.raw.dtype).eps
    distance = float(step.norm())
    if distance == 0 or y.isnan().any():
        return 0
    G = torch.cat([outward(part, x, y, case, distance) for part in case.layer.constraint.parts])
    return int(left(G, step / distance) > FARTHER + 16 * eps * float(y.norm()) / distance)


def one_sample(case: Round, draw: Draw) -> tuple[Tensor, Any, Tensor]:
    """A sample's raw and y ``(n,)`` in float64, and its x."""
    sample = draw.whole(0, len(case.raw) - 1)
    one = slice(sample, sample + 1)
    x = None if case.x is None else {name: number[one] for name, number in case.x.items()}
    with torch.no_grad():
        y = case.layer(case.raw[one], x)[0].double()
    return case.raw[sample].double(), x, y


def left(G: Tensor, direction: Tensor) -> float:
    """The distance of a unit vector to the cone of the rows of G, beside what weights of their size round to."""
    from scipy.optimize import nnls

    if not len(G):
        return 1.0
    weights, off = nnls(G.mT.numpy(), direction.numpy())
    return max(0.0, off - 16 * torch.finfo(torch.float64).eps * float(weights.sum()))


def outward(part: hn.sets.ConstraintSet, x: Any, y: Tensor, case: Round, distance: float) -> Tensor:
    """The unit normals ``(k, n)`` of the rows that y meets, pointing out of the set."""
    A, lower, upper, near = tangents(part, x, y, case.raw.dtype)
    norm, eps = A.norm(dim=-1), torch.finfo(case.raw.dtype).eps
    A = A / norm.unsqueeze(-1)
    meets = 64 * eps * (y.abs().max() * y.numel()) + 1e-12 * distance + near / norm
    sides = []
    for side, sign in ((upper, 1.0), (lower, -1.0)):
        if side is not None:
            bound = side.expand(len(A)) / norm
            sides.append(sign * A[bound.isfinite() & (sign * (bound - A @ y) <= meets + 64 * eps * bound.abs())])
    return torch.cat(sides)


def tangents(
    part: hn.sets.ConstraintSet, x: Any, y: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
    """``A, lower, upper`` of a sample in float64, and how near to a bound a row meets it beside rounding."""
    like = y.to(dtype).unsqueeze(0)
    if not isinstance(part, hn.Nonlinear):
        A, lower, upper = part.affine(x, like)
        return core(A, 2), bound_of(lower), bound_of(upper), torch.zeros(A.shape[-2])
    J, numbers = torch.func.jacrev(part.values)(y, x), part.numbers(x, like)
    shift = J @ y - part.values(y, x)
    near = max(1e-9, 64 * torch.finfo(dtype).eps) * part.scale(numbers, like)[0].double()
    return J, bound_of(numbers.lower, shift), bound_of(numbers.upper, shift), near


def core(number: Tensor, dims: int) -> Tensor:
    """A number of the one sample in float64."""
    return (number[0] if number.dim() > dims else number).double()


def bound_of(side: Tensor | None, shift: Tensor | float = 0.0) -> Tensor | None:
    """A bound of the one sample in float64, moved; None where there is none."""
    return None if side is None else core(side, 1) + shift


def by_points(case: Round, draw: Draw) -> int:
    """How many samples have a point z with ``(raw - y).(z - y) > 0`` in a convex set: then y is not the nearest.

    The points are answers at y and beside it, and, where all samples share the set, the answers of others. With y and z
    off by e each, the product is at most ``e (2 |raw - y| + |z - y|)``.
    """
    y, _ = answer(case, case.raw, case.x)
    if y is None:
        return 0
    step = case.raw.double() - y.double()
    distance, eps = step.norm(dim=-1, keepdim=True), torch.finfo(y.dtype).eps
    points = [y.roll(1, 0), y.roll(7, 0)] if case.x is None else []
    for part in NEAR:
        beside = (y + part * distance / y.shape[-1] ** 0.5 * draw.normal(*y.shape)).to(y.dtype)
        points.append(answer(case, beside, case.x)[0])
    off = (FARTHER * distance + max(PROMISED, 64 * eps) * y.double().norm(dim=-1, keepdim=True)).squeeze(-1)
    farther = torch.zeros(len(y), dtype=torch.bool)
    for z in points:
        if z is not None:
            way = z.double() - y.double()
            farther |= (step * way).sum(-1) > off * (2 * distance.squeeze(-1) + way.norm(dim=-1))
    return int(farther.sum())


def by_slack(case: Round, draw: Draw) -> int:
    """Whether rows that give way do so by more than they must, or y is not the nearest with that slack.

    The least ``sum_i w_i s_i^2 / 2`` over the hard sets: ``-A'(w s)`` is a combination of the hard rows that y meets.
    At a further level the relaxed rows of those above it are such rows too, at bounds that have given way. The nearest
    point: ``raw - y`` is a combination of all of them.
    """
    raw, x, y = one_sample(case, draw)
    parts = case.layer.constraint.parts
    hard, soft = ([part for part in parts if (Kind.SOFT in part.kinds) == kind] for kind in (False, True))
    eps, distance = torch.finfo(case.raw.dtype).eps, float((raw - y).norm())
    G = torch.cat([outward(part, x, y, case, distance) for part in hard])
    for part in sorted(soft, key=lambda part: part.priority or 1):
        A, lower, upper, _ = tangents(part, x, y, case.raw.dtype)
        norm = A.norm(dim=-1)
        unit, lower, upper = A / norm.unsqueeze(-1), *(None if b is None else b / norm for b in (lower, upper))
        noise = 64 * eps * (y.norm() + sum(b.abs() for b in (lower, upper) if b is not None))
        over = torch.zeros(len(A)) if upper is None else (unit @ y - upper).clamp_min(0)
        under = torch.zeros(len(A)) if lower is None else (lower - unit @ y).clamp_min(0)
        slack = over - under
        slack = torch.where(slack.abs() > noise, slack, 0.0)
        heft = part.numbers(x, case.raw[:1]).weight.double() * (norm / norm.max()).square()
        pull = -unit.mT @ (heft * slack)
        size = float(pull.norm())
        if size and left(G, pull / size) > FARTHER + float((heft * noise).sum()) / size:
            return 1
        meets = [
            sign * unit[(sign * slack > 0) | at(side, unit @ y, noise)] for sign, side in ((1.0, upper), (-1.0, lower))
        ]
        G = torch.cat([G, *meets])
    return int(distance > 0 and left(G, (raw - y) / distance) > FARTHER + 16 * eps * float(y.norm()) / distance)


def at(side: Tensor | None, value: Tensor, noise: Tensor) -> Tensor:
    """Which rows are at this bound."""
    return torch.zeros(len(value), dtype=torch.bool) if side is None else (value - side).abs() <= noise


def by_metric(case: Round, draw: Draw) -> int:
    """The same as `by_rows` in a metric: ``W (raw - y)`` is a combination of the rows that y meets."""
    raw, x, y = one_sample(case, draw)
    W = torch.tensor(case.layer.options.metric, dtype=torch.float64)
    W = W if W.dim() == 2 else torch.diag(W)
    values, vectors = torch.linalg.eigh((W + W.mT) / 2)
    root = vectors * values.sqrt() @ vectors.mT  # raw - y in the metric, and rows divided by its root
    step, eps = root @ (raw - y), torch.finfo(case.raw.dtype).eps
    distance = float(step.norm())
    if distance == 0 or y.isnan().any():
        return 0
    reach = float((raw - y).norm())
    G = torch.cat([outward(part, x, y, case, reach) for part in case.layer.constraint.parts])
    G = torch.linalg.solve(root, G.mT).mT
    noise = 64 * eps * float(root.norm() * y.norm()) / distance
    return int(left(G / G.norm(dim=-1, keepdim=True).clamp_min(1e-300), step / distance) > FARTHER + noise)


def by_fractions(case: Round, draw: Draw) -> int:
    """Whether an inequality of a sample fails in exact arithmetic."""
    _, x, y = one_sample(case, draw)
    point = [Fraction(value) for value in y.tolist()]
    for part in case.layer.constraint.parts:
        A, lower, upper = part.affine(x, y.to(case.raw.dtype).unsqueeze(0))
        rows, absent = core(A, 2).tolist(), torch.full((A.shape[-2],), torch.inf, dtype=torch.float64)
        lows = (-absent if lower is None else core(lower, 1).expand(len(rows))).tolist()
        highs = (absent if upper is None else core(upper, 1).expand(len(rows))).tolist()
        for row, low, high in zip(rows, lows, highs, strict=True):
            total = sum(Fraction(a) * value for a, value in zip(row, point, strict=True))
            if low == high:
                continue
            if (high < torch.inf and total > Fraction(high)) or (low > -torch.inf and total < Fraction(low)):
                return 1
    return 0


def by_dense(case: Round, draw: Draw) -> int:
    """Whether the same rows given densely have a nearer point of a sample."""
    raw, _, y = one_sample(case, draw)
    parts = case.layer.constraint.parts
    if y.isnan().any() or not isinstance(parts[0], hn.sets.SparseAffine):
        return 0
    numbers, n = parts[0].numbers(None, case.raw), case.raw.shape[-1]
    A = torch.sparse_csr_tensor(numbers.crow, numbers.col, numbers.values, (len(numbers.crow) - 1, n)).to_dense()
    dense: hn.sets.ConstraintSet = hn.Affine(A.double(), upper=numbers.upper.double())
    for part in parts[1:]:
        dense &= hn.Box(*(bound.double() for bound in part.numbers(None, case.raw)))
    nearest = hn.layers.Projection(dense, on_unsolved="nan")(raw.unsqueeze(0))[0]
    if nearest.isnan().any():
        return 0
    off, eps = float((raw - y).norm() - (raw - nearest).norm()), torch.finfo(case.raw.dtype).eps
    return int(off > FARTHER * float((raw - nearest).norm()) + 64 * eps * float(y.norm()))


def by_logs(case: Round, draw: Draw) -> int:
    """Whether ``log y - raw`` is no combination of the sums that y keeps: then raw is nearer in relative entropy."""
    raw, x, y = one_sample(case, draw)
    A, lower, upper = case.layer.constraint.affine(x, raw.unsqueeze(0))
    sums = core(A, 2)[core(lower, 1).expand(A.shape[-2]) == core(upper, 1).expand(A.shape[-2])]
    seen = y > 1e-290
    step = (y[seen].log() - raw[seen]).unsqueeze(-1)
    off = step - sums[:, seen].mT @ torch.linalg.lstsq(sums[:, seen].mT, step, driver="gelsd").solution
    return int(float(off.abs().max()) > FARTHER * (1 + float(step.abs().max())))


def by_pieces(case: Round, draw: Draw) -> int:
    """Whether some piece of a union has a point nearer than y: by non-negative least squares, piece by piece."""
    raw, x, y = one_sample(case, draw)
    if y.isnan().any():
        return 0
    distance, eps = float((raw - y).norm()), torch.finfo(case.raw.dtype).eps
    for piece in case.layer.constraint.pieces:
        A, lower, upper = piece.affine(x, case.raw[:1])
        rows, absent = core(A, 2), torch.full((A.shape[-2],), torch.inf, dtype=torch.float64)
        low, high = -absent if lower is None else core(lower, 1), absent if upper is None else core(upper, 1)
        z = nearest_point(raw, rows, low.expand(len(rows)), high.expand(len(rows)))
        missed = torch.maximum(rows @ z - high, low - rows @ z).amax()
        nearer = distance - float((raw - z).norm()) > FARTHER * distance + 64 * eps * float(y.norm())
        if nearer and missed <= 1e-9 * (1e-300 + float(z.abs().max()) * float(rows.abs().sum(-1).max())):
            return 1
    return 0


NEAREST: dict[str, Callable[[Round, Draw], int]] = {
    "rows": by_rows,
    "points": by_points,
    "slack": by_slack,
    "metric": by_metric,
    "fractions": by_fractions,
    "dense": by_dense,
    "logs": by_logs,
    "pieces": by_pieces,
}
"""How many samples are farther than the nearest point, by the kind of question that a round asks."""
