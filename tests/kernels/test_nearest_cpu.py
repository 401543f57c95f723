"""The compiled nearest point for few rows on a CPU: against the plain formulas, and derivatives of every kind."""

import pytest
import torch

from hardnet.functional import nearest
from hardnet.kernels.cpu.launch import FewRows
from hardnet.nearest import few_rows
from hardnet.rows import take_rows
from hardnet.solvers import Status
from hardnet.testing import check_kernel
from tests.functional.nearest_cases import nearest_few, random_problem
from tests.functional.test_nearest_few import bounded_problem, certificate, compute_y
from tests.kernels.nearest_cases import TOLERANCE, compare_gradients, degenerate, on_batch, outputs

pytest.importorskip("numba")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 3), (2, 1), (2, 2), (2, 5), (3, 2), (3, 4), (4, 3), (4, 9)])
def test_kernels_agree_with_the_formulas(m, n, dtype):
    make = lambda seed: degenerate(seed, m, n, dtype)
    check_kernel(
        outputs(on_batch(FewRows())), outputs(few_rows.nearest), make, tolerance=TOLERANCE[dtype], seeds=(0, 1)
    )


@pytest.mark.parametrize("tangent", [False, True])
@pytest.mark.parametrize(("m", "n", "shared"), [(1, 3, False), (2, 2, False), (3, 4, True), (4, 3, False)])
def test_gradients_agree_with_the_formulas(m, n, shared, tangent):
    compare_gradients(FewRows(), m, n, torch.float64, shared=shared, tangent=tangent, samples=99)


@pytest.mark.parametrize(("m", "n"), [(2, 2), (3, 4)])
def test_first_and_second_derivatives_agree_with_differences(m, n):
    leaves = [part.requires_grad_() for part in bounded_problem(m, n)]
    assert FewRows().takes(take_rows(*leaves))
    assert torch.autograd.gradcheck(compute_y, leaves, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(compute_y, leaves, fast_mode=True)


def test_samples_have_the_same_bits_in_any_batch():
    raw, A, lower, upper = random_problem(6, 1100, 3, 4)
    together = nearest_few(raw, A, lower, upper)
    for part in (slice(0, 1), slice(3, 70), slice(600, 1100)):
        alone = nearest_few(raw[part], A[part], lower[part], upper[part])
        for one, other in zip(alone, together, strict=True):
            assert other is None if one is None else torch.equal(one, other[part])


def test_raw_inside_keeps_its_bits():
    raw, A = torch.tensor([[-0.0, 0.0], [0.5, -0.0]]), torch.tensor([[1.0, 1.0], [-1.0, 1.0]])
    for lower in (-torch.ones(2), None):
        y = compute_y(raw, A, lower, torch.ones(2))
        assert torch.equal(y.view(torch.int32), raw.view(torch.int32))
    equality = compute_y(raw[:1], A, torch.zeros(2), torch.zeros(2))
    assert torch.equal(equality.view(torch.int32), raw[:1].view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("m", "n"), [(2, 2), (4, 4)])
def test_the_certificate_holds_on_many_samples(m, n, dtype):
    for far in (1.0, 1e6):
        raw, A, lower, upper = random_problem(m, 100_000, m, n, far=far, dtype=dtype)
        found = nearest_few(raw, A, lower, upper)
        assert (found.status == Status.SOLVED).all()
        assert certificate(found.y, A, lower, upper).ok


@pytest.mark.parametrize(("dtype", "large"), [(torch.float64, 2.0**490), (torch.float32, 2.0**60)])
def test_units_do_not_matter(dtype, large):
    raw, A, lower, upper = random_problem(3, 100, 3, 4, dtype=dtype)
    y = compute_y(raw, A, lower, upper)
    for rows, unit in ((large, large), (1 / large, 1 / large), (large, 1 / large)):
        assert torch.equal(compute_y(raw * unit, A * rows, lower * rows * unit, upper * rows * unit), y * unit)


def test_compiled_code_is_taken_in_eager_mode_alone(monkeypatch):
    calls, compute = [], nearest.by_kernel
    monkeypatch.setattr(nearest, "by_kernel", lambda *parts: calls.append(1) or compute(*parts))
    numbers = bounded_problem(2, 2)
    nearest_few(*numbers)
    assert calls
    calls.clear()
    torch.func.vmap(lambda *parts: compute_y(*(part.unsqueeze(0) for part in parts)))(*numbers)
    torch.func.jvp(compute_y, tuple(numbers), tuple(numbers))
    assert not calls
