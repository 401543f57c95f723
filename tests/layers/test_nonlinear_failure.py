"""Nonlinear rows that are not met: what fails and how it says so, per sample; wrong functions and options."""

import warnings

import pytest
import torch

import hardnet as hn
from hardnet.errors import (
    ConvergenceError,
    DTypeError,
    InfeasibleError,
    NonFiniteError,
    NotConvergedWarning,
    OptionError,
    ShapeError,
    UnsupportedSetError,
)
from hardnet.functional.nonlinear import project_nonlinear
from hardnet.layers import NonlinearLayer
from hardnet.solvers.nonlinear.solve import NonlinearStatus as Status
from tests.draws import draw
from tests.nonlinear_problems import (
    CIRCLE,
    F64,
    cusp,
    real,
    sphere,
)


@pytest.mark.parametrize("point", [[[3.0, 4.0]], [[0.0, 0.0]], [[1.1, 0.01]]])
def test_an_empty_set_is_refused_with_the_least_violation(point):
    both = hn.Nonlinear(lambda y, x: torch.cat([sphere(y, x), y[..., :1] - 2], dim=-1), dim=2, lower=0.0, upper=0.0)
    layer = NonlinearLayer(both)
    found = layer.solve(real(point))
    assert found.status.item() == Status.INFEASIBLE_LOCAL
    # the least squares point: 4 y1 (y1^2 - 1) + 2 (y1 - 2) = 0, y2 = 0
    torch.testing.assert_close(found.y, real([[1.16537, 0.0]]), rtol=0, atol=1e-3)
    with pytest.raises(InfeasibleError, match="in sample 0"):
        layer(real(point))


def test_rows_beside_an_affine_row_that_excludes_them():
    layer = NonlinearLayer(CIRCLE & hn.Equality(real([[1.0, 0.0]]), 2.0))
    assert layer.solve(real([[3.0, 4.0]])).status.item() == Status.INFEASIBLE_LOCAL
    with pytest.raises(InfeasibleError):
        layer(real([[3.0, 4.0]]))


def test_degenerate_points_are_reported_with_finite_gradients():
    raw = real([[0.0, 0.0], [3.0, 4.0]]).requires_grad_()
    layer = NonlinearLayer(CIRCLE)
    assert layer.solve(raw).status.tolist() == [Status.DEGENERATE, Status.OK]
    with pytest.warns(NotConvergedWarning, match="1 of 2 points"):
        y = layer(raw)
    y.sum().backward()
    assert raw.grad.isfinite().all()
    assert hn.check(CIRCLE, y).ok
    torch.testing.assert_close(raw.grad[1], real([0.032, -0.024]))


def test_a_cusp_is_never_ok():
    layer = NonlinearLayer(hn.Nonlinear(cusp, dim=2, lower=0.0, upper=0.0))
    found = layer.solve(real([[-1.0, 0.0], [2.0, 1.0]]))
    assert found.status[0] in (Status.DEGENERATE, Status.NOT_CONVERGED, Status.FEASIBLE_ONLY)
    assert found.status[1] == Status.OK
    torch.testing.assert_close(found.y[0], real([0.0, 0.0]), rtol=0, atol=1e-2)


def nothing(y, x):
    return y.square().sum(-1, keepdim=True) + x


def test_policies_touch_the_failed_samples_alone():
    constraint = hn.Nonlinear(nothing, dim=2, lower=0.0, upper=0.0)  # empty for x > 0
    x, raw = real([[-1.0], [1.0], [-4.0]]), real([[3.0, 4.0], [1.0, 2.0], [1.0, 1.0]])
    y = NonlinearLayer(constraint, on_infeasible="nan", on_unsolved="nan", on_invalid="nan")(raw, x)
    assert y[1].isnan().all()
    torch.testing.assert_close(y[0], real([0.6, 0.8]))
    alone = NonlinearLayer(constraint)(raw[[0, 2]], x[[0, 2]])
    best = NonlinearLayer(constraint, on_infeasible="nearest", on_unsolved="best")(raw, x)
    assert torch.equal(best[[0, 2]], y[[0, 2]])
    torch.testing.assert_close(best[1], real([0.0, 0.0]), rtol=0, atol=1e-3)
    torch.testing.assert_close(alone, y[[0, 2]])
    with pytest.raises((InfeasibleError, ConvergenceError), match="in sample 1") as error:
        NonlinearLayer(constraint)(raw, x)
    assert error.value.samples == [1]


