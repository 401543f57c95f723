"""The closed form: values, shapes, dtypes, conditioning, identity inside, independence of samples."""

import mpmath
import pytest
import torch

import hardnet as hn
from benchmarks.conditioning import matrices
from hardnet.errors import RankError
from hardnet.functional import enforce_affine, factorize
from tests.functional.affine_problems import SHAPES, formula, multiply, problem, relative_violation

pytestmark = pytest.mark.usefixtures("path")

EVERY_SHAPE = pytest.mark.parametrize(("n", "m"), SHAPES.values(), ids=SHAPES)
INF = torch.inf


def bits(tensor):
    return tensor.contiguous().view(torch.int64 if tensor.dtype == torch.float64 else torch.int32)


@EVERY_SHAPE
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-3)])
def test_agrees_with_the_formula(n, m, dtype, tolerance):
    numbers = problem(n, m, dtype=dtype)
    expected = formula(*(number.double() for number in numbers))
    y = enforce_affine(*numbers)
    assert y.dtype == dtype
    assert (y - expected).abs().max() <= tolerance * expected.abs().max()
    assert relative_violation(y, *numbers[1:]) <= 16 * torch.finfo(dtype).eps


@EVERY_SHAPE
def test_shared_matrix_and_factor_agree_with_copies_per_sample(n, m):
    raw, A, lower, upper = problem(n, m, shared=True)
    copies = enforce_affine(raw, A.expand(len(raw), m, n), lower, upper)
    torch.testing.assert_close(enforce_affine(raw, A, lower, upper), copies, rtol=1e-11, atol=1e-11)
    factor = factorize(A)
    assert factor.shape == A.shape
    torch.testing.assert_close(factor, torch.linalg.pinv(A).mT, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(enforce_affine(raw, A, lower, upper, factor=factor), copies, rtol=1e-11, atol=1e-11)


def test_factor_per_sample():
    raw, A, lower, upper = problem(6, 3)
    y = enforce_affine(raw, A, lower, upper, factor=factorize(A))
    torch.testing.assert_close(y, enforce_affine(raw, A, lower, upper))


def test_any_batch_dimensions():
    raw, A, lower, upper = problem(5, 3, samples=12)
    y = enforce_affine(raw, A, lower, upper)
    blocks = [part.unflatten(0, (2, 3, 2)) for part in (raw, A, lower, upper)]
    assert torch.equal(enforce_affine(*blocks), y.unflatten(0, (2, 3, 2)))
    one = enforce_affine(raw[0], A[0], lower[0], upper[0])
    assert one.shape == (5,)
    torch.testing.assert_close(one, y[0], rtol=1e-13, atol=1e-13)
    spread = enforce_affine(raw[0], A, lower, upper)  # one raw output against many sets
    assert spread.shape == (12, 5)
    torch.testing.assert_close(spread[0], y[0], rtol=1e-13, atol=1e-13)
    crossed = enforce_affine(raw[:, None], A[None], lower[None, :], upper)
    assert crossed.shape == (12, 12, 5)
    torch.testing.assert_close(crossed.diagonal(dim1=0, dim2=1).mT, y, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("m", [1, 3, 9])
def test_bounds_of_every_kind(m):
    raw, A, lower, upper = problem(12, m)
    above, below = torch.full((m,), INF, dtype=torch.float64), torch.full((m,), -INF, dtype=torch.float64)
    torch.testing.assert_close(enforce_affine(raw, A, None, upper), enforce_affine(raw, A, below, upper))
    torch.testing.assert_close(enforce_affine(raw, A, lower), enforce_affine(raw, A, lower, above))
    assert torch.equal(enforce_affine(raw, A, below, above), raw)
    assert torch.equal(enforce_affine(raw, A), raw)
    torch.testing.assert_close(multiply(A, enforce_affine(raw, A, upper, upper)), upper)  # equalities
    torch.testing.assert_close(multiply(A, enforce_affine(raw, A, 0.5, 0.5)), torch.full_like(upper, 0.5))
    shared = enforce_affine(raw, A, upper[0] - 1, upper[0])
    torch.testing.assert_close(shared, enforce_affine(raw, A, (upper[0] - 1).expand(16, m), upper[0].expand(16, m)))


@EVERY_SHAPE
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_inside_is_returned_bit_for_bit(n, m, dtype):
    raw, A, _, _ = problem(n, m, dtype=dtype)
    raw[0, 0] = -0.0
    product = multiply(A, raw)
    for constraint in ((A, product - 1, product + 1), (A[0], multiply(A[0], raw) - 1, multiply(A[0], raw) + 1)):
        assert torch.equal(bits(enforce_affine(raw, *constraint)), bits(raw))
    factor = factorize(A[0])
    y = enforce_affine(raw, A[0], multiply(A[0], raw) - 1, None, factor=factor)
    assert torch.equal(bits(y), bits(raw))


@EVERY_SHAPE
def test_idempotent(n, m):
    numbers = problem(n, m)
    y = enforce_affine(*numbers)
    torch.testing.assert_close(enforce_affine(y, *numbers[1:]), y, rtol=1e-12, atol=1e-12)


@EVERY_SHAPE
def test_samples_do_not_see_each_other(n, m):
    numbers = problem(n, m, samples=32)
    y = enforce_affine(*numbers)
    fewer = enforce_affine(*(part[:7] for part in numbers))  # torch sums in another order: equal to rounding
    torch.testing.assert_close(fewer, y[:7], rtol=1e-12, atol=1e-12)
    numbers[1][5] = numbers[1][5] * 1e-7 if m == 1 else matrices(n, m, 1e9, 1, torch.Generator().manual_seed(1))[0]
    others = torch.arange(32) != 5
    assert torch.equal(enforce_affine(*numbers)[others], y[others])


@pytest.mark.parametrize(("n", "m"), [(10, 5), (2, 2), (16, 8), (20, 10), (20, 20), (100, 50)])
@pytest.mark.parametrize(
    ("dtype", "condition", "limit"),
    [
        (torch.float64, 1e2, 1e-12),
        (torch.float64, 1e6, 1e-9),
        (torch.float64, 1e10, 1e-9),
        (torch.float32, 1e1, 1e-6),
        (torch.float32, 1e3, 1e-4),
    ],
)
def test_conditioning(n, m, dtype, condition, limit):
    source = torch.Generator().manual_seed(0)
    A = matrices(n, m, condition, 100, source).to(dtype)
    raw, upper = (torch.randn(100, k, generator=source, dtype=torch.float64).to(dtype) for k in (n, m))
    for matrix, samples in ((A, slice(None)), (A[0], slice(None))):
        y = enforce_affine(raw[samples], matrix, upper - 1, upper)
        assert relative_violation(y, matrix, upper - 1, upper) < limit


@EVERY_SHAPE
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_rows_of_very_different_size_stand_together(n, m, dtype, limit):
    raw, A, lower, upper = problem(n, m)
    sizes = torch.logspace(-6, 6, m, dtype=torch.float64)
    numbers = [raw.to(dtype), (sizes[:, None] * A).to(dtype), (sizes * lower).to(dtype), (sizes * upper).to(dtype)]
    y = enforce_affine(*numbers)
    assert relative_violation(y, *numbers[1:]) < limit
    tolerance = 1e-9 if dtype == torch.float64 else 5e-3
    expected = enforce_affine(raw, A, lower, upper)
    assert (y.double() - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("n", "m"), [(4, 1), (6, 3), (12, 9)])
def test_half_types_compute_in_float32(n, m, dtype):
    numbers = problem(n, m, dtype=dtype)
    y = enforce_affine(*numbers)
    assert y.dtype == dtype
    wide = enforce_affine(*(number.float() for number in numbers))
    assert torch.equal(y, wide.to(dtype))
    leaves = [number.requires_grad_() for number in numbers]
    grads = torch.autograd.grad(enforce_affine(*leaves).float().sum(), leaves)
    assert all(grad.dtype == dtype and grad.isfinite().all() for grad in grads)


def test_empty_batch_and_no_rows():
    raw, A, lower, upper = problem(5, 3)
    assert enforce_affine(raw[:0], A[:0], lower[:0], upper[:0]).shape == (0, 5)
    assert enforce_affine(raw[:0], A[0], lower[0], upper[0]).shape == (0, 5)
    assert torch.equal(enforce_affine(raw, A[:, :0], lower[:, :0], upper[:, :0]), raw)


def test_near_dependence_is_answered_and_dependence_refused():
    row = torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for m in (2, 9, 12):
        A = torch.eye(m, 12, dtype=torch.float64)
        A[m - 1] = A[0] + 1e-9 * torch.ones(12, dtype=torch.float64)
        y = enforce_affine(row, A, None, torch.zeros(m, dtype=torch.float64))
        assert (multiply(A, y) <= 1e-15 * y.abs().max() * 12).all()
        A[m - 1] = A[0] * 3
        with pytest.raises(RankError, match="dependent"):
            enforce_affine(row, A, None, torch.zeros(m, dtype=torch.float64))


def test_known_answers():
    tensor = lambda *rows: torch.tensor(rows, dtype=torch.float64)
    y = enforce_affine(tensor(3.0, 5.0), tensor([-1.0, 1.0]), None, 0.0)  # the example of the paper
    assert torch.equal(y, tensor(4.0, 4.0))
    y = enforce_affine(tensor(2.0, -2.0), tensor([1.0, 0.0], [1.0, 1.0]), None, tensor(1.0, 1.0))
    torch.testing.assert_close(y, tensor(1.0, -1.0))
    A = tensor([1.0, 1.0, 0.0], [0.0, 1.0, 1.0])
    y = enforce_affine(tensor(0.0, 0.0, 4.0), A, tensor(1.0, -1.0), tensor(1.0, 2.0))
    torch.testing.assert_close(y, tensor(4 / 3, -1 / 3, 7 / 3))
    delta = 1e-3  # nearly parallel rows carry the output far: 1 / delta for a violation of 1
    y = enforce_affine(tensor(1.0, -2 / delta), tensor([1.0, 0.0], [1.0, delta]), None, 0.0)
    torch.testing.assert_close(y, tensor(0.0, -1 / delta), atol=1e-9, rtol=1e-12)


@EVERY_SHAPE
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_raw_output_far_outside_leaves_rounding_of_y_alone(n, m, size, dtype):
    source = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(*shape, generator=source, dtype=torch.float64)
    A = matrices(n, m, 10.0, 200, source)
    raw, A, upper = (number.to(dtype) for number in (size * draw(200, n), A, draw(200, m)))
    for matrix in (A, A[0]):
        for lower in (upper - 1, upper):
            y = enforce_affine(raw, matrix, lower, upper)
            assert relative_violation(y, matrix, lower, upper) <= 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("n", "m"), [(4, 1), (4, 2), (12, 5), (20, 12)])
def test_rows_that_feel_one_output_are_exact_beside_large_ones(n, m, dtype):
    source = torch.Generator().manual_seed(5)
    raw = 1e6 * torch.randn(200, n, generator=source, dtype=torch.float64).to(dtype)
    upper = torch.randn(200, m, generator=source, dtype=torch.float64).to(dtype)
    A = torch.eye(m, n, dtype=dtype)
    for matrix, options in ((A, {}), (A, {"factor": factorize(A)}), (A.expand(200, m, n), {})):
        y = enforce_affine(raw, matrix, upper - 1, upper, **options)
        assert relative_violation(y, matrix, upper - 1, upper) <= 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_output_that_shrank_does_not_change_its_neighbors(dtype):
    raw, A, lower, upper = problem(12, 9, samples=64, shared=True, dtype=dtype)
    y = enforce_affine(raw, A, lower, upper)
    raw[5] *= 1e6
    others = torch.arange(64) != 5
    again = enforce_affine(raw, A, lower, upper)
    assert torch.equal(bits(again[others]), bits(y[others]))
    assert relative_violation(again, A, lower, upper) <= 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize(("n", "m"), [(3, 1), (2, 2), (10, 5), (20, 12), (12, 12)])
@pytest.mark.parametrize("shared", [False, True])
def test_autocast_changes_no_bit_of_values_and_gradients(n, m, shared):
    leaves = [part.requires_grad_() for part in problem(n, m, samples=40, dtype=torch.float32, shared=shared)]
    expected = enforce_affine(*leaves)
    slopes = torch.autograd.grad(expected.square().sum(), leaves)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = enforce_affine(*leaves)
        inside = torch.autograd.grad(y.square().sum(), leaves)
    assert y.equal(expected)
    assert all(mine.equal(ours) for mine, ours in zip(inside, slopes, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("n", "m", "samples"), [(2, 2, 20000), (8, 8, 2000), (10, 5, 2000), (16, 16, 500), (50, 50, 200)]
)
@pytest.mark.parametrize("size", [1e3, 1e6])
def test_raw_outputs_far_outside_are_certified(n, m, samples, dtype, size):
    source = torch.Generator().manual_seed(m)
    draw = lambda *shape: torch.randn(*shape, generator=source, dtype=torch.float64)
    A, center = draw(samples, m, n), draw(samples, n)
    middle, width = multiply(A, center), draw(samples, m).abs() * (draw(samples, m) > -0.5)
    numbers = (size * draw(samples, n), A, middle - width, middle + width)
    raw, A, lower, upper = (number.to(dtype) for number in numbers)
    upper = torch.maximum(lower, upper)
    certificate = hn.check(hn.Affine(A, lower=lower, upper=upper), enforce_affine(raw, A, lower, upper))
    assert certificate.ok, str(certificate)


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 3), (5, 4), (8, 8), (20, 12)])
@pytest.mark.parametrize(("dtype", "condition"), [(torch.float32, 5e4), (torch.float64, 2e8)])
def test_shared_rows_that_come_close_are_certified_for_raws_far_away(n, m, dtype, condition):
    """For a far raw, the square of the factor's error times the distance exceeds the rounding of a small y."""
    for seed in range(40):
        source = torch.Generator().manual_seed(seed)
        A = matrices(n, m, condition, 1, source)[0].to(dtype)
        raw, center = (torch.randn(64, n, generator=source, dtype=torch.float64) * size for size in (1e3, 1.0))
        lower = (center @ A.double().mT).to(dtype)
        y = enforce_affine(raw.to(dtype), A, lower, None)
        certificate = hn.check(hn.Affine(A, lower=lower), y)
        assert certificate.ok, (seed, str(certificate))


