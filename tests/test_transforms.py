"""torch.func on every family that ships: each transform against eager values or finite differences, none silently zero.

The loss is not linear, so that its Hessian is not zero, and the points are away from where the active rows change.
"""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vmap

import hardnet as hn
from hardnet.errors import UnsupportedSetError
from tests.cases import CASES
from tests.draws import draw

F64 = torch.float64
TWO, MANY = draw(2, 4, seed=1), draw(7, 4, seed=2)
CUBE = torch.ones(4, dtype=F64)
FAMILIES = {
    "few rows": (lambda: hn.Affine(lambda x: TWO + 0.1 * x[..., :1, None], upper=lambda x: x[..., :2].abs()), "auto"),
    "a box and a row": (lambda: hn.Box(-CUBE, 1.0) & hn.Equality(CUBE[None], lambda x: x[..., :1].tanh()), "auto"),
    "a box and rows": (lambda: hn.Box(-CUBE, 1.0) & hn.Affine(MANY[:3], lower=-0.5, upper=0.5), "auto"),
    "a simplex": (lambda: hn.Simplex(4, lambda x: 1 + x[..., 0].square()), "auto"),
    "a ball": (lambda: hn.Ball(0 * CUBE, lambda x: 0.5 + x[..., 0].square()), "auto"),
    "general rows": (lambda: hn.Affine(MANY, lower=-0.5, upper=0.5), "auto"),
    "equalities": (lambda: hn.Equality(TWO, lambda x: x[..., :2].tanh()), "projection"),
    "a quadratic": (lambda: hn.Quadratic(MANY.mT @ MANY, 0.1 * CUBE, -1.0), "auto"),
}
OPTIONS = {
    "a metric": {"metric": lambda x: 1 + x[..., :1].square() * CUBE.cumsum(0)},
    "a matrix as metric": {"metric": MANY.mT @ MANY},
    "strict": {"strict": True},
}
STEP = 1e-6


def model_of(name, seed=0):
    make, method = FAMILIES[name]
    torch.manual_seed(seed)
    return hn.HardNet(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double(), make(), method).eval()


def far(model):
    """Raw outputs mostly outside."""
    with torch.no_grad():
        model.net[-1].weight.mul_(4)
    return model


def loss(y):
    return (y * torch.arange(1.0, 5.0, dtype=F64)).sin().sum()


@pytest.fixture(params=FAMILIES, scope="module")
def model(request):
    return far(model_of(request.param))


X = 2 * draw(3, 3, seed=5)


def slope(function, x, v):
    """The derivative along v by central differences."""
    return (function(x + STEP * v) - function(x - STEP * v)) / (2 * STEP)


def close(found, expected, atol):
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    assert found.abs().max() > 1e-3  # silent zeros agree with nothing


def test_vmap(model):
    close(vmap(model)(X), model(X), 1e-9)


def test_jvp_against_finite_differences(model):
    v = draw(3, 3, seed=6)
    y, along = jvp(model, (X,), (v,))
    close(y, model(X), 1e-9)
    close(along, slope(model, X, v), 1e-6)


def test_grad_and_jacrev_against_autograd(model):
    x = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(model(x)), x)
    close(grad(lambda at: loss(model(at)))(X), expected, 1e-9)
    close(vmap(grad(lambda at: loss(model(at))))(X), expected, 1e-9)
    jacobian = vmap(jacrev(model))(X)
    weight = torch.cos(model(X) * torch.arange(1.0, 5.0, dtype=F64)) * torch.arange(1.0, 5.0, dtype=F64)
    close((weight.unsqueeze(-2) @ jacobian).squeeze(-2), expected, 1e-9)


def test_hessian_against_differences_of_the_gradient(model):
    at, v = X[0], draw(3, seed=7)
    found = hessian(lambda x: loss(model(x)))(at)
    close(found @ v, slope(grad(lambda x: loss(model(x))), at, v), 1e-4)
    close(found, found.mT, 1e-8)


def test_functional_call_takes_other_parameters(model):
    other = {name: 1.1 * value.detach() for name, value in model.named_parameters()}
    twin = copy.deepcopy(model)
    twin.load_state_dict({**twin.state_dict(), **other})
    close(functional_call(model, other, (X,)), twin(X), 1e-9)
    gradient = grad(lambda numbers: loss(functional_call(model, numbers, (X,))))(other)
    loss(twin(X)).backward()
    for name, value in twin.named_parameters():
        torch.testing.assert_close(gradient[name], value.grad, rtol=0, atol=1e-9)


def test_maps_of_forward_mode_against_reverse_mode(model):
    """Two maps, over samples and over directions: a solve that mixes them up puts derivatives into other samples."""
    expected = vmap(jacrev(model))(X)
    close(vmap(jacfwd(model))(X), expected, 1e-9 * (1 + expected.abs().max().item()))
    second = vmap(jacrev(jacrev(lambda x: loss(model(x)))))(X)
    close(vmap(hessian(lambda x: loss(model(x))))(X), second, 1e-7 * (1 + second.abs().max().item()))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("rows", [TWO, MANY])
