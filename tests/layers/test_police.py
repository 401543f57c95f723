"""POLICE: affine on the region for any weights, learned or given, and not elsewhere."""

import copy
import pickle

import pytest
import torch
from torch import nn

from hardnet import HardNet, check
from hardnet.errors import DTypeError, ShapeError, UnsupportedSetError
from hardnet.layers import Police
from hardnet.layers.police import Abs, PoliceNetwork, hinge_shift
from hardnet.sets import AffineOnRegion, Box
from tests.draws import tensor

F64 = torch.float64


def network(activation=nn.ReLU, d=2, n=3, width=16, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inner = nn.Sequential(nn.Linear(width, width), activation(), nn.Identity())
        return nn.Sequential(nn.Linear(d, width), activation(), inner, nn.Linear(width, n)).double()


def police(net, constraint):
    return HardNet(net, constraint, method=Police(constraint))


def in_region(vertices, count=200, seed=1):
    weights = torch.rand(count, len(vertices), generator=torch.Generator().manual_seed(seed), dtype=F64)
    return (weights / weights.sum(-1, keepdim=True)) @ vertices


def affine_residual(x, y):
    basis = torch.cat([x, torch.ones_like(x[:, :1])], dim=-1)
    return (y - basis @ torch.linalg.lstsq(basis, y).solution).abs().max()


SQUARE = tensor([0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0])
GIVEN = AffineOnRegion(SQUARE, tensor([1.0, 2.0], [0.0, -1.0], [3.0, 0.5]), tensor(0.5, 0.0, -1.0))


def test_known_shifts():
    vertices, weight, bias = tensor(0.0, 1.0, 0.1)[:, None], tensor(1.0, 2.0, -1.0)[:, None], tensor(-0.25, -0.5, 2.0)
    values = vertices @ weight.mT + bias
    shifted = values - hinge_shift(values)
    assert torch.allclose(shifted, tensor([-1.0, -2.0, 2.0], [0.0, 0.0, 1.0], [-0.9, -1.8, 1.9]), rtol=0, atol=1e-12)
    assert torch.allclose(
        tensor(3.0)[:, None] @ weight.mT + bias - hinge_shift(values), tensor(2.0, 4.0, -1.0), rtol=0, atol=1e-12
    )


def test_a_tie_goes_to_the_negative_side_and_no_vertex_stays_behind():
    shifted = tensor([1.0], [-2.0]) - hinge_shift(tensor([1.0], [-2.0]))
    assert shifted.tolist() == [[0.0], [-3.0]]
    assert hinge_shift(tensor([1.0], [2.0])).tolist() == [0.0]


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU, nn.PReLU, Abs])
@pytest.mark.parametrize("seed", range(4))
def test_affine_on_the_region_for_any_weights_and_not_outside(activation, seed):
    model = police(network(activation, seed=seed), AffineOnRegion(SQUARE))
    inside = in_region(SQUARE)
    outside = 6 * torch.rand(200, 2, generator=torch.Generator().manual_seed(2), dtype=F64) - 3
    assert affine_residual(inside, model(inside)) < 1e-12
    assert affine_residual(outside, model(outside)) > 1e-3
    assert model(inside.reshape(4, 50, 2)).shape == (4, 50, 3)


def test_a_module_that_stands_twice_runs_twice():
    relu = nn.ReLU()
    first, _, (second, _, _), last = network(n=1)
    net = PoliceNetwork(nn.Sequential(first, relu, second, relu, last), AffineOnRegion(10 + SQUARE))
    other = PoliceNetwork(nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last), AffineOnRegion(10 + SQUARE))
    assert torch.equal(net(SQUARE), other(SQUARE))


@pytest.mark.parametrize("seed", range(3))
def test_a_given_map_holds_on_the_region_and_the_rest_is_learned(seed):
    model = police(network(seed=seed), GIVEN)
    inside = in_region(SQUARE)
    assert (model(inside) - inside @ GIVEN.A.mT - GIVEN.b).abs().max() < 1e-13
    assert check(GIVEN, model(inside), inside).ok
    outside = 5 + SQUARE
    assert (model(outside) - outside @ GIVEN.A.mT - GIVEN.b).abs().max() > 1e-3
    assert check(GIVEN, model(outside), outside).ok  # nothing is asked of it there