def exactly(raw, A, lower, upper):
    """The formula for one sample with 100 digits, and the condition number of its unit rows."""
    with mpmath.workdps(100):
        rows, point = mpmath.matrix(A.tolist()), mpmath.matrix(raw.tolist())
        product, bounds = rows * point, zip(lower.tolist(), upper.tolist(), strict=True)
        signed = [min(max(p, low), high) - p for p, (low, high) in zip(product, bounds, strict=True)]
        y = point + rows.T * mpmath.lu_solve(rows * rows.T, mpmath.matrix(signed))
        values = torch.linalg.svdvals(A / torch.linalg.vector_norm(A, dim=-1, keepdim=True))
        return torch.tensor([float(entry) for entry in y], dtype=torch.float64), float(values[0] / values[-1])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 3), (5, 4), (12, 4)])
def test_rows_of_any_condition_give_the_formula(n, m, shared):
    """A backward stable method is off by a modest multiple, here 4 n, of ``cond eps |y|``, or refuses."""
    for seed in range(60):
        source = torch.Generator().manual_seed(seed)
        A = matrices(n, m, 10.0 ** (4 + seed % 10), 1, source)[0]
        raw, middle = (torch.randn(1, k, generator=source, dtype=torch.float64) for k in (n, m))
        numbers = 1e3 * raw, A if shared else A.unsqueeze(0), middle - 0.1, middle + 0.1
        try:
            y = enforce_affine(*numbers)
        except RankError:
            continue
        exact, condition = exactly(numbers[0][0], A, *(bound[0] for bound in numbers[2:]))
        size = max(exact.abs().max(), numbers[0].abs().max())
        assert (y[0] - exact).abs().max() <= 4 * n * condition * torch.finfo(y.dtype).eps * size, seed
