"""The differentiable projection onto a box and a few rows."""

import warnings
from fractions import Fraction

import pytest
import torch

import hardnet as hn
from hardnet.errors import (
    BoundsError,
    InfeasibleError,
    NonFiniteError,
    NotConvergedWarning,
    OptionError,
    ShapeError,
)
from hardnet.functional import project_affine, project_box_rows, rounding_bound, solve_rows
from hardnet.kernels.cpu import launch
from hardnet.solvers import Status
from hardnet.structure import BoxedRows
from tests.draws import draw
from tests.solvers.box_families import KINDS, D, box_family, dense_rows


def joined(raw, A, lower, width, low, high):
    """The projection with ``upper = lower + width``, so that equalities stay equalities when a bound is moved."""
    return project_box_rows(raw, A, lower, lower + width, low, high)


def numbers(kind, batch, k, n, seed=0):
    raw, A, lower, upper, low, high = box_family(kind, batch, k, n, seed)
    return [part.clone().requires_grad_() for part in (raw, A, lower, upper - lower, low, high)]


@pytest.mark.parametrize("k", [1, 3])
def test_gradients_to_all_six_of_first_and_second_order(k):
    inputs = numbers("plain", 2, k, 4)
    width = inputs[3].detach()
    inputs[3] = width.masked_fill(width == 0, 0).requires_grad_(False)
    assert torch.autograd.gradcheck(joined, inputs)
    assert torch.autograd.gradgradcheck(joined, inputs, fast_mode=True)


