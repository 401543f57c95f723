"""The certificate against rational arithmetic: units, canceling terms, products out of range, NaN and infinity."""

from fractions import Fraction
from math import log2

import pytest
import torch

import hardnet as hn
from tests.draws import draw

D = torch.float64

DTYPES = [torch.float64, torch.float32, torch.bfloat16]

FAMILIES = ["plain", "canceling", "huge", "tiny", "subnormal", "mixed"]


def adversarial(family, dtype, m, n, count, seed):
    """A (m, n), bounds (m,) and points (count, n) that make a plain sum lose what matters."""
    A, y = draw(m, n, seed=seed), draw(count, n, seed=seed + 1)
    top, least = log2(torch.finfo(dtype).max), log2(torch.finfo(dtype).smallest_normal)
    if family == "huge":
        A, y = A * 2.0 ** (0.6 * top), y * 2.0 ** (0.7 * top)
    if family == "tiny":
        A, y = A * 2.0 ** (0.6 * least), y * 2.0 ** (0.3 * least)
    if family == "subnormal":
        A, y = A * 2.0 ** (least - 3), y * 2.0 ** (0.2 * top)
    if family == "mixed":
        A, y = A * 2.0 ** (0.1 * top * draw(m, n, seed=9)), y * 2.0 ** (0.1 * top * draw(count, n, seed=8))
    if family == "canceling":
        half = n // 2
        A[:, half : 2 * half], y[:, half : 2 * half] = A[:, :half], -y[:, :half]
        A, y = A * 2.0 ** (0.2 * top), y
    A, y = A.to(dtype), y.to(dtype)
    middle = (A.double() @ y[0].double()).nan_to_num(0.0).clamp(-(2.0 ** (top - 3)), 2.0 ** (top - 3)).to(dtype)
    return A, middle - middle.abs() * 1e-2, middle, y


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("given", [None, 0.0])
def test_agrees_with_rational_arithmetic(family, dtype, given):
    """The violation is within the stated rounding of the exact one, so no satisfied row is beyond both together."""
    for n in (2, 5, 30):
        A, lower, upper, y = adversarial(family, dtype, 3, n, 6, seed=n)
        certificate = hn.check(hn.Affine(A, lower=lower, upper=upper), y, tolerance=given)
        table = zip(certificate.violation, certificate.tolerance, certificate.rounding, y.tolist(), strict=True)
        for violation, tolerance, rounding, point in table:
            for k in range(3):
                exact = exact_violation(A[k].tolist(), point, lower[k].item(), upper[k].item())
                got = [field[k].item() for field in (violation, tolerance, rounding)]
                if exact >= 2**1023:
                    assert got[0] == torch.inf
                else:
                    assert abs(Fraction(got[0]) - exact) <= Fraction(got[2]), (got, float(exact))
                if got[0] <= got[1]:
                    assert exact <= Fraction(got[1]) + Fraction(got[2])


def exact_violation(row, point, lower, upper):
    total = sum((Fraction(a) * Fraction(v) for a, v in zip(row, point, strict=True)), Fraction(0))
    sides = [Fraction(0)] + ([total - Fraction(upper)] if upper < torch.inf else [])
    return max(sides + ([Fraction(lower) - total] if lower > -torch.inf else []))


@pytest.mark.parametrize("unit", [1.0, 1e-20, 1e-40, 1e-150, 1e150])
@pytest.mark.parametrize("violation", [1e-6, 1.0])
def test_units_do_not_matter(unit, violation):
    """A tolerance is relative to bounds and outputs, so that a small unit hides nothing."""
    limit = torch.tensor([1.0, 2.0], dtype=D) * unit
    sets = [hn.Box(0.0, limit), hn.Affine(torch.ones(1, 2, dtype=D), upper=limit[1]), hn.Ball(0 * limit, limit[1])]
    for constraint in sets:
        assert not hn.check(constraint, (limit + violation * unit).expand(3, 2)).ok


@pytest.mark.parametrize("big", [1e3, 1e17, 1e40, 1e200])
@pytest.mark.parametrize("per_sample", [False, True])
def test_canceling_terms_hide_nothing(big, per_sample):
    row = torch.tensor([[1.0, 1.0, -1.0]], dtype=D)
    A = (lambda x: row.expand(2, 1, 3)) if per_sample else row
    y = torch.tensor([[big, 0.5, big], [big, -0.5, big]], dtype=D)
    certificate = hn.check(hn.Affine(A, upper=0.0), y, x=y, tolerance=0.0)
    assert certificate.violation.squeeze(-1).tolist() == [0.5, 0.0]
    assert certificate.satisfied.tolist() == [False, True]
    assert certificate.rounding.max() < 1e-29 * big + 1e-11  # u^2 n of the terms, or u n where clearly violated


