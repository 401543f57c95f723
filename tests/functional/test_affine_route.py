"""The short route for well-formed arguments on a GPU: the same answers, gradients and errors as the long route.

No GPU is needed: numbers on the CPU are treated as if on a GPU, and the reference computes in place of a kernel.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hardnet import rows
from hardnet.functional import affine as functional
from hardnet.functional import enforce_affine
from hardnet.kernels.cpu import launch as cpu
from hardnet.kernels.gpu import affine
from tests.functional.affine_problems import by_operations, problem
from tests.kernels import affine_reference


@pytest.fixture
def launched(monkeypatch):
    """The arguments of every launch; numbers on the CPU are treated as if on a GPU."""
    calls = []

    @torch.no_grad()  # like a kernel, which autograd does not see
    def forward(*parts):
        calls.append(parts)
        return affine_reference.forward(parts[0], per_sample(*parts[:2]), *parts[2:])

    @torch.no_grad()
    def backward(gradient, raw, A, lower, upper, wants_matrix):
        calls.append((gradient, raw, A, lower, upper, wants_matrix))
        grads = affine_reference.backward(gradient, raw, per_sample(raw, A), lower, upper)
        matrix = grads[1] if A.dim() == 3 else grads[1].sum(0)
        return grads[0], matrix if wants_matrix else None, *grads[2:]

    launches = SimpleNamespace(launch_forward=forward, launch_backward=backward)
    monkeypatch.setattr(affine, "_launches", lambda: launches)
    monkeypatch.setattr(affine, "available", lambda A: True)
    monkeypatch.setattr(rows, "may_look", lambda tensor: False)
    monkeypatch.setattr(cpu, "HAS_NUMBA", False)
    return calls


@pytest.fixture
def short(monkeypatch, launched):
    """The same, with the checks of the long route disabled: reaching them fails the test."""
    monkeypatch.setattr(rows, "check_affine", lambda *_: pytest.fail("the long route"))
    return launched


def per_sample(raw, A):
    return A if A.dim() == 3 else A.expand(len(raw), *A.shape)


def cases(samples, dtype=torch.float64):
    """Bounds of every kind, and an A per sample or shared."""
    raw, A, lower, upper = problem(5, 3, samples=samples, dtype=dtype)
    for matrix in (A, A[0]):
        for low, high in ((lower, upper), (None, upper), (lower[0], None), (lower[0] - 9, upper), (lower[:1], None)):
            if low is None or low.dim() == 1 or len(low) == samples:
                yield raw, matrix, low, high


@pytest.mark.parametrize("samples", [1, 4])
def test_answers_and_gradients_are_those_of_the_long_route(samples, short):
    for parts in cases(samples):
        leaves: list[Any] = [part if part is None else part.clone().requires_grad_() for part in parts]
        given = [leaf for leaf in leaves if leaf is not None]
        y = enforce_affine(*leaves)
        grads = torch.autograd.grad(y.square().sum(), given)
        assert len(short) == 2
        assert torch.equal(enforce_affine(*parts), y)
        with torch.no_grad():
            assert torch.equal(enforce_affine(*leaves), y)
        short.clear()
        expected = by_operations(*leaves)
        torch.testing.assert_close(y, expected)
        for grad, right in zip(grads, torch.autograd.grad(expected.square().sum(), given), strict=True):
            torch.testing.assert_close(grad, right)


def test_nothing_is_recorded_for_numbers_that_need_no_gradient(short, monkeypatch):
    monkeypatch.setattr(functional, "ClosedForm", None)
    numbers = problem(5, 3)
    assert not enforce_affine(*numbers).requires_grad
    numbers[1].requires_grad_()
    with torch.no_grad():
        assert not enforce_affine(*numbers).requires_grad
    assert len(short) == 2


@pytest.mark.parametrize("which", range(4))
def test_each_argument_that_needs_a_gradient_gets_it(which, short):
    numbers = problem(5, 3)
    numbers[which].requires_grad_()
    y = enforce_affine(*numbers)
    (grad,) = torch.autograd.grad(y.sum(), numbers[which])
    (right,) = torch.autograd.grad(by_operations(*numbers).sum(), numbers[which])
    torch.testing.assert_close(grad, right)
    assert short[1][5] == (which == 1)  # the gradient of A is asked for where it is needed


def test_a_shared_bound_without_gradient_costs_no_sum(short, monkeypatch):
    raw, A, lower, upper = problem(5, 3)
    raw.requires_grad_()
    y = enforce_affine(raw, A, lower[0] - 9, upper[0] + 9)
    monkeypatch.setattr(torch.Tensor, "sum", None)
    torch.autograd.grad(y, raw, torch.ones_like(y))


def test_transforms_and_second_derivatives_take_the_formulas(launched):
    raw, A, lower, upper = problem(5, 3, samples=2)
    leaves = [part.requires_grad_() for part in (raw, A, lower, upper)]
    assert torch.autograd.gradcheck(enforce_affine, leaves)
    assert torch.autograd.gradgradcheck(enforce_affine, leaves, fast_mode=True)
    mapped = torch.func.vmap(enforce_affine)(raw, A, lower, upper)
    torch.testing.assert_close(mapped, enforce_affine(raw, A, lower, upper))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(raw.detach(), torch.ones_like(raw))
        assert torch.autograd.forward_ad.unpack_dual(enforce_affine(dual, A, lower, upper)).tangent is not None


def malformed():
    """(arguments, options) that must raise an error."""
    raw, A, lower, upper = problem(5, 3)
    wide = torch.randn(len(raw), 6, 5, dtype=raw.dtype)
    yield from (
        ((raw.tolist(), A, lower, upper), {}),
        ((raw, A.tolist(), lower, upper), {}),
        ((raw.long(), A.long(), lower.long(), upper.long()), {}),
        ((raw, A.float(), lower, upper), {}),
        ((raw, A, lower.float(), upper), {}),
        ((raw, A, lower, upper.to("meta")), {}),
        ((raw, A.mT, lower, upper), {}),
        ((raw, A[:2], lower, upper), {}),
        ((raw, A, lower[:, :2], upper), {}),
        ((raw, A, lower, upper[:2]), {}),
        ((raw, wide, wide[..., 0], None), {}),
        ((raw[0, 0], A, lower, upper), {}),
        ((raw, A, lower, upper), {"on_invalid": "ignore"}),
        ((raw, A[0], lower, upper), {"factor": A[0, :2]}),
        ((raw, A[0], lower, upper), {"factor": A[0].float()}),
        ((raw, A[0].clone().requires_grad_(), lower, upper), {"factor": A[0]}),
    )


def refusal(arguments, options):
    """The type and message of an error."""
    with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
        enforce_affine(*arguments, **options)
    return type(caught.value), str(caught.value)


def test_what_is_malformed_is_refused_in_the_same_words():
    expected = [refusal(*case) for case in malformed()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "may_look", lambda tensor: False)
        patch.setattr(cpu, "HAS_NUMBA", False)
        assert [refusal(*case) for case in malformed()] == expected
    assert len({words for _, words in expected}) > 10


def test_empty_and_unbounded_batches_are_returned(launched):
    raw, A, lower, upper = problem(5, 3)
    assert torch.equal(enforce_affine(raw, A), raw)
    assert enforce_affine(raw[:0], A[:0], lower[:0], upper[:0]).shape == (0, 5)
    assert not launched


def reference_gradients(raw, A, lower, upper, cotangent):
    """Gradients by autograd through the plain formulas."""
    leaves = [part.detach().requires_grad_() for part in (raw, A, lower, upper)]
    return torch.autograd.grad(by_operations(*leaves), leaves, cotangent)


def small_problem():
    draw = torch.Generator().manual_seed(3)
    normal = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64)
    A, center = normal(5, 3, 4), normal(5, 4)
    middle = (A @ center.unsqueeze(-1)).squeeze(-1)
    return center + 3 * normal(5, 4), A, middle - 1, middle + 1, normal(2, 5, 4)


def test_batched_gradients_keep_away_from_kernels(launched):
    """Batched gradients have no memory that a kernel could read."""
    raw, A, lower, upper, cotangents = small_problem()
    leaves = [part.requires_grad_() for part in (raw, A, lower, upper)]
    y = enforce_affine(*leaves)
    assert len(launched) == 1
    batched = torch.autograd.grad(y, leaves, cotangents, is_grads_batched=True)
    assert len(launched) == 1
    for number, cotangent in enumerate(cotangents):
        for mine, right in zip(batched, reference_gradients(raw, A, lower, upper, cotangent), strict=True):
            torch.testing.assert_close(mine[number], right)


@pytest.mark.parametrize("numba", [False, True])
def test_a_backward_in_another_mode_does_not_misread_what_was_kept(monkeypatch, numba):
    """Compiled autograd runs the backward of an eager forward, which carries its path with it."""
    monkeypatch.setattr(cpu, "HAS_NUMBA", numba and cpu.HAS_NUMBA)
    raw, A, lower, upper, cotangents = small_problem()
    for shared in (False, True):
        leaves = [part.detach().clone().requires_grad_() for part in (raw, A[0] if shared else A, lower, upper)]
        y = enforce_affine(*leaves)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.compiler, "is_compiling", lambda: True)
            found = torch.autograd.grad(y, leaves, cotangents[0])
        for mine, right in zip(found, reference_gradients(*leaves, cotangents[0]), strict=True):
            torch.testing.assert_close(mine, right)
