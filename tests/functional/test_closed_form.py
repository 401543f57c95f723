"""The closed form satisfies its rows or raises an error: any conditioning, any unit, every path on a CPU."""

import math

import pytest
import torch

import hardnet as hn
from hardnet.functional import enforce_affine, factorize

SHAPES = [(1, 1), (1, 40), (2, 2), (2, 3), (3, 7), (8, 8), (8, 16), (12, 12), (20, 50)]


def ill_conditioned(m, n, condition, samples, dtype, generator, unit=1.0):
    """Rows with singular values from 1 down to 1 / condition, each of a random size around `unit`; bounds, raw."""
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    left, right = torch.linalg.qr(normal(samples, m, m)).Q, torch.linalg.qr(normal(samples, n, m)).Q
    spectrum = torch.logspace(0, -math.log10(condition), m, dtype=torch.float64)
    size = unit * torch.exp(normal(samples, m, 1))
    A = (left * spectrum) @ right.mT * size
    center = (A @ normal(samples, n, 1)).squeeze(-1)
    width = size.squeeze(-1) * normal(samples, m).abs() / 10
    numbers = (3 * normal(samples, n), A, center - width, center + width)
    raw, A, lower, upper = (number.to(dtype) for number in numbers)
    return raw, A, torch.minimum(lower, upper), torch.maximum(lower, upper)


def right_or_refused(raw, A, lower, upper, factor=None):
    """Check that the answered samples pass the certificate; return how many were refused."""
    y = enforce_affine(raw, A, lower, upper, factor=factor, on_invalid="nan")
    refused = y.isnan().any(-1)
    own = [part if part.dim() == core else part[~refused] for part, core in ((A, 2), (lower, 1), (upper, 1))]
    assert hn.check(hn.Affine(own[0], lower=own[1], upper=own[2]), y[~refused]).ok
    if bool(refused.any()):
        with pytest.raises(hn.errors.RankError):
            enforce_affine(raw, A, lower, upper, factor=factor)
    return int(refused.sum())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_any_conditioning_is_right_or_refused(m, n, dtype, path):
    generator = torch.Generator().manual_seed(m * 100 + n)
    digits = -math.log10(torch.finfo(dtype).eps)
    for power in range(0, 17, 2):
        numbers = ill_conditioned(m, n, 10.0**power, 40, dtype, generator)
        refused = right_or_refused(*numbers)
        assert refused == 0 or power > digits - 4  # clearly independent rows are never refused


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_shared_rows_of_any_conditioning_are_right_or_refused(m, n, dtype, path):
    generator = torch.Generator().manual_seed(m * 100 + n)
    for power in range(0, 17, 4):
        raw, A, lower, upper = ill_conditioned(m, n, 10.0**power, 30, dtype, generator)
        center = (A[0] @ torch.randn(n, generator=generator, dtype=torch.float64).to(dtype)).expand(30, m)
        width = (upper - lower) / 2
        right_or_refused(raw, A[0], center - width, center + width)
        try:
            factor = factorize(A[0])
        except hn.errors.RankError:
            continue
        right_or_refused(raw, A[0], center - width, center + width, factor)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("power", [1, 2, 3])
def test_shared_rows_of_which_two_are_similar_are_right(power, dtype, path):
    """One application of the factor leaves a share of the excess that grows with the conditioning, however far raw is.

    The draws are many: about one sample in five thousand was off by more than the certificate allows.
    """
    generator = torch.Generator().manual_seed(power)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    for m, n in ((9, 12), (14, 22), (24, 24)) * 2:
        A, middle, width = normal(m, n), normal(m), normal(m).abs()
        A[1] = A[0] + 10.0**-power * A[1]
        numbers = (10 * normal(2000, n), A, middle - width, middle + width)
        assert right_or_refused(*(number.to(dtype) for number in numbers)) == 0


@pytest.mark.parametrize(("dtype", "powers"), [(torch.float64, (-150, -80, 80, 150)), (torch.float32, (-30, 30))])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_the_unit_of_the_rows_does_not_matter(m, n, dtype, powers, path):
    generator = torch.Generator().manual_seed(m * 100 + n)
    for power in powers:
        numbers = ill_conditioned(m, n, 100.0, 20, dtype, generator, unit=10.0**power)
        assert right_or_refused(*numbers) == 0


def test_rows_that_differ_in_the_last_digits_are_refused():
    A = torch.tensor([[[0.6, 0.8, 0.1], [0.6, 0.8 + 1e-15, 0.1]]], dtype=torch.float64)
    raw, upper = torch.tensor([[3.0, 1.0, 2.0]], dtype=torch.float64), torch.tensor([0.3, 0.7], dtype=torch.float64)
    with pytest.raises(hn.errors.RankError):
        enforce_affine(raw, A, upper=upper)


def test_a_bad_mate_changes_no_bit_of_shared_rows(path):
    generator = torch.Generator().manual_seed(0)
    for m, n, samples in ((8, 16, 2), (5, 9, 6), (12, 20, 3)):
        raw, A, _, upper = ill_conditioned(m, n, 10.0, samples, torch.float64, generator)
        upper = upper[0] * 0
        calm = enforce_affine(raw, A[0], upper=upper)
        raw[1, 0] = torch.nan
        spoiled = enforce_affine(raw, A[0], upper=upper, on_invalid="nan")
        assert torch.equal(spoiled[0], calm[0])
        assert torch.equal(spoiled[2:], calm[2:])
