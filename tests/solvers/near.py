"""Raws just outside their set or far away, and how far a point is outside in roundings: for what never looks."""

import torch

from tests.solvers.families import gaussian, product, solved

EPS = torch.finfo(torch.float64).eps


def just_outside(roundings, batch, n, m, **family):
    """Nearest points moved back towards where they came from, by so many roundings of their size."""
    raw, A, lower, upper = gaussian(batch, n, m, **family)
    y = solved(raw, A, lower, upper).y
    away = torch.nn.functional.normalize(raw - y, dim=-1)
    return y + roundings * EPS * y.abs().amax(-1, keepdim=True) * away, A, lower, upper


def far_away(distance, batch, n, m, **family):
    """Raws so many sizes of the set away from it; there the rounding of raw may be more than the set."""
    raw, *rows = gaussian(batch, n, m, **family)
    return distance * raw, *rows


def roundings_outside(y, A, lower, upper):
    """The worst violation in units of ``eps (|a|_1 max |y| + |bounds|)``: ``(B,)``."""
    size = A.abs().sum(-1) * y.abs().amax(-1, keepdim=True) + lower.abs() + upper.abs()
    excess = torch.maximum(product(A, y) - upper, lower - product(A, y))
    return (excess / (EPS * size)).amax(-1)
