"""Code compiled for a CPU: against the reference, for any batch, any number of threads, and difficult numbers."""

import itertools
from functools import partial
from typing import Any

import pytest
import torch

import hardnet as hn
from benchmarks.conditioning import matrices
from hardnet.functional import enforce_affine, factorize
from hardnet.kernels.cpu import launch as cpu
from hardnet.testing import check_kernel
from tests.bounds import assert_within, of_factor
from tests.functional.affine_problems import by_operations, problem, relative_violation
from tests.kernels.affine_cases import BOUNDS
from tests.kernels.cpu_cases import (
    DTYPES,
    PER_SAMPLE,
    SHARED,
    SIZES,
    bits,
    enforce,
    numbers_of,
    outputs,
    reference,
    same_bits,
    take,
)

pytest.importorskip("numba")

EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
ROWS = pytest.mark.parametrize(("m", "n"), PER_SAMPLE)
COMMON = pytest.mark.parametrize(("m", "n"), SHARED)
ANY = pytest.mark.parametrize(
    ("m", "n", "shared"), [*((m, n, False) for m, n in PER_SAMPLE), *((m, n, True) for m, n in SHARED)]
)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4}
"""For shapes where torch multiplies in the dtype itself."""


def one_pass(m, n, shared):
    """Whether one compiled pass computes everything, with sums in float64."""
    return m * n <= 64 if shared else True


def compare(m, n, dtype, shared, sizes, kinds, spoiled):
    exact = dtype == torch.float32 and not shared and one_pass(m, n, shared)
    for samples, bounds in itertools.product(sizes, kinds):
        options = {"m": m, "n": n, "dtype": dtype, "bounds": bounds, "shared": shared, "spoiled": spoiled}
        make = partial(numbers_of, samples=samples, **options)
        alone = exact and bounds != "shared"  # whose gradients torch sums over the samples in float32
        check_kernel(outputs, reference, make, tolerance=1e-6 if alone else TOLERANCE[dtype], seeds=(samples,))


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@EVERY_DTYPE
@ROWS
def test_rows_per_sample_agree_with_the_reference(m, n, dtype):
    compare(m, n, dtype, False, SIZES, BOUNDS, spoiled=True)


@EVERY_DTYPE
@COMMON
def test_shared_rows_agree_with_the_reference(m, n, dtype):
    compare(m, n, dtype, True, SIZES if m * n <= 64 else (1, 65), BOUNDS, spoiled=False)
    compare(m, n, dtype, True, (513,), ("both",), spoiled=False)
    compare(m, n, dtype, True, (65,), ("both",), spoiled=True)


@EVERY_DTYPE
@COMMON
def test_a_factor_gives_the_answer_of_its_rows(m, n, dtype):
    raw, A, lower, upper, _ = numbers_of(0, 65, m, n, dtype, shared=True, spoiled=False)
    y = enforce(raw, A, lower, upper, factor=factorize(A))
    torch.testing.assert_close(y, enforce(raw, A, lower, upper), rtol=0, atol=TOLERANCE[dtype])


@EVERY_DTYPE
@pytest.mark.parametrize(("m", "n", "shared"), [*((m, n, False) for m, n in PER_SAMPLE), (1, 1, True), (8, 8, True)])
def test_a_sample_has_the_same_bits_in_any_batch_and_place(m, n, shared, dtype):
    parts = numbers_of(0, 1000, m, n, dtype, shared=shared)
    alone = lambda results: results[:2] + results[2 + shared :]  # the gradient of a shared A is a sum
    every = alone(outputs(*parts))
    pieces = [torch.arange(size) for size in SIZES]
    for chosen in (*pieces, torch.arange(999, -1, -1), torch.arange(37, 137), torch.arange(0, 1000, 3)):
        assert same_bits(alone(outputs(*take(parts, chosen))), [part[chosen] for part in every])


@EVERY_DTYPE
@pytest.mark.parametrize(("m", "n"), [(2, 2), (8, 8), (8, 32)])
def test_several_threads_give_the_bits_of_one(m, n, dtype):
    samples = 3 * cpu.NUMBERS_OF_A_THREAD // (m * n) + 5
    parts = numbers_of(0, samples, m, n, dtype)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = outputs(*parts)
        for threads in (2, 3, 7):
            torch.set_num_threads(threads)
            assert same_bits(outputs(*parts), one)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("dtype", "condition", "limit"), [(torch.float64, 1e6, 1e-9), (torch.float32, 1e3, 1e-4)])