@pytest.mark.parametrize("kind", ["plain", "fixed", "infinite"])
def test_gradients_are_those_of_dense_rows(kind):
    raw, A, lower, upper, low, high = (part.requires_grad_() for part in box_family(kind, 20, 2, 6))
    weight = torch.randn(20, 6, generator=torch.Generator().manual_seed(1), dtype=D)
    inputs = (raw, A, lower, upper, low, high)
    own = torch.autograd.grad((project_box_rows(*inputs) * weight).sum(), inputs)
    dense = project_affine(raw, *dense_rows(A, lower, upper, low, high))
    for mine, theirs in zip(own, torch.autograd.grad((dense * weight).sum(), inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("k", [1, 3])
def test_torch_func_agrees_with_autograd(k):
    inputs = box_family("plain", 4, k, 5)
    weight = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=D)
    tracked = [part.clone().requires_grad_() for part in inputs]
    for option in ("exact", "tangent"):
        call = lambda *args: project_box_rows(*args, gradient=option)  # noqa: B023
        own = torch.autograd.grad((call(*tracked) * weight).sum(), tracked)
        for mine, theirs in zip(own, torch.func.vjp(call, *inputs)[1](weight), strict=True):
            torch.testing.assert_close(mine, theirs)
    y = project_box_rows(*inputs)
    torch.testing.assert_close(torch.vmap(project_box_rows)(*inputs), y)
    of_raw = lambda raw: project_box_rows(raw, *inputs[1:])
    torch.testing.assert_close(torch.func.jacrev(of_raw)(inputs[0]), torch.func.jacfwd(of_raw)(inputs[0]))
    curved = torch.func.hessian(lambda A: project_box_rows(inputs[0], A, *inputs[2:]).square().sum())(inputs[1])
    torch.testing.assert_close(curved, torch.autograd.functional.hessian(
        lambda A: project_box_rows(inputs[0], A, *inputs[2:]).square().sum(), inputs[1]))  # fmt: skip


def test_tangent_gradient_is_the_steepest_descent_that_stays_inside():
    raw = torch.tensor([[2.0, 0.5, 0.5]], dtype=D, requires_grad=True)
    A, total = torch.ones(1, 3, dtype=D), torch.tensor([1.5], dtype=D)
    call = lambda option: project_box_rows(raw, A, upper=total, box_lower=0.0, box_upper=1.0, gradient=option)
    for weight, wanted in ((1.0, 1.0), (-1.0, 0.0)):
        (exact,) = torch.autograd.grad(call("exact")[0, 0] * weight, raw)
        (tangent,) = torch.autograd.grad(call("tangent")[0, 0] * weight, raw)
        assert exact[0, 0] == 0
        assert tangent[0, 0] == wanted


def test_exported_with_a_dynamic_batch():
    raw, A, lower, upper, low, high = box_family("plain", 6, 1, 4, seed=2)
    own = A[0], lower[0], upper[0], low[0], high[0]

    class Layer(torch.nn.Module):
        def forward(self, raw):
            return project_box_rows(raw, *own)

    program = torch.export.export(Layer(), (raw,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(program.module()(raw[:3]), Layer()(raw[:3]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("k", [1, 2])
def test_certificate_on_many_samples(dtype, k):
    n, source = 8, torch.Generator().manual_seed(0)
    A = torch.randn(k, n, generator=source, dtype=D).to(dtype)
    bounds = A.float().abs().sum(-1).to(dtype) / 8
    rows = hn.Affine(A, lower=-bounds, upper=bounds / 2) & hn.Box(
        torch.full((n,), -1.0).to(dtype), torch.ones(n).to(dtype)
    )
    raw = (3 * torch.randn(100_000 if k == 1 else 1000, n, generator=source)).to(dtype)
    y = project_box_rows(raw, A, -bounds, bounds / 2, -1.0, 1.0)
    assert y.dtype == dtype
    assert bool((y.abs() <= 1).all())
    assert hn.check(rows, y).ok


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_strict_rows_hold_in_exact_arithmetic(dtype):
    raw, A, lower, upper, low, high = (part.to(dtype) for part in box_family("plain", 40, 2, 5))
    upper = torch.where(lower == upper, upper + 0.5, upper)
    y = project_box_rows(raw, A, lower, upper, low, high, strict=True)
    assert bool(((y >= low) & (y <= high)).all())
    exact = lambda tensor: [[Fraction(value) for value in row] for row in tensor.double().tolist()]
    for sample in range(40):
        point = exact(y[sample : sample + 1])[0]
        for row, least, most in zip(exact(A[sample]), lower[sample].tolist(), upper[sample].tolist(), strict=True):
            assert Fraction(least) <= sum(a * v for a, v in zip(row, point, strict=True)) <= Fraction(most)
    shared = project_box_rows(raw, A[0], upper=1.0, box_lower=-2.0, strict=True)
    assert bool((rounding_bound(A[0], shared, upper=1.0) == 0).all())
    with pytest.raises(OptionError, match="strict"):
        project_box_rows(raw.bfloat16(), A.bfloat16(), upper=1.0, strict=True)


@pytest.mark.parametrize("kind", KINDS)
def test_eager_calls_leave_nothing_open(kind):
    raw, A, lower, upper, low, high = box_family(kind, 40, 4, 6, seed=5)
    y = project_box_rows(raw, A, lower, upper, low, high)
    assert bool(y.isfinite().all())
    assert bool(((y >= low) & (y <= high)).all())


def test_errors_and_policies():
    raw, A, lower, upper, low, high = box_family("plain", 5, 2, 4)
    shifted = lower.clone(), upper.clone()
    shifted[0][2, 1], shifted[1][2, 1] = 50.0, 60.0
    with pytest.raises(InfeasibleError, match="box and rows 1 contradict") as caught:
        project_box_rows(raw, A, *shifted, low, high)
    assert caught.value.samples == [2]
    assert caught.value.rows == [[1]]
    y = project_box_rows(raw, A, *shifted, low, high, on_infeasible="nan")
    assert y.isnan().any(-1).tolist() == [False, False, True, False, False]
    near = project_box_rows(raw, A, *shifted, low, high, on_infeasible="nearest")
    dense = project_affine(raw, *dense_rows(A, *shifted, low, high), on_infeasible="nearest")
    torch.testing.assert_close(near, dense)
    mapped = torch.vmap(lambda *args: project_box_rows(*args))(raw, A, *shifted, low, high)
    assert torch.equal(mapped.isnan(), y.isnan())
    with pytest.raises(OptionError, match="on_infeasible"):
        torch.vmap(lambda raw: project_box_rows(raw, A[0], lower[0], None, low[0], on_infeasible="raise"))(raw)
    with pytest.raises(OptionError, match="gradient"):
        project_box_rows(raw, A, lower, gradient="other")
    with pytest.raises(BoundsError, match="box_lower"):
        project_box_rows(raw, A, lower, upper, high + 1, high)
    with pytest.raises(NonFiniteError, match="raw"):
        project_box_rows(raw * torch.nan, A, lower, upper, low, high)
    many = project_box_rows(raw, A.repeat(1, 5, 1), box_lower=0.0)  # every row five times, without bounds
    assert torch.equal(many, raw.clamp_min(0.0))
    with pytest.raises(ShapeError, match="box_lower"):
        project_box_rows(raw, A, lower, upper, low[:, :2])


def test_a_wide_box_beside_many_rows_has_the_same_answer_without_a_kernel(monkeypatch):
    source, groups = torch.Generator().manual_seed(0), 18
    sums = torch.cat([-torch.eye(groups), torch.kron(torch.eye(groups), torch.ones(1, 9))], 1).to(D)
    raw = torch.randn(8, 10 * groups, generator=source, dtype=D)
    compiled = project_box_rows(raw, sums, 0.0, 0.0, box_lower=0.0)
    monkeypatch.setattr(launch, "HAS_NUMBA", False)
    y = project_box_rows(raw, sums, 0.0, 0.0, box_lower=0.0)
    torch.testing.assert_close(y, compiled, rtol=0, atol=1e-12)
    assert bool((y >= 0).all())


def test_rows_of_zeros_that_hold_change_no_gradient():
    raw, A, lower, upper, low, high = box_family("plain", 6, 3, 5)
    equal = torch.where(torch.arange(3) == 0, lower, upper), upper
    padded = [torch.cat([part, torch.zeros_like(part[:, :1])], 1) for part in (A, *equal)]
    grads = []
    for rows in ((A, *equal), padded):
        leaf = raw.clone().requires_grad_()
        y = project_box_rows(leaf, *rows, low, high)
        grads.append(torch.autograd.grad(y.square().sum(), leaf)[0])
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-12, atol=1e-12)


def test_samples_without_an_answer_have_zero_gradients():
    raw, A, lower, upper, low, high = (part.clone() for part in box_family("plain", 4, 1, 4))
    raw[1, 0] = torch.nan
    inputs = [part.requires_grad_() for part in (raw, A, lower, upper, low, high)]
    y = project_box_rows(*inputs, on_invalid="nan")
    grads = torch.autograd.grad(y[[0, 2, 3]].sum() + 0 * y[1].nan_to_num().sum(), inputs)
    assert all(bool(grad.isfinite().all()) and bool((grad[1] == 0).all()) for grad in grads)


def test_a_point_that_float16_cannot_hold_is_an_error_and_a_box_from_zero_gives_no_negative_number():
    raw, A = torch.zeros(2, 3, dtype=torch.float16), torch.full((1, 3), 1e-3, dtype=torch.float16)
    with pytest.raises(NonFiniteError, match=r"range of torch\.float16.* in samples 0, 1"):
        project_box_rows(raw, A, lower=1000.0)
    y = project_box_rows(torch.randn(4096, 20, generator=torch.Generator().manual_seed(0), dtype=D),
                         torch.ones(1, 20, dtype=D), 1.0, 1.0, 0.0)  # fmt: skip
    assert bool((y >= 0).all())
    assert bool(y.sqrt().isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("k", [2, 3])
def test_nearly_dependent_equalities_hold_or_are_not_answered(dtype, k):
    """With a condition number of 1e8 to 1e13, the rounding of multipliers may violate rows: such samples are NaN."""
    source = torch.Generator().manual_seed(k)
    normal = lambda *shape: torch.randn(*shape, generator=source, dtype=D)
    answered = 0
    for power in range(8, 14):
        for reach, n in ((1.0, 18), (1e3, 4)):
            A, inside = normal(k, n), normal(n).to(dtype)
            A[1] = A[0] + 10.0**-power * A[1]
            A, low, high = A.to(dtype), inside - normal(n).abs().to(dtype), inside + normal(n).abs().to(dtype)
            value = (A.double() @ inside.double()).to(dtype)
            raw = (inside + reach * normal(40, n)).to(dtype)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotConvergedWarning)
                try:
                    y = project_box_rows(raw, A, value, value, low, high, on_unsolved="nan")
                except InfeasibleError:  # in float32, rounded bounds of dependent rows may contradict each other
                    assert dtype == torch.float32
                    continue
            found = ~y.isnan().any(-1)
            answered += int(found.sum())
            assert hn.check(hn.Box(low, high) & hn.Equality(A, value), y[found]).ok
    assert answered > 100


def test_a_point_of_nearly_parallel_equalities_is_nearest_or_said_not_to_be_proved():
    """Two equalities at an angle of 1e-12: y satisfies them, and its status says whether it is proved nearest."""
    source = torch.Generator().manual_seed(0)
    normal = lambda *shape: torch.randn(*shape, generator=source, dtype=torch.float64)
    inside, a = normal(300, 7), normal(300, 1, 7)
    A = torch.cat([a, a + 1e-12 * normal(300, 1, 7)], -2)
    value, raw = (A * inside.unsqueeze(-2)).sum(-1), inside + 100 * normal(300, 7)
    box = inside - normal(300, 7).abs(), inside + normal(300, 7).abs()
    found = solve_rows(raw, BoxedRows(A, value, value, *box))
    doubted = found.status == int(Status.FEASIBLE)
    assert (doubted | (found.status == int(Status.SOLVED))).all()
    assert hn.check(hn.Box(*box) & hn.Equality(A, value), found.y).ok
    if doubted.any():
        with pytest.warns(NotConvergedWarning, match="could not be proved to be the nearest"):
            project_box_rows(raw[doubted], A[doubted], value[doubted], value[doubted], *(side[doubted] for side in box))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotConvergedWarning)
        project_box_rows(raw, a, value[:, :1], value[:, :1], *box)


@pytest.mark.parametrize("exponent", [-1000, 1000, 1022])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("compiled", [True, False])
def test_the_unit_of_rows_changes_neither_y_nor_its_gradient(k, exponent, compiled, monkeypatch):
    """Rows up to the largest number: their unit is a power of two, and one above it would be infinite."""
    if not compiled:
        monkeypatch.setattr(launch.BoxRows, "takes", lambda self, rows: False)
    raw, A, lower, upper, low, high = box_family("plain", 20, k, 4)
    size = A.abs().amax((-1, -2), keepdim=True) / 3.9  # the largest entry is 3.9, which 2^1022 times is still a number
    A, lower, upper = A / size, lower / size.squeeze(-1), upper / size.squeeze(-1)
    raw, lower, upper, low, high = (part / 128 for part in (raw, lower, upper, low, high))  # and so are the bounds
    weight = torch.linspace(-1, 1, 4, dtype=D)
    found = []
    for unit in (1.0, 2.0**exponent):
        at = raw.clone().requires_grad_()
        y = project_box_rows(at, A * unit, lower * unit, upper * unit, low, high)
        found.append((y.detach(), *torch.autograd.grad((y * weight).sum(), at)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=64 * torch.finfo(D).eps)


@pytest.mark.parametrize("size", [1.0, 1e6])
def test_a_row_that_reads_small_outputs_holds_by_these_alone(size):
    """Beside outputs of another unit that the row does not read: by every program, and as the certificate judges."""
    n = 8
    A = torch.zeros(1, n, dtype=torch.float64)
    A[0, :2] = torch.tensor([-0.3, 0.7])
    constraint = hn.Box(-torch.inf, torch.full((n,), 2e6, dtype=torch.float64)) & hn.Affine(A, lower=0.1, upper=0.2)
    raw = draw(64, n, seed=3) * size
    raw[:, :2] = draw(64, 2, seed=4) * 1e3
    layer = hn.layers.Projection(constraint)
    for y in (layer(raw), torch.func.vmap(layer)(raw)):
        certificate = hn.check(constraint, y)
        assert certificate.ok, certificate
