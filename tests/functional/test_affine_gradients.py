"""Gradients of the closed form computed in three ways, second derivatives, transforms, compilation."""

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from benchmarks.conditioning import matrices
from hardnet.errors import RankError
from hardnet.functional import enforce_affine, factorize
from hardnet.functional.affine_formulas import formula_gradients
from tests.bounds import assert_within, of_factor
from tests.draws import draw
from tests.functional.affine_problems import SHAPES, formula, problem, relative_violation

pytestmark = pytest.mark.usefixtures("path")

EVERY_SHAPE = pytest.mark.parametrize(("n", "m"), SHAPES.values(), ids=SHAPES)


def leaves_of(numbers):
    return [number.clone().requires_grad_() for number in numbers]


@EVERY_SHAPE
@pytest.mark.parametrize("shared", [False, True])
def test_closed_form_autograd_and_differences_agree(n, m, shared):
    leaves = leaves_of(problem(n, m, samples=4, shared=shared))
    weight = torch.randn(4, n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ours = torch.autograd.grad(enforce_affine(*leaves), leaves, weight)
    plain = torch.autograd.grad(formula(*leaves), leaves, weight)
    for one, other in zip(ours, plain, strict=True):
        assert_within(one, other, of_factor(leaves[1]), most=1e-8)
    small = leaves_of(problem(n, m, samples=2, shared=shared))
    assert torch.autograd.gradcheck(enforce_affine, small, check_batched_grad=True)


@EVERY_SHAPE
@pytest.mark.parametrize("shared", [False, True])
def test_second_derivatives(n, m, shared):
    n, m = {(10, 5): (5, 3), (12, 12): (9, 9), (20, 12): (10, 9)}.get((n, m), (n, m))  # the same paths, faster
    leaves = leaves_of(problem(n, m, samples=2, shared=shared))
    assert torch.autograd.gradgradcheck(enforce_affine, leaves, fast_mode=n > 5)


def test_gradients_of_shared_bounds_and_of_a_factor():
    raw, A, _, upper = problem(6, 3, shared=True)
    factor, bound = factorize(A), upper[0].clone().requires_grad_()
    raw = raw.requires_grad_()
    enforce = lambda raw, bound: enforce_affine(raw, A, bound - 1, bound, factor=factor)
    assert torch.autograd.gradcheck(enforce, (raw, bound))
    assert torch.autograd.gradgradcheck(enforce, (raw, bound))


@EVERY_SHAPE
def test_only_what_is_asked_for(n, m):
    numbers = problem(n, m)
    for wanted in range(4):
        given = [part.clone().requires_grad_(index == wanted) for index, part in enumerate(numbers)]
        all_leaves = leaves_of(numbers)
        (alone,) = torch.autograd.grad(enforce_affine(*given).sum(), given[wanted])
        together = torch.autograd.grad(enforce_affine(*all_leaves).sum(), all_leaves)[wanted]
        torch.testing.assert_close(alone, together)


@EVERY_SHAPE
def test_gradients_on_badly_conditioned_rows(n, m):
    raw, A, lower, upper = problem(n, m, samples=8)
    if m > 1:
        A[:, -1] = A[:, 0] + 1e-5 * A[:, -1]
        upper[:, -1] = upper[:, 0]
        lower = upper - 1
    leaves = leaves_of((raw, A, lower, upper))
    ours = torch.autograd.grad(enforce_affine(*leaves).sum(), leaves)
    by_qr = formula_gradients(torch.ones_like(raw), raw, A, lower, upper)
    for one, other in zip(ours, by_qr, strict=True):
        assert (one - other).abs().max() <= 1e-7 * other.abs().max()


@EVERY_SHAPE
def test_vmap_is_the_batch(n, m):
    raw, A, lower, upper = problem(n, m, samples=6)
    y = enforce_affine(raw, A, lower, upper)
    torch.testing.assert_close(vmap(enforce_affine)(raw, A, lower, upper), y, rtol=1e-13, atol=1e-13)
    moved = vmap(enforce_affine, in_dims=(1, 2, 0, 0), out_dims=1)(raw.mT, A.permute(1, 2, 0), lower, upper)
    torch.testing.assert_close(moved.mT, y, rtol=1e-13, atol=1e-13)
    shared = vmap(enforce_affine, in_dims=(0, None, 0, 0))(raw, A[0], lower, upper)
    torch.testing.assert_close(shared, enforce_affine(raw, A[0], lower, upper), rtol=1e-10, atol=1e-10)
    blocks = vmap(enforce_affine, in_dims=(None, 0, 0, 0))(raw, A, lower, upper)  # every raw in every set
    torch.testing.assert_close(blocks.diagonal(dim1=0, dim2=1).mT, y, rtol=1e-10, atol=1e-10)
    nested = vmap(vmap(enforce_affine))(*(part.unflatten(0, (2, 3)) for part in (raw, A, lower, upper)))
    torch.testing.assert_close(nested.flatten(0, 1), y, rtol=1e-13, atol=1e-13)


@EVERY_SHAPE
@pytest.mark.parametrize("shared", [False, True])
def test_gradients_per_sample(n, m, shared):
    numbers = problem(n, m, samples=5, shared=shared)
    loss = lambda *parts: enforce_affine(*parts).square().sum()
    leaves = leaves_of(numbers)
    expected = torch.autograd.grad(loss(*leaves), leaves)
    mapped = vmap(grad(loss, argnums=(0, 1, 2, 3)), in_dims=(0, None if shared else 0, 0, 0))(*numbers)
    for index, (one, other) in enumerate(zip(mapped, expected, strict=True)):
        got = one.sum(0) if shared and index == 1 else one
        assert_within(got, other, of_factor(numbers[1]), most=1e-8)


def test_jacobian_and_hessian():
    raw, A, lower, upper = problem(4, 2, samples=3)
    jacobian = vmap(jacrev(enforce_affine))(raw, A, lower, upper)
    violated = (formula(raw, A, lower, upper) != raw).any(-1)
    assert violated.any()
    torch.testing.assert_close(jacobian @ jacobian, jacobian)  # idempotent
    loss = lambda A: enforce_affine(raw[0], A, lower[0], upper[0]).square().sum()
    plain = lambda A: formula(raw[0], A, lower[0], upper[0]).square().sum()
    second = jacrev(jacrev(loss))(A[0])
    assert_within(second, hessian(plain)(A[0]), of_factor(A[0], 3), most=1e-8)


@pytest.mark.parametrize(("n", "m"), [(3, 1), (2, 2), (5, 3), (9, 9), (12, 9)])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiles_as_one_graph(n, m, backend):
    torch._dynamo.reset()
    numbers = problem(n, m)
    numbers[1][1, -1] = numbers[1][1, 0] if m > 1 else 0.0
    numbers[2][2, 0] = numbers[3][2, 0] + 1
    numbers[0][3, 0] = torch.nan
    leaves = leaves_of(numbers)
    compiled = torch.compile(enforce_affine, fullgraph=True, backend=backend)
    y = compiled(*leaves)
    expected = enforce_affine(*leaves, on_invalid="nan")
    assert y[1:4].isnan().all()
    assert y[4:].isfinite().all()
    torch.testing.assert_close(y, expected, equal_nan=True, rtol=1e-10, atol=1e-10)
    weight = torch.ones_like(y)
    weight[1:4] = 0
    pairs = zip(torch.autograd.grad(y, leaves, weight), torch.autograd.grad(expected, leaves, weight), strict=True)
    for one, other in pairs:
        assert_within(one[4:], other[4:], of_factor(leaves[1][4:]), most=1e-8)


def test_exports():
    class Enforce(torch.nn.Module):
        def forward(self, raw, A, lower, upper):
            return enforce_affine(raw, A, lower, upper)

    for n, m in ((5, 3), (12, 9)):
        numbers = tuple(problem(n, m))
        program = torch.export.export(Enforce(), numbers)
        torch.testing.assert_close(program.module()(*numbers), enforce_affine(*numbers))


def test_compiled_float32_on_badly_conditioned_rows_is_right_or_nan():
    torch._dynamo.reset()
    compiled = torch.compile(enforce_affine, fullgraph=True, backend="aot_eager")
    for condition in (1e3, 1e5, 1e7, 1e12):
        source = torch.Generator().manual_seed(0)
        A = matrices(20, 10, condition, 50, source).float()
        raw, upper = (torch.randn(50, k, generator=source) for k in (20, 10))
        y = compiled(raw, A, upper - 1, upper)
        good = y.isfinite().all(-1)
        assert good.all() or condition > 1e4
        if good.any():
            assert relative_violation(y[good], A[good], upper[good] - 1, upper[good]) < 1e-4


@EVERY_SHAPE
@pytest.mark.parametrize("shared", [False, True])
def test_forward_mode(n, m, shared):
    leaves = leaves_of(problem(n, m, samples=2, shared=shared))
    options = {"check_forward_ad": True, "check_backward_ad": False, "fast_mode": n > 5}
    assert torch.autograd.gradcheck(enforce_affine, leaves, **options)


@pytest.mark.parametrize(("n", "m"), [(3, 1), (4, 2), (4, 3)])
@pytest.mark.parametrize("shared", [False, True])
def test_second_derivatives_in_every_order_of_modes(n, m, shared):
    raw, A, lower, upper = problem(n, m, samples=2, shared=shared)
    loss = lambda A: enforce_affine(raw, A, lower, upper).square().sum()
    expected = torch.autograd.functional.hessian(loss, A)
    for outer in (jacfwd, jacrev):
        for inner in (jacfwd, jacrev):
            assert_within(outer(inner(loss))(A), expected, of_factor(A, 3), most=1e-9)


def test_forward_mode_answers_dependent_rows_with_nan():
    raw, A, lower, upper = problem(4, 2, samples=3)
    A[1, 1] = 2 * A[1, 0]
    y, change = jvp(lambda raw: enforce_affine(raw, A, lower, upper, on_invalid="nan"), (raw,), (raw,))
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()
    assert change[[0, 2]].isfinite().all()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("m", "n"), [(2, 3), (5, 22), (8, 11), (12, 30)])