def test_products_beyond_the_range_of_float64():
    A = torch.tensor([[1e200, -1e200], [1e200, 1e200]], dtype=D)
    y = torch.tensor([[1e200, 1e200], [1e200, 2e200]], dtype=D)
    certificate = hn.check(hn.Affine(A, upper=1.0), y)
    assert certificate.violation.tolist() == [[0.0, torch.inf], [0.0, torch.inf]]
    assert certificate.satisfied.tolist() == [False, False]
    assert bool(certificate.tolerance.isfinite().all())


def curved():
    zero, one = torch.zeros(2, dtype=D), torch.eye(2, dtype=D)
    return [
        hn.Ball(zero, 1.0),
        hn.Quadratic(one, zero, -1.0),
        hn.SecondOrderCone(one, zero, zero, 1.0),
        hn.LMI(one, torch.stack([one, -one])),
    ]


EVERY_SET = [hn.Box(0.0), hn.Box(upper=1.0), hn.Simplex(2), hn.Affine(torch.eye(2, dtype=D), lower=0.0), *curved()]


@pytest.mark.parametrize("constraint", EVERY_SET, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan, 1e308])
def test_what_is_not_finite_is_violated(constraint, bad):
    inside = [0.5, 0.5]
    certificate = hn.check(constraint, torch.tensor([inside, [bad, 0.5], [0.5, bad]], dtype=D))
    if bad == 1e308 and isinstance(constraint, hn.Box | hn.Affine | hn.LMI):
        return  # large and inside, or not
    assert certificate.satisfied.tolist() == [True, False, False]
    assert not certificate.ok
    if abs(bad) == torch.inf:
        assert certificate.max_violation == torch.inf


BAD_NUMBERS = {
    "upper": lambda: hn.Box(0.0, lambda x: x),
    "lower": lambda: hn.Box(lambda x: x - 1),
    "A": lambda: hn.Affine(lambda x: x.unsqueeze(-2), upper=9.0),
    "row bound": lambda: hn.Affine(torch.ones(1, 2, dtype=D), lower=lambda x: x[..., :1], upper=9.0),
    "total": lambda: hn.Simplex(2, lambda x: x[..., 0]),
    "radius": lambda: hn.Ball(torch.zeros(2, dtype=D), lambda x: x[..., 0]),
    "center": lambda: hn.Ball(lambda x: x, 9.0),
    "r": lambda: hn.Quadratic(torch.eye(2, dtype=D), torch.zeros(2, dtype=D), lambda x: -x[..., 0]),
    "parameter": lambda: hn.Cvxpy(lambda y, b: [y <= b], 2, parameters={"b": (lambda x: x, (2,))}),
}


@pytest.mark.parametrize("number", BAD_NUMBERS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite_are_violated_for_their_sample_alone(number, bad):
    x = torch.full((3, 2), 1.0, dtype=D)
    x[1] = bad
    certificate = hn.check(BAD_NUMBERS[number](), torch.full((3, 2), 0.5, dtype=D), x)
    absent = number == "upper" and bad == torch.inf
    assert certificate.satisfied.tolist() == [True, absent, True]


@pytest.mark.parametrize("unit", [1e-160, 1e-100, 1.0, 1e100, 1e160])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_balls_against_rational_arithmetic(unit, dtype):
    """``|y - c| <= r + v`` exactly, up to the stated rounding, for both signs of it."""
    unit = unit if dtype == torch.float64 else unit**0.2
    center, y = (unit * draw(7, seed=1)).to(dtype), (unit * draw(40, 7, seed=2)).to(dtype)
    certificate = hn.check(hn.Ball(center, 2.0 * unit), y)
    radius = Fraction(hn.Ball(center, 2.0 * unit).numbers(None, y).radius.item())
    for point, violation, rounding in zip(y.tolist(), certificate.violation, certificate.rounding, strict=True):
        square = sum((Fraction(p) - Fraction(c)) ** 2 for p, c in zip(point, center.tolist(), strict=True))
        least, most = (radius + Fraction((violation + sign * rounding).item()) for sign in (-1, 1))
        assert square <= most**2
        assert violation == 0 or least**2 <= square
