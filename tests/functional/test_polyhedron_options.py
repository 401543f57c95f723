"""Options of the projection: metric, tangent gradient and strict rows."""

from fractions import Fraction

import pytest
import torch
from torch.autograd import gradcheck

from hardnet.errors import OptionError, ShapeError
from hardnet.functional import project_affine
from tests.draws import draw
from tests.solvers.families import F64, gaussian, product


def spd(*batch, n, seed=0):
    root = draw(*batch, n, n, seed=seed)
    return root @ root.mT + 0.5 * torch.eye(n, dtype=F64)


@pytest.mark.parametrize("shared", [True, False])
def test_a_metric_is_optimal_in_its_own_inner_product(shared):
    """``W (y - raw)`` is a combination of the active rows, and y is feasible."""
    raw, A, lower, upper = gaussian(16, 4, 6)
    W = spd(n=4) if shared else spd(16, n=4)
    y = project_affine(raw, A, lower, upper, metric=W)
    value = product(A, y)
    slack = 1e-10
    assert (value <= upper + slack).all()
    assert (value >= lower - slack).all()
    pull = product(W, y - raw)
    for i in range(16):
        active = (value[i] > upper[i] - slack) | (value[i] < lower[i] + slack)
        rows = A[i][active]
        rest = pull[i] - rows.mT @ (torch.linalg.pinv(rows.mT) @ pull[i]) if active.any() else pull[i]
        assert rest.abs().max() <= 1e-9 * (1 + pull[i].abs().max())


def test_a_diagonal_is_the_matrix_of_its_numbers_and_one_is_the_identity():
    raw, A, lower, upper = gaussian(8, 5, 4)
    d = draw(5, seed=3).abs() + 0.1
    diagonal = project_affine(raw, A, lower, upper, metric=d)
    assert torch.allclose(diagonal, project_affine(raw, A, lower, upper, metric=torch.diag(d)), rtol=0, atol=1e-10)
    each = project_affine(raw, A, lower, upper, metric=d.expand(8, 5))
    assert torch.allclose(diagonal, each, rtol=0, atol=1e-12)
    plain = project_affine(raw, A, lower, upper)
    assert torch.allclose(
        project_affine(raw, A, lower, upper, metric=torch.ones(5, dtype=F64)), plain, rtol=0, atol=1e-12
    )
    assert torch.equal(project_affine(plain, A, lower - 1e-9, upper + 1e-9, metric=d), plain)


def test_gradients_reach_the_metric():
    raw, A, lower, upper = gaussian(2, 3, 4)
    d = (draw(3, seed=3).abs() + 0.5).requires_grad_()
    assert gradcheck(lambda d: project_affine(raw, A, lower, upper, metric=d), [d])
    root = draw(3, 3, seed=4).requires_grad_()
    matrix = lambda root: root @ root.mT + torch.eye(3, dtype=F64)
    assert gradcheck(lambda root: project_affine(raw, A, lower, upper, metric=matrix(root)), [root])


def test_a_metric_that_is_none_is_refused():
    raw, A, lower, upper = gaussian(2, 3, 4)
    with pytest.raises(OptionError, match="metric: expected positive"):
        project_affine(raw, A, lower, upper, metric=torch.tensor([1.0, 0.0, 1.0], dtype=F64))
    with pytest.raises(OptionError, match="metric: expected positive"):
        project_affine(raw, A, lower, upper, metric=-torch.eye(3, dtype=F64))
    with pytest.raises(ShapeError, match="metric: expected shape"):
        project_affine(raw, A, lower, upper, metric=torch.ones(4, dtype=F64))