def test_samples_that_the_kernel_gave_up_have_the_gradients_of_the_formulas(m, n, shared):
    """Nearly dependent rows: y comes from a second attempt in float64, and so must its gradients for raw and A.

    Both factorize A again, so they differ by its condition number times roundings of the largest gradient.
    """
    answered = 0
    for seed, angle in enumerate([1e-3, 1e-8, 1e-9, 1e-10, 1e-11]):
        A = draw(m, n, seed=seed) if shared else draw(6, m, n, seed=seed)
        A[..., 1, :] = A[..., 0, :] + angle * A[..., 1, :]
        raw, weight = 3 * draw(6, n, seed=seed + 10), draw(6, n, seed=seed + 20)
        numbers = [part.requires_grad_() for part in (raw, A)]
        try:
            y = enforce_affine(raw, A, lower=-0.1, upper=0.1)
        except RankError:
            continue
        answered += 1
        once = torch.autograd.grad(y, numbers, weight, retain_graph=True)
        twice = torch.autograd.grad(y, numbers, weight, create_graph=True)  # by the formulas
        for found, expected in zip(once, twice, strict=True):
            assert found.isfinite().all()
            assert (found - expected).abs().max() <= 1e3 * torch.finfo(A.dtype).eps / angle * expected.abs().max()
    assert answered >= 3