@pytest.mark.parametrize(("m", "n"), [(2, 2), (3, 5), (5, 10), (8, 8), (8, 32)])
def test_violations_stay_small_on_badly_conditioned_rows(m, n, dtype, condition, limit):
    A = matrices(n, m, condition, 100, torch.Generator().manual_seed(m)).to(dtype)
    raw, upper = draw(1, 100, n).to(dtype), draw(2, 100, m).to(dtype)
    for rows in (A, A[0]):
        y = enforce(raw, rows, upper - 1, upper)
        assert relative_violation(y, rows, upper - 1, upper) < limit


@EVERY_DTYPE
@ANY
def test_rows_of_very_different_size_stand_together(m, n, shared, dtype):
    raw, A, lower, upper, _ = numbers_of(0, 65, m, n, dtype, shared=shared, spoiled=False)
    sizes = torch.where(torch.arange(m) % 2 == 0, 1e-6, 1e6).to(dtype)
    y = enforce(raw, A * sizes[:, None], lower * sizes, upper * sizes)
    torch.testing.assert_close(y, enforce(raw, A, lower, upper), rtol=0, atol=10 * TOLERANCE[dtype])


@pytest.mark.parametrize(("dtype", "unit"), [(torch.float64, 2.0**-498), (torch.float32, 2.0**-60)])
@ANY
def test_small_rows_and_small_raws_stand_together(m, n, shared, dtype, unit):
    """Terms of a row that underflow its dtype, down to 2^-180 in float32: the answer scales with raw."""
    raw, A, lower, *_ = numbers_of(0, 65, m, n, dtype, shared=shared, spoiled=False)
    for low, high in ((torch.zeros_like(lower), torch.zeros_like(lower)), (None, torch.zeros_like(lower))):
        expected = enforce(raw, A, low, high)
        for small in (unit, unit**0.5) if dtype == torch.float64 else (unit, unit**2):
            y = enforce(raw * small, A * unit, low, high)
            torch.testing.assert_close(y / small, expected, rtol=0, atol=10 * TOLERANCE[dtype])


@EVERY_DTYPE
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
@ANY
def test_raw_outputs_far_outside_satisfy_the_certificate(m, n, shared, dtype, size):
    A = matrices(n, m, 10.0, 500, torch.Generator().manual_seed(m))
    raw, A, upper = ((size * draw(1, 500, n)).to(dtype), (A[0] if shared else A).to(dtype), draw(2, 500, m).to(dtype))
    for lower in (upper - 1, upper, None):
        certificate = hn.check(hn.Affine(A, lower=lower, upper=upper), enforce(raw, A, lower, upper))
        assert certificate.ok, str(certificate)


@EVERY_DTYPE
@ANY
def test_a_sample_inside_keeps_its_bits(m, n, shared, dtype):
    raw, A, _, _, gradient = numbers_of(0, 65, m, n, dtype, shared=shared, spoiled=False)
    raw[::2] = -0.0
    raw[1, 0] = -0.0
    far = torch.full((m,), 1e4, dtype=dtype)
    far_per_sample = far.expand(65, m).contiguous()
    for lower, upper in ((-far, far), (-far_per_sample, far_per_sample), (None, far), (-far, None)):
        y, grad_raw, *others = outputs(raw, A, lower, upper, gradient)
        assert torch.equal(bits(y), bits(raw))
        assert torch.equal(grad_raw, gradient)
        assert all((other == 0).all() for other in others)
    neighbor = far_per_sample.clone()
    neighbor[1] = -1e4  # one sample that moves, among others that do not
    assert torch.equal(bits(enforce(raw, A, -2 * far, neighbor))[2:], bits(raw)[2:])


@EVERY_DTYPE
@ANY
def test_any_layout_in_memory_is_read_right(m, n, shared, dtype):
    raw, A, lower, upper, gradient = numbers_of(0, 65, m, n, dtype, shared=shared, spoiled=False)
    expected = outputs(raw, A, lower, upper, gradient)
    turn = lambda part: part.mT.contiguous().mT
    stride = lambda part: torch.stack((part, part + 1), -1)[..., 0]
    negate = lambda part: torch.complex(part, -part).conj().imag
    for change in (turn, stride, negate):
        parts = [change(part) for part in (raw, A, lower, upper, gradient)]
        assert change is not negate or all(part.is_neg() for part in parts)
        if not one_pass(m, n, shared):  # torch multiplies, in an order that depends on the layout
            for one, other in zip(outputs(*parts), expected, strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE[dtype] * (1 + float(other.abs().max())))
        else:
            assert same_bits(outputs(*parts), expected)


@EVERY_DTYPE
@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 2), (5, 10), (8, 32)])
def test_numbers_expanded_over_the_batch_are_those_of_every_sample(m, n, dtype):
    raw, A, lower, upper, gradient = numbers_of(0, 65, m, n, dtype, spoiled=False)
    spread = raw[0].expand(65, n), A[0].expand(65, m, n), lower[0].expand(65, m), upper[0].expand(65, m), gradient
    copies: Any = [part.contiguous() for part in spread]
    assert same_bits(outputs(*spread), outputs(*copies))
    one = gradient[0, 0].expand(65, n)  # the gradient of a sum
    assert same_bits(outputs(raw, A, lower, upper, one), outputs(raw, A, lower, upper, one.contiguous()))