def test_a_region_without_interior():
    segment = AffineOnRegion(SQUARE[[0, 2]], tensor([1.0, 1.0]), 2.0)
    model = police(network(n=1), segment)
    x = in_region(SQUARE[[0, 2]])
    assert (model(x)[:, 0] - x.sum(-1) - 2).abs().max() < 1e-13


def test_gradients_reach_the_weights_through_the_shifts():
    net = network(nn.LeakyReLU, width=4)
    model, x = police(net, GIVEN), tensor([0.3, 0.4], [3.0, -2.0])
    weights = [weight.detach().clone().requires_grad_() for weight in net.parameters()]
    names = [name for name, _ in model.named_parameters()]

    def run(*values):
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, weights)


def test_the_guarantee_survives_training():
    model = police(network(), AffineOnRegion(SQUARE))
    optimizer, x = torch.optim.Adam(model.parameters(), 1e-2), 4 * in_region(SQUARE) - 2
    for _ in range(20):
        optimizer.zero_grad()
        (model(x) - x.sin().sum(-1, keepdim=True)).square().mean().backward()
        optimizer.step()
    assert affine_residual(in_region(SQUARE), model(in_region(SQUARE))) < 1e-12


def other_weights(model):
    return {name: value * 3 + 0.1 for name, value in model.net.net.state_dict().items()}


def by_assignment(model):
    model.net.net.load_state_dict(other_weights(model), assign=True)


def behind_the_back(model):
    for name, value in model.net.net.named_parameters():
        value.data.copy_(other_weights(model)[name])


def another_module(model):
    model.net.net[0] = torch.nn.Linear(2, model.net.net[0].out_features).double()


@pytest.mark.parametrize("change", [by_assignment, behind_the_back, another_module])
def test_shifts_never_go_stale(change):
    model = police(network(), GIVEN).eval()
    x = in_region(SQUARE)
    with torch.no_grad():
        first = model(x)
        assert torch.equal(model(x), first)
        change(model)
        assert affine_residual(x, model(x)) < 1e-12
    assert torch.allclose(model.train()(x), model.eval()(x), rtol=0, atol=1e-12)


def test_copies_files_and_moves_keep_the_guarantee():
    model = police(network(), GIVEN).eval()
    x = in_region(SQUARE)
    with torch.no_grad():
        y = model(x)
        assert torch.equal(copy.deepcopy(model)(x), y)
        assert torch.equal(pickle.loads(pickle.dumps(model))(x), y)
        twin = police(network(seed=9), copy.deepcopy(GIVEN))
        twin.load_state_dict(model.state_dict())
        assert torch.equal(twin(x), y)
        single = copy.deepcopy(model).float()
        assert single(x.float()).dtype == torch.float32
        assert (single(x.float()) - y).abs().max() < 1e-5
    twin = copy.deepcopy(model)
    assert twin.net.constraint is twin.layer.constraint


def test_compiled():
    model, x = police(network(), GIVEN), in_region(SQUARE)
    assert torch.allclose(torch.compile(model, backend="aot_eager", fullgraph=True)(x), model(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("module", [nn.GELU(), nn.Tanh(), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.ReLU6()])
def test_modules_that_would_break_the_guarantee_are_refused_by_name(module):
    net = nn.Sequential(nn.Linear(2, 4), nn.Sequential(module), nn.Linear(4, 3)).double()
    with pytest.raises(UnsupportedSetError, match=rf"got {type(module).__name__} at 'net\.1\.0'; only hinges"):
        police(net, GIVEN)


def test_bad_arguments_are_named():
    with pytest.raises(ShapeError, match="net: expected inputs of size 2, as the vertices have, got 5"):
        police(nn.Linear(5, 3).double(), GIVEN)
    with pytest.raises(DTypeError, match=r"vertices: expected the dtype of raw, torch\.float32"):
        police(network(), GIVEN)(torch.zeros(1, 2))
    with pytest.raises(UnsupportedSetError, match="Box is not an AffineOnRegion"):
        Police(Box(lower=torch.zeros(2)))
