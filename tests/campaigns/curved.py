"""Families of curved sets: balls, quadratics, cones, matrix inequalities, alone and beside rows; nonlinear rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import hardnet as hn
from tests.campaigns.drawing import Draw, Numbers, Round


def curved(draw: Draw, count: int) -> Round:
    """A ball, a quadratic, a cone, or a ball and a half-space."""
    dtype, n = torch.float64, draw.whole(1, 6)
    size, kind = 10.0 ** draw.whole(-12, 12), draw.choose(["ball", "quadratic", "cone", "ball & row"])
    center = draw.normal(n) * size
    ball = hn.Ball(center, size * (0.1 + float(draw.normal(1).abs())))
    if kind == "ball":
        constraint: hn.sets.ConstraintSet = ball
    elif kind == "quadratic":
        root = draw.normal(n, draw.whole(1, n)) / size
        constraint = hn.Quadratic(root @ root.mT, draw.normal(n) / size, torch.tensor(-1.0, dtype=dtype))
    elif kind == "cone":
        constraint = hn.SecondOrderCone(draw.normal(n, n), draw.normal(n) * size, draw.normal(n) / 9, 9.0 * n * size)
    else:
        row = draw.normal(1, n)
        constraint = ball & hn.Affine(row, upper=(row @ center).to(dtype))
    raw = center + draw.normal(count, n) * size * 10.0 ** draw.whole(0, 3)
    return Round(hn.layers.HardNetCvx(constraint), raw, "points", f"{kind} n={n} outputs {size:.0e}")


def margin(draw: Draw, *shape: int) -> Tensor:
    """How far a point is inside, relative to the size of the set: mostly a tenth to one, at times a thousandth."""
    return 0.1 + draw.normal(*shape).abs() if draw.whole(0, 4) else torch.full(shape, 1e-3, dtype=torch.float64)


def times(A: Tensor, y: Tensor) -> Tensor:
    """``A y``, sample by sample."""
    return (A @ y.unsqueeze(-1)).squeeze(-1)


def ball(draw: Draw, inside: Tensor, size: float, take: Numbers) -> hn.Ball:
    """A ball that holds the point."""
    off, room = draw.normal(*inside.shape) * size, margin(draw, *inside.shape[:-1])
    return hn.Ball(take(inside + off), take(off.norm(dim=-1) + room * size))


def quadratic(draw: Draw, inside: Tensor, size: float, take: Numbers) -> hn.Quadratic:
    """``1/2 y'Py + q'y + r <= 0`` with P of any rank, around the point."""
    (*batch, n), room = inside.shape, margin(draw, *inside.shape[:-1])
    root, q = draw.normal(*batch, n, draw.whole(1, n)) / size, draw.normal(*batch, n) / size
    P = root @ root.mT
    value = (times(P, inside) / 2 + q).mul(inside).sum(-1)
    return hn.Quadratic(take((P + P.mT) / 2), take(q), take(-value - room))


def cone(draw: Draw, inside: Tensor, size: float, take: Numbers) -> hn.SecondOrderCone:
    """``|A y + b| <= c'y + d`` that holds the point, with any slope."""
    (*batch, n), room = inside.shape, margin(draw, *inside.shape[:-1])
    p = draw.whole(1, n + 1)
    A, b = draw.normal(*batch, p, n), draw.normal(*batch, p) * size
    c = draw.normal(*batch, n) * draw.choose([0.0, 0.1, 1.0])
    d = (times(A, inside) + b).norm(dim=-1) - (c * inside).sum(-1) + room * size
    return hn.SecondOrderCone(take(A), take(b), take(c), take(d))


def lmi(draw: Draw, inside: Tensor, size: float, take: Numbers) -> hn.LMI:
    """``F0 + sum_i y_i F_i`` positive semidefinite, where the point leaves room; F_i of any rank."""
    (*batch, n), room = inside.shape, margin(draw, *inside.shape[:-1])
    k = draw.whole(1, 5)
    root = draw.normal(*batch, n, k, draw.whole(1, k))
    F = root @ root.mT - draw.choose([0.0, 1.0]) * root.flip(-3) @ root.flip(-3).mT
    ball = draw.normal(*batch, k, k)
    at_inside = (ball @ ball.mT + torch.eye(k, dtype=torch.float64)) * (room * size)[..., None, None] / k
    return hn.LMI(take(at_inside - (F * inside[..., None, None]).sum(-3)), take(F))


def rows(draw: Draw, inside: Tensor, size: float, take: Numbers) -> hn.Affine:
    """Some rows that hold at the point."""
    (*batch, n), m = inside.shape, draw.whole(1, inside.shape[-1] + 1)
    A = draw.normal(*batch, m, n)
    return hn.Affine(take(A), upper=take(times(A, inside) + margin(draw, *batch, m) * size))


