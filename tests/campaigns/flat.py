"""Families of affine rows: the closed form, polyhedra, a box and rows, simplices, rows that give way."""

from __future__ import annotations

import torch

import hardnet as hn
from tests.campaigns.drawing import Draw, Numbers, Round, of_samples


def closed_form(draw: Draw, count: int) -> Round:
    """Up to n rows, shared or of each sample, one- or two-sided, some of them equalities."""
    dtype, n, batch = draw.dtype(), draw.whole(1, 24), draw.choose([(), (count,)])
    m, unit, size = draw.whole(1, n), draw.unit(dtype), draw.unit(dtype)
    A, middle = draw.matrix(*batch, m, n) * unit, draw.normal(*batch, m) * unit * size
    width = draw.normal(*batch, m).abs() * unit * size * (draw.normal(*batch, m) > -0.5)
    numbers = {"A": A.to(dtype), "lower": (middle - width).to(dtype), "upper": (middle + width).to(dtype)}
    constraint = of_samples(numbers) if batch else hn.Affine(**numbers)
    raw = (draw.normal(count, n) * size * 10.0 ** draw.whole(0, 4)).to(dtype)
    text = f"{dtype} {tuple(A.shape)} rows {unit:.0e} outputs {size:.0e}"
    return Round(hn.layers.HardNetAff(constraint), raw, "", text, numbers if batch else None)


def polyhedron(draw: Draw, count: int) -> Round:
    """Any number of rows, shared or of each sample, around a point that is inside."""
    dtype, n, batch = draw.dtype(), draw.whole(1, 12), draw.choose([(), (count,)])
    m, unit, size = draw.whole(1, 2 * n + 2), draw.unit(dtype), draw.unit(dtype)
    A, inside = draw.matrix(*batch, m, n) * unit, draw.normal(*batch, n) * size
    upper = (A @ inside.unsqueeze(-1)).squeeze(-1) + draw.normal(*batch, m).abs() * unit * size
    raw = (inside + draw.normal(count, n) * size * 10.0 ** draw.whole(0, 4)).to(dtype)
    numbers = {"A": A.to(dtype), "upper": upper.to(dtype)}
    constraint = of_samples(numbers) if batch else hn.Affine(**numbers)
    text = f"{dtype} {tuple(A.shape)} rows {unit:.0e} outputs {size:.0e}"
    return Round(hn.layers.Projection(constraint), raw, "rows", text, numbers if batch else None)


def boxed_rows(draw: Draw, count: int) -> Round:
    """A box and a few rows, equalities among them, through a point of the box."""
    dtype, n = draw.dtype(), draw.whole(2, 30)
    k, unit, size = draw.whole(1, 3), draw.unit(dtype), draw.unit(dtype)
    A, inside = draw.matrix(k, n) * unit, draw.normal(n) * size
    lower, upper = inside - draw.normal(n).abs() * size, inside + draw.normal(n).abs() * size
    value = (A.to(dtype).double() @ inside.to(dtype).double()).to(dtype)
    rows = hn.Equality(A.to(dtype), value) if draw.choose([True, False]) else hn.Affine(A.to(dtype), upper=value)
    raw = (inside + draw.normal(count, n) * size * 10.0 ** draw.whole(0, 4)).to(dtype)
    layer = hn.layers.Projection(hn.Box(lower.to(dtype), upper.to(dtype)) & rows)
    return Round(layer, raw, "rows", f"{dtype} box & {k}x{n} rows {unit:.0e} outputs {size:.0e}")


def simplex(draw: Draw, count: int) -> Round:
    """Any total, raws with a common offset."""
    dtype, n = draw.dtype(), draw.whole(1, 40)
    total, offset = draw.unit(dtype), draw.choose([0.0, 1.0, 1e3, 1e6])
    raw = ((draw.normal(count, n) * 10.0 ** draw.whole(-2, 4) + offset) * total).to(dtype)
    layer = hn.layers.HardNetCvx(hn.Simplex(n, total=float(torch.tensor(total, dtype=dtype))))
    return Round(layer, raw, "rows", f"{dtype} n={n} total {total:.0e} offset {offset:.0e}")


def relaxed(draw: Draw, count: int) -> Round:
    """A box and maybe a hard row, beside rows that may contradict them and give way, equalities among them."""
    dtype, n, batch = draw.dtype(), draw.whole(1, 8), draw.choose([(), (count,)])
    m, unit, size = draw.whole(1, 6), draw.unit(dtype), draw.unit(dtype)
    take, inside = Numbers(dtype, not batch), draw.normal(*batch, n) * size
    width = draw.normal(*batch, n).abs() * size
    constraint: hn.sets.ConstraintSet = hn.Box(take(inside - width), take(inside + width))
    if draw.choose([True, False]):
        A = draw.normal(*batch, 1, n) * unit
        constraint &= hn.Affine(take(A), upper=take((A * inside.unsqueeze(-2)).sum(-1) + 0.1 * unit * size))
    A, wanted = draw.normal(*batch, m, n) * unit, draw.normal(*batch, m) * unit * size * 3
    rows = draw.choose([hn.Equality(take(A), take(wanted)), hn.Affine(take(A), upper=take(wanted))])
    weight = 10.0 ** draw.normal(m).clamp(-1, 1) if draw.choose([True, False]) else torch.ones(m)
    constraint &= hn.Relaxed(rows, weight.to(dtype))
    raw = (inside + draw.normal(count, n) * size * 10.0 ** draw.whole(0, 2)).to(dtype)
    text = f"{dtype} {tuple(A.shape)} {type(rows).__name__} rows {unit:.0e} outputs {size:.0e}"
    return Round(hn.layers.Projection(constraint), raw, "slack", text, take.x or None)
