"""strict=True: inequality rows hold exactly for the returned numbers, checked with fractions."""

from fractions import Fraction

import pytest
import torch

from hardnet.errors import ConvergenceError
from hardnet.functional import enforce_affine, project_affine, project_box_rows, rounding_bound
from tests.functional.affine_problems import problem

pytestmark = pytest.mark.usefixtures("path")

CASES = [
    (4, 1, 4000, torch.float64),
    (2, 2, 4000, torch.float64),
    (6, 3, 3000, torch.float64),
    (3, 2, 4000, torch.float32),
    (6, 3, 2000, torch.float32),
    (12, 9, 300, torch.float64),
    (9, 9, 300, torch.float32),
    (4, 2, 2000, torch.bfloat16),
    (4, 2, 1000, torch.float16),
]


def exact_excess(A, y, lower, upper):
    """The largest exact violation over all rows of all samples, as a Fraction."""
    worst = Fraction(0)
    rows, points = A.double().tolist(), y.double().tolist()
    lows, highs = lower.double().tolist(), upper.double().tolist()
    for row_block, point, low, high in zip(rows, points, lows, highs, strict=True):
        exact_point = [Fraction(value) for value in point]
        for row, one_low, one_high in zip(row_block, low, high, strict=True):
            product = sum(Fraction(a) * b for a, b in zip(row, exact_point, strict=True))
            worst = max(worst, product - Fraction(one_high), Fraction(one_low) - product)
    return worst


@pytest.mark.parametrize(("n", "m", "samples", "dtype"), CASES)
def test_rows_hold_in_exact_arithmetic(n, m, samples, dtype):
    raw, A, lower, upper = problem(n, m, samples=samples, dtype=dtype)
    lower, upper = torch.minimum(lower, upper - 0.5), torch.maximum(upper, lower + 0.5)
    if dtype in (torch.bfloat16, torch.float16):  # keep room for the margin of a half type
        keep = torch.linalg.svdvals(A.double())[:, -1] > 0.3
        raw, A, lower, upper = raw[keep], A[keep], lower[keep] - 2, upper[keep] + 2
    y = enforce_affine(raw, A, lower, upper, strict=True)
    assert y.dtype == dtype
    assert y.isfinite().all()
    assert exact_excess(A, y, lower, upper) <= 0
    plain = enforce_affine(raw, A, lower, upper)
    if dtype in (torch.float64, torch.float32):
        assert exact_excess(A[:200], plain[:200], lower[:200], upper[:200]) > 0  # what strict is for
    bound = rounding_bound(A, y, lower, upper)
    assert (bound == 0).all()


def test_shared_matrix_and_one_sided():
    raw, A, lower, upper = problem(6, 3, samples=500, shared=True)
    y = enforce_affine(raw, A, None, upper, strict=True)
    free = torch.full_like(upper, -1e300)
    assert exact_excess(A.expand(500, 3, 6), y, free, upper) <= 0
    y = enforce_affine(raw, A, lower, strict=True)
    assert exact_excess(A.expand(500, 3, 6), y, lower, -free) <= 0
    assert (rounding_bound(A, y, lower) == 0).all()


def test_stays_within_roundings_of_the_plain_answer_and_keeps_its_gradient():
    numbers = [number.requires_grad_() for number in problem(6, 3, samples=50)]
    plain, strict = enforce_affine(*numbers), enforce_affine(*numbers, strict=True)
    assert (plain - strict).abs().max() < 1e-12 * plain.abs().max()
    weight = torch.ones_like(plain)
    pairs = zip(*(torch.autograd.grad(y, numbers, weight) for y in (plain, strict)), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_well_inside_is_kept_bit_for_bit():
    raw, A, _, _ = problem(6, 3)
    product = (A @ raw.unsqueeze(-1)).squeeze(-1)
    assert torch.equal(enforce_affine(raw, A, product - 1, product + 1, strict=True), raw)


def test_equalities_report_their_residual():
    raw, A, _, upper = problem(6, 3, samples=100)
    lower = upper.clone()
    lower[:, 1:] -= 1  # the first row is an equality, the others are not
    y = enforce_affine(raw, A, lower, upper, strict=True)
    bound = rounding_bound(A, y, lower, upper)
    assert (bound[:, 1:] == 0).all()
    assert (bound[:, 0] < 1e-13 * (1 + upper[:, 0].abs()) * 100).all()
    for sample in range(100):
        terms = (Fraction(a) * Fraction(b) for a, b in zip(A[sample, 0].tolist(), y[sample].tolist(), strict=True))
        assert abs(sum(terms) - Fraction(upper[sample, 0].item())) <= Fraction(bound[sample, 0].item())


def test_bad_sample_is_nan_alone():
    raw, A, lower, upper = problem(6, 3)
    healthy = enforce_affine(raw, A, lower, upper, strict=True)
    lower[3, 0] = upper[3, 0] + 1
    y = enforce_affine(raw, A, lower, upper, strict=True, on_invalid="nan")
    assert y[3].isnan().all()
    assert torch.equal(y[:3], healthy[:3])
    assert torch.equal(y[4:], healthy[4:])


def in_a_wide_box(*numbers, **options):
    return project_box_rows(*numbers, -1e3, 1e3, **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("enforce", [enforce_affine, project_affine, in_a_wide_box])
@pytest.mark.parametrize("roundings", [1, 8, 64, 512])
def test_an_inequality_too_narrow_to_be_certain_of_is_refused(enforce, roundings, dtype):
    """``upper = lower + a few roundings``: returned samples hold in exact arithmetic, the error names the others."""
    raw, A, _, upper = problem(6, 3, samples=100, dtype=dtype)
    lower = upper - 1
    upper[:, 0] = lower[:, 0] + roundings * torch.finfo(dtype).eps * lower[:, 0].abs()
    refused = {"on_invalid": "nan"} if enforce is enforce_affine else {"on_unsolved": "nan"}
    y = enforce(raw, A, lower, upper, strict=True, **refused)
    kept = y.isfinite().all(-1)
    assert exact_excess(A[kept], y[kept], lower[kept], upper[kept]) <= 0
    assert y[~kept].isnan().all()
    if roundings == 512:
        assert kept.any()
    if not kept.all():
        with pytest.raises(ConvergenceError, match="strict: expected room") as caught:
            enforce(raw, A, lower, upper, strict=True)
        assert caught.value.samples == (~kept).nonzero().squeeze(-1).tolist()
