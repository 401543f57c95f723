"""Shared rows by matrix products of slices, against exact rational arithmetic."""

from fractions import Fraction

import pytest
import torch

from hardnet.solvers.algebra.compensated import largest, long_excess, slice_rows, sliced_excess
from tests.solvers.algebra.test_compensated import KINDS, exact_excess, rows

D = torch.float64


def both(kind, n, m, count):
    """m rows with bounds, and points that these rows nearly meet one by one."""
    a, lower, upper, y = rows(kind, n, max(m, count), seed=n)
    return a[:m], lower[:m], upper[:m], y[:count]


@pytest.mark.parametrize("n", [1, 2, 7, 64, 501])
@pytest.mark.parametrize("kind", KINDS)
def test_the_error_is_within_its_bound(kind, n):
    a, lower, upper, y = both(kind, n, 5, 7)
    value, rounding = sliced_excess(slice_rows(a), lower, upper, y, largest(y).unsqueeze(-1))
    for i in range(len(y)):
        for k in range(len(a)):
            exact = exact_excess(a[k].tolist(), lower[k].item(), upper[k].item(), y[i].tolist())
            if abs(exact) < 2**1023:
                assert abs(Fraction(value[i, k].item()) - exact) <= Fraction(rounding[i, k].item())
            else:
                assert value[i, k] in (torch.inf, -torch.inf)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 3, 30, 400, 5000])
def test_slices_add_up_exactly_and_have_few_bits(kind, n):
    a = rows(kind, n, 3, seed=n)[0]
    own = slice_rows(a)
    for k in range(3):
        total = [sum(map(Fraction, entry)) for entry in zip(*own.slices[:, k].tolist(), strict=True)]
        scaled = Fraction(2) ** -int(own.exponent[k])
        lost = Fraction(2) ** -1074 if own.exponent[k] else 0  # an entry scaled below the range of float64
        assert all(abs(t - Fraction(v) * scaled) <= lost for t, v in zip(total, a[k].tolist(), strict=True))


@pytest.mark.parametrize("kind", ["plain", "cancel", "mixed", "ones"])
@pytest.mark.parametrize("n", [3, 64, 2000])
def test_twice_the_precision(kind, n):
    """The bound is about n u^2 of the largest terms, and a rounding of the result; a plain sum has n u of the terms."""
    a, lower, upper, y = both(kind, n, 6, 40)
    value, rounding = sliced_excess(slice_rows(a), lower, upper, y, largest(y).unsqueeze(-1))
    terms = a.abs().sum(-1) * largest(y).unsqueeze(-1) + lower.abs() + upper.abs()
    assert bool((rounding <= 8 * (n + 8) * 2.0**-106 * terms + 4e-16 * value.abs()).all())


def test_agrees_with_pairs_where_some_rows_are_asked_for():
    a, lower, upper, y = both("cancel", 40, 6, 9)
    some = torch.tensor([4, 1])
    value, rounding = sliced_excess(slice_rows(a).some(some), lower[some], upper[some], y, largest(y).unsqueeze(-1))
    for place, k in enumerate(some.tolist()):
        pairs = long_excess(a[k : k + 1], lower[k].expand(9), upper[k].expand(9), y)
        assert bool(((value[:, place] - pairs.value).abs() <= rounding[:, place] + pairs.rounding).all())
