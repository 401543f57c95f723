"""Cvxpy: anything DPP, compiled once, a failed sample named."""

import copy

import pytest
import torch

from hardnet import check, sets
from hardnet.errors import (
    ConvergenceError,
    InfeasibleError,
    MissingExtraError,
    NonFiniteError,
    ShapeError,
    UnsupportedSetError,
)
from hardnet.layers import HardNetCvx
from tests.draws import draw
from tests.solvers.convex import D

cp = pytest.importorskip("cvxpy")
pytest.importorskip("cvxpylayers")

A = draw(2, 3, seed=1)


def build(y, b, A):
    return [A @ y <= b, cp.norm(y) <= 1]


def bound(x):
    return x


@pytest.fixture(scope="module")
def constraint():
    return sets.Cvxpy(build, 3, {"b": (bound, (2,)), "A": A})


NATIVE = sets.Affine(A, upper=bound) & sets.Ball(torch.zeros(3, dtype=D), 1.0)


def project(constraint, raw, x, **options):
    return constraint.project(constraint.numbers(x, raw), raw, **options)


def data():
    return (2 * draw(5, 3, seed=2)).requires_grad_(), (0.2 + draw(5, 2, seed=3).abs()).requires_grad_()


def test_agrees_with_the_native_set_in_value_and_gradient(constraint):
    raw, x = data()
    ours, theirs = project(NATIVE, raw, x), project(constraint, raw, x)
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)
    weight = draw(5, 3, seed=4)
    for a, b in zip(*(torch.autograd.grad((y * weight).sum(), (raw, x)) for y in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
    assert check(constraint, theirs, x, tolerance=1e-6).ok
    assert not check(constraint, 2 + theirs, x, tolerance=1e-6).ok


def test_inside_is_kept_bit_for_bit_and_dtypes_come_back(constraint):
    raw, x = data()
    inside = (0.01 * raw.detach()).requires_grad_()
    y = project(constraint, inside, x)
    assert torch.equal(y, inside)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), inside)[0], torch.ones_like(inside))
    single = copy.deepcopy(constraint).float()
    with torch.no_grad():
        assert project(single, raw.float(), x.float()).dtype == torch.float32


def test_batches_of_any_shape(constraint):
    raw, x = (tensor.detach() for tensor in data())
    flat = project(constraint, raw[:4], x[:4])
    assert torch.equal(project(constraint, raw[:4].reshape(2, 2, 3), x[:4].reshape(2, 2, 2)).reshape(4, 3), flat)
    torch.testing.assert_close(project(constraint, raw[0], x[0]), flat[0], atol=1e-7, rtol=0)
    assert project(constraint, raw[:0], x[:0]).shape == (0, 3)


def test_a_failed_sample_is_named_or_nan(constraint):
    raw, x = (tensor.detach() for tensor in data())
    x[3] = -50.0
    with pytest.raises(InfeasibleError, match="the cone solver found no point") as caught:
        project(constraint, raw, x)
    assert caught.value.samples == [3]
    y = project(constraint, raw, x, on_infeasible="nan")
    assert y.isnan().any(-1).tolist() == [False, False, False, True, False]
    raw[1, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="in sample 1"):
        project(constraint, raw, x)
    y = project(constraint, raw, x, on_infeasible="nan", on_invalid="nan")
    assert y.isnan().any(-1).tolist() == [False, True, False, True, False]


def test_an_intersection_with_a_program_is_refused(constraint):
    with pytest.raises(UnsupportedSetError, match=r"write all constraints as one hn\.Cvxpy"):
        HardNetCvx(constraint & sets.Ball(torch.zeros(3, dtype=D), 1.0))
    raw, x = (tensor.detach() for tensor in data())
    assert torch.equal(HardNetCvx(constraint)(raw, x), project(constraint, raw, x))


def test_copies_compile_again(constraint):
    raw, x = (tensor.detach() for tensor in data())
    twin = copy.deepcopy(constraint)
    assert torch.equal(project(twin, raw, x), project(constraint, raw, x))
    assert constraint.program is constraint.program


REFUSED = [
    (lambda y, b: [cp.norm(y) >= b], UnsupportedSetError, "a problem that is not convex"),
    (lambda y, b: [b * cp.exp(b) * y[0] <= 1], UnsupportedSetError, "convex but not DPP|not convex"),
    (lambda y, b: [y <= 1], UnsupportedSetError, "b in no constraint"),
    (lambda y, b: 3, UnsupportedSetError, "a function that returns CVXPY constraints, got int"),
]