TODAY = {
    "raise": {"on_infeasible": "raise", "on_unsolved": "raise"},
    "nan": {"on_infeasible": "nan", "on_unsolved": "nan", "on_invalid": "nan"},
    "best": {"on_infeasible": "nearest", "on_unsolved": "best", "on_invalid": "nan"},
}


def outcome(call, raw, x):
    """The answer and its gradient, or the error in words."""
    leaf = raw.clone().requires_grad_()
    try:
        y = call(leaf, x)
    except hn.errors.HardNetError as error:
        return str(error)
    return torch.stack([y.detach(), *torch.autograd.grad(y.nansum(), leaf)])


def alike(one, other):
    return one == other if isinstance(one, str) else torch.equal(one.nan_to_num(nan=1e9), other.nan_to_num(nan=1e9))


@pytest.mark.parametrize("bad", [1.0, torch.nan], ids=["empty", "invalid"])
@pytest.mark.parametrize("policy", [*TODAY, "raw"])
def test_the_word_of_version_0_2_gives_what_it_gave(policy, bad):
    constraint = hn.Nonlinear(nothing, dim=2, lower=0.0, upper=0.0)
    x, raw = real([[-1.0], [bad], [-4.0]]), real([[3.0, 4.0], [1.0, 2.0], [1.0, 1.0]])
    with pytest.warns(DeprecationWarning, match="on_failure"):
        layer = NonlinearLayer(constraint, on_failure=policy)
    found = outcome(layer, raw, x)
    with pytest.warns(DeprecationWarning, match="on_failure"):
        other = outcome(lambda r, x: project_nonlinear(r, nothing, x, lower=0, upper=0, on_failure=policy), raw, x)
    if policy == "raw":
        assert torch.equal(found[0, 1], raw[1])
        assert torch.equal(found[1, 1], torch.ones(2, dtype=F64))
    else:
        expected = outcome(NonlinearLayer(constraint, **TODAY[policy]), raw, x)
        assert alike(found, expected)
    assert alike(found, other)
    if policy == "best":
        assert found[0, 1].isnan().all() if bad != 1.0 else found[0, 1].isfinite().all()


@pytest.mark.parametrize("bad", [1.0, torch.nan], ids=["empty", "invalid"])
def test_an_error_names_its_policy(bad):
    constraint = hn.Nonlinear(nothing, dim=2, lower=0.0, upper=0.0)
    x, raw = real([[-1.0], [bad], [-4.0]]), real([[3.0, 4.0], [1.0, 2.0], [1.0, 1.0]])
    name = "on_invalid" if bad != 1.0 else "(on_infeasible|on_unsolved)"
    with pytest.raises(hn.errors.HardNetError, match=f"in sample 1; .*{name}='nan'"):
        NonlinearLayer(constraint)(raw, x)


def test_the_error_carries_the_solution_of_the_others():
    constraint = hn.Nonlinear(lambda y, x: y.square().sum(-1, keepdim=True), dim=2, lower=1.0, upper=1.0)
    raw = real([[1.0, 0.0], [30.0, 40.0], [0.0, -1.0]])
    layer = NonlinearLayer(constraint, iterations=1)
    assert layer.solve(raw).status.tolist() == [Status.OK, Status.NOT_CONVERGED, Status.OK]
    with pytest.raises(ConvergenceError, match=r"in sample 1; .*on_unsolved='nan'") as caught:
        layer(raw)
    found = caught.value.solution
    assert found.y[1].isnan().all()
    assert torch.equal(found.y[[0, 2]], raw[[0, 2]])
    best = NonlinearLayer(constraint, iterations=1, on_unsolved="best")(raw)
    assert best.isfinite().all()


def test_points_that_are_no_regular_nearest_ones_are_warned_of_once():
    layer, raw = NonlinearLayer(CIRCLE), torch.zeros(3, 2, dtype=F64)
    with pytest.warns(hn.errors.NotConvergedWarning, match="points satisfy their rows"):
        layer(raw)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(raw)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_numbers_are_those_of_their_sample(bad):
    constraint = hn.Nonlinear(nothing, dim=2, lower=0.0, upper=0.0)
    x, raw = -torch.ones(3, 1, dtype=F64), draw(3, 2)
    clean = NonlinearLayer(constraint)(raw, x)
    for number in (x, raw):
        spoilt = number.clone()
        spoilt[1, 0] = bad
        pair = (raw, spoilt) if number is x else (spoilt, x)
        y = NonlinearLayer(constraint, on_infeasible="nan", on_unsolved="nan", on_invalid="nan")(*pair)
        assert y[1].isnan().all()
        assert torch.equal(y[[0, 2]], clean[[0, 2]])
        with pytest.raises(NonFiniteError, match="in sample 1"):
            NonlinearLayer(constraint)(*pair)


