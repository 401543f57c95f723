"""Sums that know their own error, against exact rational arithmetic."""

from fractions import Fraction

import pytest
import torch

from hardnet.solvers.algebra.compensated import long_excess, plain_excess, two_product, two_sum

D = torch.float64


def exact_excess(a, lower, upper, y):
    total = sum((Fraction(p) * Fraction(q) for p, q in zip(a, y, strict=True)), Fraction(0))
    sides = [total - Fraction(upper)] if abs(upper) != torch.inf else []
    sides += [Fraction(lower) - total] if abs(lower) != torch.inf else []
    return max(sides)


def rows(kind, n, count, seed):
    """(a, lower, upper, y) of `count` rows: canceling, of mixed size, huge, tiny."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=D)
    a, y = normal(count, n), normal(count, n)
    if kind == "mixed":
        a, y = a * 10 ** (8 * normal(count, n)), y * 10 ** (8 * normal(count, n))
    if kind == "huge":
        a, y = a * 2.0**600, y * 2.0**590
    if kind == "tiny":
        a, y = a * 2.0**-700, y * 2.0**-300
    if kind == "subnormal":
        a, y = a * 2.0**-1060, y * 2.0**40
    if kind == "ones":
        a = torch.ones(count, n, dtype=D)
    if kind in ("cancel", "ones"):
        k = n // 2
        a[:, k : 2 * k], y[:, k : 2 * k] = a[:, :k], -y[:, :k]
        y[:, 0] *= 1 + 2.0**-50
    value = (a * y).sum(-1)
    value = torch.where(value.isfinite(), value, 1.0)
    return a, value - value.abs() * 1e-16, value + value.abs() * 1e-16, y


KINDS = ["plain", "cancel", "mixed", "huge", "tiny", "subnormal", "ones"]


@pytest.mark.parametrize("n", [1, 2, 7, 64, 501])
@pytest.mark.parametrize("kind", KINDS)
def test_the_error_is_within_its_bound(kind, n):
    a, lower, upper, y = rows(kind, n, 8, seed=n)
    value, rounding = long_excess(a, lower, upper, y)
    plain, plain_rounding = (
        field.diagonal() for field in plain_excess(a, lower, upper, y, a.abs().sum(-1) * y.abs().amax(-1, keepdim=True))
    )
    for k in range(len(a)):
        exact = exact_excess(a[k].tolist(), lower[k].item(), upper[k].item(), y[k].tolist())
        if abs(exact) < 2**1023:
            assert abs(Fraction(value[k].item()) - exact) <= Fraction(rounding[k].item())
        else:
            assert value[k] in (torch.inf, -torch.inf)
        if plain[k].isfinite() and plain_rounding[k].isfinite():
            assert abs(Fraction(plain[k].item()) - exact) <= Fraction(plain_rounding[k].item())


@pytest.mark.parametrize("kind", ["plain", "cancel", "mixed", "ones"])
def test_twice_the_precision(kind):
    """The bound is about n u^2 of the terms, and a rounding of the result; a plain sum has n u of the terms."""
    a, lower, upper, y = rows(kind, 64, 50, seed=1)
    value, rounding = long_excess(a, lower, upper, y)
    terms = (a * y).abs().sum(-1) + lower.abs() + upper.abs()
    assert bool((rounding <= 1e-28 * terms + 4e-16 * value.abs()).all())


def test_one_row_for_all_points():
    a, lower, upper, y = rows("plain", 9, 20, seed=3)
    alone = long_excess(a[:1].expand(20, 9).contiguous(), lower, upper, y)
    torch.testing.assert_close(long_excess(a[:1], lower, upper, y), alone, rtol=1e-15, atol=0)


@pytest.mark.parametrize("huge", [2.0**996, 2.0**500])
@pytest.mark.parametrize("swap", [False, True])
def test_scaling_that_underflows_is_part_of_the_bound(huge, swap):
    """Outputs of 2^996 scale one of 2^-100 below the range of float64, where a row may read that one alone."""
    a, y = torch.tensor([[0.0, 2.0**299]], dtype=D), torch.tensor([[huge, 2.0**-100]], dtype=D)
    a, y = (y, a) if swap else (a, y)
    value, rounding = long_excess(a, torch.zeros(1, dtype=D) - torch.inf, torch.ones(1, dtype=D), y)
    assert abs(Fraction(value.item()) - exact_excess(*a.tolist(), -torch.inf, 1.0, *y.tolist())) <= rounding.item()


def test_one_sided_rows_and_bounds_that_nothing_meets():
    a, y, inf = torch.ones(4, 2, dtype=D), torch.ones(4, 2, dtype=D), torch.inf
    lower = torch.tensor([-inf, 1.0, inf, torch.nan], dtype=D)
    upper = torch.tensor([5.0, inf, inf, 1.0], dtype=D)
    value, _ = long_excess(a, lower, upper, y)
    assert value.tolist()[:3] == [-3.0, -1.0, inf]
    assert value[3].isnan()


def test_sums_and_products_are_exact_with_their_errors():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(500, generator=generator, dtype=D) * 10.0 ** torch.arange(-250, 250) for _ in range(2))
    b = b[torch.randperm(500, generator=generator)]
    for operation, exactly in ((two_sum, lambda p, q: p + q), (two_product, lambda p, q: p * q)):
        small = b if operation is two_sum else b * 1e-20
        values = zip(*(part.tolist() for part in (a, small, *operation(a, small))), strict=True)
        for p, q, value, error in values:
            if 1e-280 < abs(value) < 1e300:
                assert Fraction(value) + Fraction(error) == exactly(Fraction(p), Fraction(q))