def test_maps_of_forward_mode_with_options(options, rows):
    layer = hn.layers.Projection(hn.Affine(rows, upper=0.5), **OPTIONS[options])
    raw = 2 * draw(5, 4, seed=8)
    both = [vmap(jacobian(layer))(raw, X[:1].expand(5, 3)) for jacobian in (jacfwd, jacrev)]
    close(*both, 1e-9 * (1 + both[1].abs().max().item()))


@pytest.mark.parametrize("name", ["few rows", "a box and a row", "a box and rows", "general rows"])
def test_the_tangent_gradient_is_refused_forward(name):
    layer = hn.layers.Projection(FAMILIES[name][0](), gradient="tangent")
    with pytest.raises(hn.errors.UnsupportedSetError, match="no forward mode"):
        jvp(lambda raw: layer(raw, X), (draw(3, 4, seed=8),), (draw(3, 4, seed=9),))


SECOND = {
    "linsat": (hn.Affine(TWO.abs() / 4, upper=0.4), {"temperature": 1.0}),
    "rayen": (hn.LMI(2 * torch.eye(3, dtype=F64), (lambda S: S + S.mT)(draw(4, 3, 3, seed=3))), {}),
}


@pytest.mark.parametrize("method", SECOND)
def test_second_derivatives_by_autograd(method):
    """``create_graph=True``: derivatives of the gradient against its differences."""
    constraint, options = SECOND[method]
    layer = hn.HardNet(nn.Identity(), constraint, method, **options).layer
    raw, v = 2 * draw(3, layer.raw_dim or 4, seed=9), draw(3, layer.raw_dim or 4, seed=10)

    def gradient(at):
        at = at.requires_grad_()
        return torch.autograd.grad(loss(layer(at)), at, create_graph=True)[0], at

    first, at = gradient(raw)
    (found,) = torch.autograd.grad(first, at, v)
    close(found, slope(lambda point: gradient(point.detach())[0].detach(), raw.detach(), v), 1e-5)


@pytest.mark.parametrize("options", [{}, {"variant": "v2"}, {"variant": "v1", "solver": "sweeps"}])
def test_linsat_is_differentiated_but_not_mapped(options):
    layer = hn.layers.LinSAT(SECOND["linsat"][0], temperature=1.0, max_iterations=1000, **options)
    raw = draw(3, 4, seed=9)
    expected = torch.autograd.functional.jacobian(layer, raw)
    close(jacrev(layer)(raw), expected, 1e-9)
    close(jacfwd(layer)(raw), expected, 1e-9)
    for mapped in (vmap(layer), vmap(jacrev(layer)), vmap(jacfwd(layer))):
        with pytest.raises(hn.errors.UnsupportedSetError, match="no vmap around linsat"):
            mapped(raw)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_ensemble_is_one_call(name):
    constraint = FAMILIES[name][0]()
    models = [far(model_of(name, seed)) for seed in range(3)]
    models = [hn.HardNet(model.net, constraint, FAMILIES[name][1]).eval() for model in models]
    parameters, buffers = stack_module_state(models)
    shared = {key: value[0] for key, value in buffers.items()}  # the set is the same for all
    run = lambda numbers: functional_call(models[0], (numbers, shared), (X,))
    close(vmap(run)(parameters), torch.stack([model(X) for model in models]), 1e-9)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_second_derivatives_are_right_or_refused_and_leave_the_first_as_it_is(case):
    """For every layer: where a gradient cannot be differentiated, `hessian` must not take it for a constant."""
    layer, (x, raw) = case.layer(), case.data()
    direction = draw(*raw.shape, seed=2)

    def gradient(at, twice=False):
        at = at.detach().requires_grad_()
        y = layer(at, x)
        weight = torch.arange(1.0, y.shape[-1] + 1, dtype=F64)
        return torch.autograd.grad((weight * y).sin().sum(), at, create_graph=twice)[0], at

    plain, (first, at) = gradient(raw)[0], gradient(raw, twice=True)
    torch.testing.assert_close(first, plain, rtol=1e-7, atol=1e-9)
    try:
        second = torch.autograd.grad(first, at, direction, allow_unused=True)[0]
    except UnsupportedSetError:  # in one sentence, which other tests read
        return
    differences = (gradient(raw + STEP * direction)[0] - gradient(raw - STEP * direction)[0]) / (2 * STEP)
    # central differences of numbers of size one: a rounding over the step, and the square of the step
    torch.testing.assert_close(second, differences, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["cvx-quadratic", "cvx-cone", "cvx-lmi", "cvx-mixed", "nonlinear-retract"])
@pytest.mark.parametrize("loss", [torch.sum, lambda y: y.square().sum()])
def test_a_hessian_that_there_is_not_is_refused(name, loss):
    (case,) = (case for case in CASES if case.name == name)
    layer, (x, raw) = case.layer(), case.data()
    with pytest.raises(UnsupportedSetError, match="second derivatives: expected first ones alone"):
        torch.autograd.functional.hessian(lambda at: loss(layer(at, x)), raw)
