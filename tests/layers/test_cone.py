"""Cones by generators: every raw output lands in the cone, through the whole contract of a layer."""

import copy

import pytest
import torch

from hardnet import check
from hardnet.errors import DTypeError, OptionError, ShapeError, StateError, UnsupportedSetError
from hardnet.layers import Cone
from hardnet.sets import Affine, Box, Equality
from hardnet.testing import check_layer
from tests.draws import draw, tensor

F64 = torch.float64


MONOTONE = tensor([1.0, -1.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.0], [0.0, 0.0, 1.0, -1.0])
CONVEX = tensor([-1.0, 2.0, -1.0, 0.0], [0.0, -1.0, 2.0, -1.0])

CONES = {
    "independent rows": lambda: Affine(MONOTONE, upper=0.0),
    "lower bounds": lambda: Affine(-MONOTONE, lower=torch.zeros(3, dtype=F64)),
    "dependent rows": lambda: Affine(torch.cat([MONOTONE, CONVEX, -torch.eye(4, dtype=F64)]), upper=0.0),
    "with an equality": lambda: Affine(MONOTONE, upper=0.0) & Equality(tensor([1.0, 1.0, 1.0, -4.0]), 0.0),
    "orthant": lambda: Box(lower=torch.zeros(4, dtype=F64)) & Affine(CONVEX, upper=0.0),
    "equality by two bounds": lambda: Affine(MONOTONE, lower=tensor(0.0, -torch.inf, 0.0), upper=0.0),
}


@pytest.mark.parametrize("cone", CONES)
@pytest.mark.parametrize("box", [None, 0.5])
def test_contract(cone, box):
    layer = Cone(CONES[cone](), box=box)
    check_layer(layer, None, draw(6, layer.raw_dim))


def test_the_compiled_layer_is_one_graph_and_gives_the_same():
    layer = Cone(CONES["with an equality"](), box=0.5)
    check_layer(layer, None, draw(6, layer.raw_dim), gradients=False, compiled=True)


@pytest.mark.parametrize("cone", CONES)
def test_rows_hold_for_many_raw_outputs_of_any_size(cone):
    layer = Cone(CONES[cone]())
    raw = draw(5, 200, layer.raw_dim) * torch.logspace(-6, 6, 200, dtype=F64)[:, None]
    y = layer(raw)
    assert y.shape == (5, 200, 4)
    assert (layer.constraint.violation(y) <= 1e-12 * y.abs().amax(-1, keepdim=True)).all()


def test_wedge_maps_coefficients_to_known_points():
    layer = Cone(Affine(tensor([-1.0, 1.0], [-1.0, -1.0]), upper=0.0))
    y = layer(tensor([1.0, 0.0], [0.0, -1.0], [2.0, 2.0]))
    ends = {tuple(point) for point in (y[:2] * 2**0.5).round(decimals=12).tolist()}
    assert ends == {(1.0, 1.0), (1.0, -1.0)}
    assert torch.allclose(y[2], tensor(2 * 2**0.5, 0.0), rtol=0, atol=1e-12)


def test_the_whole_line_space_is_reached_with_signed_coefficients():
    layer = Cone(Affine(tensor([1.0, 0.0, 0.0]), upper=0.0))
    assert (len(layer.rays), len(layer.lineality), layer.raw_dim) == (1, 2, 3)
    assert torch.allclose(layer(tensor(3.0, 0.0, 0.0)), tensor(-3.0, 0.0, 0.0), rtol=0, atol=1e-12)
    assert torch.linalg.matrix_rank(layer(torch.eye(3, dtype=F64))) == 3


def test_gradient_exists_on_both_sides_of_zero():
    layer = Cone(Affine(tensor([1.0, 0.0]), upper=0.0))
    raw = tensor([-2.0, 0.0], [2.0, 0.0]).requires_grad_()
    layer(raw)[:, 0].sum().backward()
    assert raw.grad is not None
    assert raw.grad[:, 0].tolist() == [1.0, -1.0]


def test_box_scales_into_the_cube_and_keeps_what_is_inside():
    constraint = CONES["orthant"]()
    free, boxed = Cone(constraint), Cone(constraint, box=1.0)
    raw = draw(50, free.raw_dim) * torch.logspace(-2, 2, 50, dtype=F64)[:, None]
    y = boxed(raw)
    small = free(raw).abs().amax(-1) <= 1
    assert (y.abs() <= 1 + 1e-15).all()
    assert torch.equal(y[small], free(raw)[small])
    assert check(constraint, y).ok


def test_rounding_the_rows_to_float32_keeps_the_number_of_generators():
    A = tensor([0.1, 0.2, 0.7], [0.3, 0.6, 2.1], [0.7, 0.1, 0.2])  # the second row is thrice the first
    layer = Cone(Affine(A, upper=0.0))
    moved = copy.deepcopy(layer).float()
    assert moved.rays.dtype == torch.float32
    assert moved.raw_dim == layer.raw_dim == 3
    assert torch.equal(moved.rays, layer.rays.float())


def test_loading_another_matrix_is_refused_and_leaves_the_generators():
    layer, other = (Cone(Affine(A, upper=0.0)) for A in (tensor([1.0, 0.0]), tensor([0.0, 1.0])))
    before = layer.rays.clone()
    with pytest.raises(StateError, match="'A' differs"):
        layer.load_state_dict(other.state_dict())
    assert torch.equal(layer.rays, before)


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Affine(MONOTONE, upper=1.0), "row 0 has 1; use method='projection'"),
        (Affine(MONOTONE, upper=lambda x: x), "row 0 has a function of x"),
        (Affine(lambda x: x, upper=0.0), "nothing in it tells the number of outputs"),
        (Box(lower=torch.zeros(2)) & Affine(lambda x: x, upper=0.0), "A depends on x or is learned"),
    ],
)
def test_other_sets_are_refused_with_what_would_do(constraint, message):
    with pytest.raises(UnsupportedSetError, match=r"method 'cone' cannot enforce this set.*" + message):
        Cone(constraint)


def test_a_cone_of_one_point_is_refused():
    with pytest.raises(UnsupportedSetError, match="its only point is 0"):
        Cone(Box(lower=torch.zeros(2), upper=torch.zeros(2)))


def test_bad_arguments_are_named():
    layer = Cone(Affine(MONOTONE, upper=0.0))
    with pytest.raises(ShapeError, match=r"raw: expected shape \(\*batch, 4\)"):
        layer(draw(2, 3))
    with pytest.raises(DTypeError, match=r"generators: expected the dtype of raw, torch\.float32"):
        layer(draw(2, 4).float())
    with pytest.raises(OptionError, match="box: expected a finite number above 0, got 0"):
        Cone(Affine(MONOTONE, upper=0.0), box=0)
    with pytest.raises(UnsupportedSetError, match="at most 2 generators"):
        Cone(Affine(MONOTONE, upper=0.0), limit=2)
