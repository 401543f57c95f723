"""Families of sets with a shape of their own: L1 balls, order, plans, transport, unions, priorities, other units."""

from __future__ import annotations

import torch

import hardnet as hn
from tests.campaigns import curved, flat
from tests.campaigns.drawing import Draw, Numbers, Round

F64 = torch.float64


def l1_ball(draw: Draw, count: int) -> Round:
    """A weighted L1 ball, at times beside rows and a box around one point."""
    dtype, n = draw.dtype(), draw.whole(1, 8)
    size = 10.0 ** draw.whole(-4, 4)
    take, inside = Numbers(dtype, shared=True), draw.normal(n) * size
    weights = draw.choose([torch.ones(n, dtype=F64), draw.normal(n).abs() + 0.1])
    center = inside + draw.normal(n) * size
    radius = (weights * (inside - center).abs()).sum() + curved.margin(draw) * size
    constraint: hn.sets.ConstraintSet = hn.L1Ball(take(center), take(radius), take(weights))
    for make in draw.choose([[], [], [curved.rows], [curved.box], [curved.rows, curved.box]]):
        constraint &= make(draw, inside, size, take)
    raw = (inside + draw.normal(count, n) * size * 10.0 ** draw.whole(0, 4)).to(dtype)
    return Round(hn.layers.HardNetCvx(constraint), raw, "points", f"{dtype} {constraint} outputs {size:.0e}")


def ordered(draw: Draw, count: int) -> Round:
    """Rising or falling profiles between bounds, and plans with limits on steps and second differences."""
    dtype, n, size = draw.dtype(), draw.whole(2, 16), 10.0 ** draw.whole(-4, 4)
    raw = (draw.normal(count, n) * size * 10.0 ** draw.whole(-1, 3)).to(dtype)
    if draw.choose([True, False]):
        low, high = draw.choose([(None, None), (0.0, None), (-size, 2 * size)])
        constraint: hn.sets.ConstraintSet = hn.Monotone(n, lower=low, upper=high)
        if draw.choose([True, False]):
            A = torch.ones(1, n, dtype=dtype)
            constraint &= hn.Equality(A, torch.tensor([0.5 * size * n], dtype=dtype))
    else:
        bend = draw.choose([None, 0.1 * size])
        previous = draw.choose([None, 0.0])
        constraint = hn.Horizon(n, -size, 2 * size, draw.choose([0.1, 0.5]) * size, bend, previous=previous)
    return Round(hn.HardNet(torch.nn.Identity(), constraint).layer, raw, "rows", f"{dtype} {constraint} {size:.0e}")


def transport(draw: Draw, count: int) -> Round:
    """Tables with the sums of rows and columns given, some of them zero."""
    dtype, r, c = draw.dtype(), draw.whole(1, 5), draw.whole(1, 5)
    table = torch.randint(0, 9, (r, c), generator=draw.generator).to(dtype) + torch.eye(r, c, dtype=dtype)
    size = 2.0 ** draw.whole(-12, 12)  # sums of integers in such units agree exactly
    constraint = hn.Transport(size * table.sum(1), size * table.sum(0))
    raw = (draw.normal(count, r * c) * size * 10.0 ** draw.whole(-1, 3)).to(dtype)
    return Round(hn.HardNet(torch.nn.Identity(), constraint).layer, raw, "rows", f"{dtype} {constraint}")


def entropic(draw: Draw, count: int) -> Round:
    """The same tables and simplices, nearest in relative entropy to the exponential of logits."""
    r, c = draw.whole(1, 5), draw.whole(2, 5)
    table = torch.randint(1, 9, (r, c), generator=draw.generator).double()
    constraint = draw.choose(
        [hn.DoublyStochastic(c), hn.Simplex(c, total=3.0), hn.Transport(table.sum(1), table.sum(0))]
    )
    raw = draw.normal(count, constraint.dim) * 10.0 ** draw.whole(-1, 1)
    return Round(hn.layers.Projection(constraint, metric="entropy"), raw, "logs", f"entropy {constraint}")


def union(draw: Draw, count: int) -> Round:
    """Two to four polytopes apart from each other, each a box and rows."""
    dtype, n, size = draw.dtype(), draw.whole(1, 5), 10.0 ** draw.whole(-3, 3)
    take, whole = Numbers(dtype, shared=True), None
    for _ in range(draw.whole(2, 4)):
        inside = draw.normal(n) * 4 * size
        piece = draw.choose([curved.rows, curved.box])(draw, inside, size, take)
        piece = piece & curved.box(draw, inside, size, take) if draw.choose([True, False]) else piece
        whole = piece if whole is None else whole | piece
    raw = (draw.normal(count, n) * size * 10.0 ** draw.whole(0, 2)).to(dtype)
    return Round(hn.layers.LAYERS["union"](whole), raw, "pieces", f"{dtype} {whole} outputs {size:.0e}")


def levels(draw: Draw, count: int) -> Round:
    """Rows that give way, and rows of a second level that give way before them."""
    case = flat.relaxed(draw, count)
    n, x = case.raw.shape[-1], case.x
    dtype, m = case.raw.dtype, draw.whole(1, 4)
    size = case.raw.abs().max().double() / 9
    rows = hn.Affine(draw.normal(m, n).to(dtype), upper=(draw.normal(m) * size).to(dtype))
    constraint = case.layer.constraint & hn.Relaxed(rows, level=2)
    return Round(hn.layers.Projection(constraint), case.raw, "slack", f"{case.text} & level 2", x)


def units(draw: Draw, count: int) -> Round:
    """A ball, a quadratic, or rows in a box, of outputs in units up to 1e6 apart."""
    n = draw.whole(2, 6)
    take, inside = Numbers(F64, shared=True), draw.normal(n)
    makers = draw.choose([[curved.ball], [curved.quadratic], [curved.rows, curved.box], [curved.equality, curved.box]])
    natural = makers[0](draw, inside, 1.0, take)
    for make in makers[1:]:
        natural &= make(draw, inside, 1.0, take)
    std = 10.0 ** draw.normal(n).clamp(-3, 3)
    raw = (inside + draw.normal(count, n) * 10.0 ** draw.whole(0, 3)) / std
    layer = hn.HardNet(torch.nn.Identity(), hn.scaled(natural, 0.0, std)).layer
    return Round(layer, raw, "points", f"units {std.tolist()} of {natural}")


def bad_samples(draw: Draw, count: int) -> Round:
    """Polyhedra with raws that are not finite among the others, which become NaN alone."""
    case = draw.choose([flat.polyhedron, flat.boxed_rows])(draw, count)
    raw = case.raw.clone()
    lost = draw.normal(count) > 1
    raw[lost, 0] = draw.choose([torch.nan, torch.inf, -torch.inf])
    layer = type(case.layer)(case.layer.constraint, on_invalid="nan")
    return case._replace(layer=layer, raw=raw)