SPOILERS = {
    "raw NaN": lambda raw, A, lower, upper, at: raw[at].__setitem__(0, torch.nan),
    "raw infinite": lambda raw, A, lower, upper, at: raw[at].__setitem__(-1, -torch.inf),
    "A NaN": lambda raw, A, lower, upper, at: A[at].__setitem__((-1, -1), torch.nan),
    "A infinite": lambda raw, A, lower, upper, at: A[at].__setitem__((0, 0), torch.inf),
    "rows dependent": lambda raw, A, lower, upper, at: A[at].__setitem__(-1, 3 * A[at, 0] if A.shape[1] > 1 else 0),
    "bounds crossed": lambda raw, A, lower, upper, at: (lower[at].fill_(1.0), upper[at].fill_(0.0)),
    "bound NaN": lambda raw, A, lower, upper, at: upper[at].__setitem__(0, torch.nan),
    "lower +inf": lambda raw, A, lower, upper, at: lower[at].fill_(torch.inf),
}
OF_A = ("A NaN", "A infinite", "rows dependent")


@EVERY_DTYPE
@pytest.mark.parametrize(
    ("what", "m", "n", "shared"),
    [(what, m, n, False) for what in SPOILERS for m, n in PER_SAMPLE]
    + [(what, m, n, True) for what in SPOILERS if what not in OF_A for m, n in SHARED],
)
def test_a_bad_sample_is_nan_alone_and_sends_no_gradient(m, n, shared, dtype, what):
    parts = numbers_of(0, 130, m, n, dtype, shared=shared, spoiled=False)
    still = parts[4].clone()
    still[[0, 63, 64, 129]] = 0
    silent = outputs(*parts[:4], still)
    healthy, others = outputs(*parts), torch.ones(130, dtype=torch.bool)
    for at in (0, 63, 64, 129):  # edges of tiles
        SPOILERS[what](*parts[:4], at)
        others[at] = False
    results = outputs(*parts)
    for index, (result, expected) in enumerate(zip(results, healthy, strict=True)):
        if shared and index == 2:  # the gradient of a shared A has a term of every sample
            torch.testing.assert_close(result, silent[index], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        else:
            assert result[~others].isnan().all() if index == 0 else not result[~others].any()
            assert torch.equal(bits(result[others]), bits(expected[others]))
    with pytest.raises(hn.errors.HardNetError) as caught:
        enforce_affine(*parts[:4])
    assert getattr(caught.value, "samples", None) == [0, 63, 64, 129]


@EVERY_DTYPE
@COMMON
def test_shared_rows_that_depend_leave_no_sample_an_answer_and_name_none(m, n, dtype):
    raw, A, lower, upper, gradient = numbers_of(0, 65, m, n, dtype, shared=True, spoiled=False)
    A[-1] = 3 * A[0] if m > 1 else 0.0
    y, *gradients = outputs(raw, A, lower, upper, gradient)
    assert y.isnan().all()
    assert not any(part.any() for part in gradients)
    with pytest.raises(hn.errors.RankError) as caught:
        enforce_affine(raw, A, lower, upper)
    assert caught.value.samples == []


@ANY
def test_gradients_agree_with_autograd_through_the_plain_formulas(m, n, shared):
    leaves = [part.requires_grad_() for part in problem(n, m, samples=9, shared=shared)]
    gradient = draw(1, 9, n)
    ours = torch.autograd.grad(enforce(*leaves), leaves, gradient)
    plain = torch.autograd.grad(by_operations(*leaves), leaves, gradient)
    for one, other in zip(ours, plain, strict=True):
        assert_within(one, other, of_factor(leaves[1]), most=1e-8)


@ANY
def test_a_matrix_that_wants_no_gradient_changes_no_bit_of_the_others(m, n, shared):
    raw, A, lower, upper, gradient = numbers_of(0, 65, m, n, torch.float32, shared=shared, spoiled=False)
    leaves = [part.requires_grad_() for part in (raw, lower, upper)]
    alone = torch.autograd.grad(enforce(raw, A, lower, upper), leaves, gradient)
    together = torch.autograd.grad(enforce(raw, A.requires_grad_(), lower, upper), leaves, gradient)
    assert same_bits(alone, together)
    with torch.no_grad():
        assert same_bits([enforce(raw, A, lower, upper)], [enforce(*(p.detach() for p in (raw, A, lower, upper)))])