def test_a_function_that_cannot_follow_float64_says_what_would_work():
    weight = torch.ones(1, 3)
    layer = NonlinearLayer(hn.Nonlinear(lambda y, x: y @ weight.mT, dim=3, upper=1.0))
    with pytest.raises(DTypeError, match=r"A\.to\(y\)"):
        layer(torch.zeros(2, 3))


def test_a_function_that_a_cuda_graph_cannot_record_says_what_would_work():
    def g(y, x):
        raise RuntimeError("Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor")

    with pytest.raises(UnsupportedSetError, match="as buffers of a module"):
        NonlinearLayer(hn.Nonlinear(g, dim=3, upper=1.0))(torch.zeros(2, 3))


def test_functions_that_are_no_rows_are_refused():
    raw = draw(4, 3)
    with pytest.raises(ShapeError, match="g: expected"):
        NonlinearLayer(hn.Nonlinear(lambda y, x: y.sum(-1), dim=3, upper=1.0))(raw)
    with pytest.raises(DTypeError, match="can be differentiated"):
        NonlinearLayer(hn.Nonlinear(lambda y, x: y.detach(), dim=3, upper=1.0))(raw)
    with pytest.raises(DTypeError, match="returns a tensor"):
        NonlinearLayer(hn.Nonlinear(lambda y, x: 1.0, dim=3, upper=1.0))(raw)
    with pytest.raises(ShapeError, match="jacobian: expected shape"):
        NonlinearLayer(hn.Nonlinear(sphere, dim=3, upper=0.0, jacobian=lambda y, x: 2 * y))(raw)


def test_options_are_checked():
    with pytest.raises(OptionError, match="gradient: expected 'auto' or 'projector' for a retraction"):
        NonlinearLayer(CIRCLE, mode="retract", gradient="exact")
    with pytest.raises(ShapeError, match="start: expected 2 numbers"):
        NonlinearLayer(CIRCLE, start=[1.0])
    matrix = hn.LMI(torch.eye(2, dtype=F64), torch.zeros(2, 2, 2, dtype=F64))
    with pytest.raises(
        UnsupportedSetError, match="LMI has neither affine nor smooth rows; write 'all principal minors"
    ):
        NonlinearLayer(CIRCLE & matrix)
    with pytest.raises(UnsupportedSetError, match="Relaxed has neither affine nor smooth rows; put the slack"):
        NonlinearLayer(CIRCLE & hn.Relaxed(hn.Box([0.0, 0.0], 1.0)))
    with pytest.raises(UnsupportedSetError, match="write 'all principal minors"):  # by "auto" the same advice
        hn.HardNet(torch.nn.Linear(2, 2).double(), CIRCLE & matrix)
    layer = NonlinearLayer(CIRCLE)
    assert (layer.mode(200), layer.mode(201)) == ("nearest", "retract")
    with pytest.raises(UnsupportedSetError, match="no transform around nonlinear rows"):
        torch.func.vmap(layer)(draw(3, 2))


def test_no_warning_where_all_is_well():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NonlinearLayer(CIRCLE)(real([[3.0, 4.0]]))


def test_a_matrix_inequality_beside_nonlinear_rows_is_met_by_its_principal_minors():
    """``[[a, b], [b, c]]`` positive semidefinite with ``a^2 + 2 b^2 + c^2 = 1``: what the refusal says to write."""
    minors = lambda y, x: torch.stack([y[..., 0], y[..., 2], y[..., 0] * y[..., 2] - y[..., 1] ** 2], -1)
    size = lambda y, x: (y.square() * y.new_tensor([1.0, 2.0, 1.0])).sum(-1, keepdim=True)
    both = hn.Nonlinear(minors, dim=3, lower=0.0) & hn.Nonlinear(size, dim=3, lower=1.0, upper=1.0)
    found = NonlinearLayer(both).solve(draw(50, 3, seed=60))
    assert ((found.status == Status.OK) | (found.status == Status.DEGENERATE)).all()
    a, b, c = found.y.unbind(-1)
    matrix = torch.stack([torch.stack([a, b], -1), torch.stack([b, c], -1)], -2)
    assert torch.linalg.eigvalsh(matrix).amin() >= -1e-9