def box(draw: Draw, inside: Tensor, size: float, take: Numbers) -> hn.Box:
    """Bounds around the point."""
    low, high = margin(draw, *inside.shape) * size, margin(draw, *inside.shape) * size
    return hn.Box(take(inside - low), take(inside + high))


def equality(draw: Draw, inside: Tensor, size: float, take: Numbers) -> hn.Equality:
    """A plane through the point."""
    A = draw.normal(*inside.shape[:-1], 1, inside.shape[-1])
    return hn.Equality(take(A), take(times(A, inside)))


CURVED: list[Callable[..., hn.sets.ConstraintSet]] = [ball, quadratic, cone, lmi]
STRAIGHT: list[Callable[..., hn.sets.ConstraintSet]] = [rows, box, equality]


def around_a_point(draw: Draw, count: int, dtype: torch.dtype, makers: list[Any]) -> Round:
    """The intersection of such sets around one point, shared or of each sample, with raws at several distances."""
    batch, n = draw.choose([(), (count,)]), draw.whole(1, 6)
    size = 10.0 ** (draw.whole(-9, 9) if dtype == torch.float64 else draw.whole(-4, 4))
    take, inside = Numbers(dtype, not batch), draw.normal(*batch, n) * size
    members = [make(draw, inside, size, take) for make in makers]
    constraint = members[0]
    for member in members[1:]:
        constraint &= member
    raw = (inside + draw.normal(count, n) * size * 10.0 ** draw.whole(0, 3)).to(dtype)
    text = f"{dtype} {' & '.join(make.__name__ for make in makers)} n={n} {batch} outputs {size:.0e}"
    return Round(hn.layers.HardNetCvx(constraint), raw, "points", text, take.x or None)


def matrix_inequality(draw: Draw, count: int) -> Round:
    """One matrix inequality, at times beside rows."""
    return around_a_point(draw, count, draw.dtype(), [lmi, *draw.choose([[], [], [rows], [box]])])


def cones(draw: Draw, count: int) -> Round:
    """One to three second-order cones, at times beside rows."""
    return around_a_point(draw, count, draw.dtype(), [cone] * draw.whole(1, 3) + draw.choose([[], [], [rows]]))


def intersection(draw: Draw, count: int) -> Round:
    """Two to four sets of any kind, one of them curved at least."""
    others = [draw.choose(CURVED + STRAIGHT) for _ in range(draw.whole(1, 3))]
    return around_a_point(draw, count, torch.float64, [draw.choose(CURVED), *others])


def curved_float32(draw: Draw, count: int) -> Round:
    """One or two curved sets in float32, at times beside rows."""
    makers = [draw.choose(CURVED), *draw.choose([[], [draw.choose(CURVED)], [draw.choose(STRAIGHT)]])]
    return around_a_point(draw, count, torch.float32, makers)


def sphere(y: Tensor, x: Any) -> Tensor:
    return y.square().sum(-1, keepdim=True)


def quartic(y: Tensor, x: Any) -> Tensor:
    return (y**4).sum(-1, keepdim=True) + y.prod(-1, keepdim=True)


def saddle(y: Tensor, x: Any) -> Tensor:
    return y[..., :1] * y[..., -1:] + y.sin().sum(-1, keepdim=True)


def nonlinear(draw: Draw, count: int) -> Round:
    """A shell, a surface or a region that nonlinear functions bound, at times beside a box and a row."""
    dtype, n, g = draw.dtype(), draw.whole(2, 6), draw.choose([sphere, quartic, saddle])
    inside = draw.normal(n) * draw.choose([0.3, 1.0, 3.0])
    value, width = g(inside, None), margin(draw, 1)
    bounds = draw.choose([{"upper": value + width}, {"lower": value - width, "upper": value + width}])
    bounds = draw.choose([bounds, {"lower": value, "upper": value}])
    own = {name: bound.to(dtype) for name, bound in bounds.items()}
    constraint: hn.sets.ConstraintSet = hn.Nonlinear(g, dim=n, **own)
    take = Numbers(dtype, shared=True)
    for make in draw.choose([[], [], [rows], [box]]):
        constraint &= make(draw, inside, 1.0, take)
    raw = (inside + draw.normal(count, n) * draw.choose([0.1, 1.0, 10.0])).to(dtype)
    text = f"{dtype} {g.__name__} n={n} {type(constraint).__name__}"
    return Round(hn.layers.LAYERS["nonlinear"](constraint), raw, "rows", text)