def test_the_tangent_gradient_pulls_back_and_drops_what_pushes_out():
    """A box: raw above its bound receives only cotangents that lower it; coordinates inside receive all."""
    raw = torch.tensor([[3.0, 3.0, 0.5, -4.0, -4.0]], dtype=F64, requires_grad=True)
    weight = torch.tensor([[1.0, -1.0, 2.0, 1.0, -1.0]], dtype=F64)
    y = project_affine(raw, torch.eye(5, dtype=F64), -1.0, 1.0, gradient="tangent")
    (y * weight).sum().backward()
    assert torch.allclose(raw.grad, torch.tensor([[1.0, 0.0, 2.0, 0.0, -1.0]], dtype=F64), rtol=0, atol=1e-12)
    assert torch.equal(y, raw.detach().clamp(-1, 1))


def test_the_tangent_gradient_leaves_equalities_and_other_numbers_alone():
    A = torch.ones(1, 3, dtype=F64)
    grads = []
    for gradient in ("exact", "tangent"):
        raw, total = torch.tensor([[1.0, 2.0, 3.0]], dtype=F64, requires_grad=True), torch.ones(1, dtype=F64)
        y = project_affine(raw, A, total, total, gradient=gradient)
        grads.append(torch.autograd.grad((y * torch.tensor([1.0, 5.0, 2.0], dtype=F64)).sum(), raw)[0])
    assert torch.equal(*grads)


def holds(A, y, lower, upper):
    """Whether every inequality holds in rational arithmetic."""
    for row, low, high in zip(A.tolist(), lower.tolist(), upper.tolist(), strict=True):
        value = sum(Fraction(a) * Fraction(b) for a, b in zip(row, y.tolist(), strict=True))
        if (low > -torch.inf and value < Fraction(low)) or (high < torch.inf and value > Fraction(high)):
            return False
    return True


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("shared", [True, False])
def test_strict_rows_hold_in_exact_arithmetic(dtype, shared):
    raw, A, lower, upper = (part.to(dtype) for part in gaussian(32, 5, 9, shared=shared, seed=7))
    plain = project_affine(raw, A, lower, upper)
    y = project_affine(raw, A, lower, upper, strict=True)
    own = [A] * 32 if shared else A
    assert not all(holds(own[i], plain[i], lower[i], upper[i]) for i in range(32))
    assert all(holds(own[i], y[i], lower[i], upper[i]) for i in range(32))
    assert (y - plain).abs().max() <= 1e7 * torch.finfo(dtype).eps


def test_strict_keeps_the_gradient_and_refuses_half_types():
    numbers = [part.requires_grad_() for part in gaussian(4, 5, 7)]
    one = torch.autograd.grad(project_affine(*numbers).square().sum(), numbers[0])[0]
    two = torch.autograd.grad(project_affine(*numbers, strict=True).square().sum(), numbers[0])[0]
    assert torch.allclose(one, two, rtol=0, atol=1e-9)
    with pytest.raises(OptionError, match="strict: expected float64 or float32 outputs"):
        project_affine(*(part.detach().bfloat16() for part in numbers), strict=True)


def test_outputs_beyond_the_range_of_a_half_type_are_an_error():
    from hardnet.errors import NonFiniteError

    raw, A = torch.tensor([[0.0, 0.0]], dtype=torch.float16), torch.tensor([[1e-3, 0.0]], dtype=torch.float16)
    with pytest.raises(NonFiniteError, match="range of"):
        project_affine(raw, A, lower=torch.tensor([1e3], dtype=torch.float16))


@pytest.mark.parametrize("option", [{"strict": True}, {"metric": torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=F64)}])
def test_an_error_that_is_asked_for_reads_no_value_in_mapped_code(option):
    """``on_infeasible="raise"`` allows the solver of eager code to wait, not what records or transforms operations."""
    raw, A, lower, upper = gaussian(4, 5, 7, shared=True)
    expected = project_affine(raw, A, lower, upper, on_infeasible="raise", **option)
    mapped = torch.func.vmap(lambda raw, low, high: project_affine(raw, A, low, high, on_infeasible="raise", **option))
    torch.testing.assert_close(mapped(raw, lower, upper), expected, rtol=1e-9, atol=1e-9)