@pytest.mark.parametrize(("rule", "error", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_refusals_at_construction(rule, error, message):
    with pytest.raises(error, match=message):
        sets.Cvxpy(rule, 3, {"b": (bound, ())})


def test_arguments_are_checked(constraint):
    with pytest.raises(ShapeError, match=r"pass parameters=\{'b': \(function, shape\)\}"):
        sets.Cvxpy(build, 3, {"b": bound})
    with pytest.raises(ShapeError, match="dim: expected a positive integer"):
        sets.Cvxpy(build, 0)
    with pytest.raises(ShapeError, match="build: expected a function"):
        sets.Cvxpy(3, 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ShapeError, match=r"raw: expected shape \(\*batch, 3\)"):
        constraint.numbers(draw(2, 2), draw(2, 4))
    with pytest.raises(ShapeError, match=r"parameters\['b'\]: expected shape \(2, 2\) for raw of batch"):
        constraint.numbers(draw(2, 3), draw(2, 3))


@pytest.mark.parametrize("package", ["cvxpy", "cvxpylayers.torch"])
def test_a_missing_package_names_its_extra(package, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"hardnet\[cvx\]"):
        sets.Cvxpy(build, 3, {"b": (bound, (2,)), "A": A})


def norm_ball(y):
    return [cp.norm1(y) <= 1]


def nearest_in_norm_ball(raw):
    """The projection onto ``sum |y_i| <= 1``: soft thresholding."""
    size = raw.abs().sort(-1, descending=True).values
    excess = size.cumsum(-1) - 1
    count = torch.arange(1, raw.shape[-1] + 1, dtype=D)
    active = (size - excess / count > 0).sum(-1, keepdim=True)
    return raw.sign() * (raw.abs() - excess.gather(-1, active - 1) / active).clamp_min(0)


@pytest.mark.parametrize("distance", [1e1, 1e4, 1e7])
def test_from_a_distance_the_answer_is_right(distance):
    raw = distance * (1 + draw(4, 3, seed=5).abs())
    y = project(sets.Cvxpy(norm_ball, 3), raw, None)
    # what the cone solver resolves: it stops at 1e-12 of |raw| or at the square root of its own tolerance
    torch.testing.assert_close(y, nearest_in_norm_ball(raw), rtol=0, atol=max(1e-5, 1e-11 * distance))


@pytest.mark.parametrize("distance", [1e12, 1e15])
def test_from_too_far_away_there_is_an_error_or_nan(distance):
    raw = distance * (1 + draw(4, 3, seed=5).abs())
    with pytest.raises(ConvergenceError, match="did not converge") as caught:
        project(sets.Cvxpy(norm_ball, 3), raw, None)
    assert caught.value.samples == [0, 1, 2, 3]
    assert caught.value.solution.status.tolist() == [2, 2, 2, 2]
    assert bool(project(sets.Cvxpy(norm_ball, 3), raw, None, on_unsolved="nan").isnan().all())


@pytest.mark.parametrize("order", [3, 4, 5, 7])
def test_matrix_inequalities_of_every_order_have_the_gradients_of_the_native_set(order):
    F = draw(3, order, order, seed=order)
    F = (F + F.mT) / 2

    def matrix(y, F0):
        return [F0 + sum(y[i] * F[i].numpy() for i in range(3)) >> 0]

    F0 = torch.eye(order, dtype=D, requires_grad=True)
    native, program = sets.LMI(lambda x: x, F), sets.Cvxpy(matrix, 3, {"F0": (lambda x: x, (order, order))})
    raw, weight = (6 * draw(3, 3, seed=9)).requires_grad_(), draw(3, 3, seed=8)
    x = F0.expand(3, order, order)
    ours, theirs = (project(one, raw, x) for one in (native, program))
    torch.testing.assert_close(theirs, ours, rtol=0, atol=2e-5)
    expected, found = (torch.autograd.grad((y * weight).sum(), (raw, F0)) for y in (ours, theirs))
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-4)
    torch.testing.assert_close((found[1] + found[1].mT) / 2, (expected[1] + expected[1].mT) / 2, rtol=0, atol=1e-4)
    direction, step = draw(3, 3, seed=7), 1e-6  # differences of the native set, whose values are exact to rounding
    moved = [(project(native, raw.detach() + sign * step * direction, x.detach()) * weight).sum() for sign in (1, -1)]
    slope = (moved[0] - moved[1]).item() / (2 * step)
    assert (found[0] * direction).sum().item() == pytest.approx(slope, rel=1e-4, abs=1e-4)
