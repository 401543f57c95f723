"""Half precision: every layer keeps its guarantee at the rounding of bfloat16 and float16, or refuses them."""

import copy
import warnings

import pytest
import torch
from torch import Tensor

import hardnet as hn
from hardnet.errors import DTypeError, InfeasibleError, NonFiniteError, UnsupportedSetError
from hardnet.layers import Guarantee
from tests.cases import CASES
from tests.draws import draw

HALF = [torch.bfloat16, torch.float16]
SUMS = ("projection-transport", "projection-entropy")
"""Sets with sums of rows and of columns, whose totals no longer agree once they are rounded: an empty set, said so."""
PROMISED = (Guarantee.EXACT, Guarantee.TOLERANCE)


def cast(x, dtype):
    return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x


def run(layer, raw, x, samples_alone=True):
    """The layer's answer, which never holds inf; None where it refuses the dtype in a sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = layer(raw, x)
    except DTypeError:
        return None
    assert not y.isinf().any()
    return y


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_layer_in_half_precision_keeps_its_guarantee(case, dtype):
    x, raw = case.data()
    try:
        layer = copy.deepcopy(case.layer()).to(dtype)
    except UnsupportedSetError:  # the set has no interior left after rounding
        return
    try:
        y = run(layer, raw.to(dtype), cast(x, dtype))
    except InfeasibleError:
        assert case.name in SUMS
        return
    if y is None:
        return
    assert y.dtype == dtype
    assert y.isfinite().all()
    if layer.guarantee in PROMISED:
        certificate = hn.check(layer.constraint, y, cast(x, dtype))
        assert certificate.ok, certificate


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_half_raw_beside_constants_in_float32(case, dtype):
    x, raw = case.data()
    layer = copy.deepcopy(case.layer()).float()
    y = run(layer, raw.to(dtype), cast(x, torch.float32))
    if y is None:
        return
    assert y.dtype == dtype
    assert torch.equal(y, layer(raw.to(dtype).float(), cast(x, torch.float32)).to(dtype)), "enforced in float32"


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", [case for case in CASES if case.input_dim == case.raw_dim], ids=lambda case: case.name)
def test_autocast_enforces_in_float32_whatever_the_dtype_of_x(case, x_dtype):
    layer = copy.deepcopy(case.layer()).float()
    net = torch.nn.Linear(case.input_dim, layer.raw_dim or case.raw_dim)
    model = hn.HardNet(net, layer.constraint, layer)
    x = case.data()[0].to(x_dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        y = model(x)
    assert y.dtype == torch.float32
    if layer.guarantee in PROMISED:
        tolerance = 1e-6 if layer.guarantee is Guarantee.TOLERANCE else None
        assert hn.check(layer.constraint, y, x.float(), tolerance=tolerance).ok


def test_numbers_of_x_in_half_precision_beside_constants_in_float32():
    constraint = hn.Affine(draw(2, 4).float(), lower=lambda x: -x[..., :2].abs(), upper=lambda x: x[..., :2].abs())
    for method in ("aff", "projection", "cdgm"):
        model = hn.HardNet(torch.nn.Linear(3, 4).bfloat16(), constraint, method)
        x = draw(50, 3, seed=1).bfloat16()
        y = model(x)
        assert y.dtype == torch.bfloat16
        assert hn.check(constraint, y, x).ok


@pytest.mark.parametrize("raw_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_layer_solution_and_certificate_see_the_same_set_at_an_input_in_half_precision(autocast, raw_dtype):
    """Adding 0.1 to x in bfloat16 rounds to 1/256 of it, which no float32 certificate would accept."""
    constraint = hn.Affine(lambda x: (x + 0.1).unsqueeze(-2), upper=lambda x: x[..., :1].abs())
    layer, x, raw = hn.layers.Projection(constraint), draw(50, 4).bfloat16(), draw(50, 4, seed=1).to(raw_dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        y, solution = layer(raw, x), layer.solve(raw, x)
        assert hn.check(constraint, y, x).ok
        assert (solution.status == 0).all()
        assert torch.equal(solution.y, y.to(raw_dtype))
    assert hn.check(constraint, y, x).ok


def test_a_learned_matrix_runs_under_autocast_with_half_inputs():
    class Rows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 8)

        def forward(self, x):
            return self.linear(x).unflatten(-1, (2, 4))

    model = hn.HardNet(torch.nn.Linear(3, 4), hn.Affine(Rows(), upper=1.0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(draw(20, 3).bfloat16())
        y.square().sum().backward()
    assert y.dtype == torch.float32
    assert model.constraint.A.linear.weight.grad.isfinite().all()


@pytest.mark.parametrize("method", ["aff", "projection", "kkt-hpinn"])
def test_an_output_beyond_the_range_of_float16_is_an_error_or_nan(method):
    constraint = hn.Equality(torch.tensor([[1.0, 1.0]]), lambda x: x)
    x = torch.tensor([[1.0], [3e5], [2.0]])
    raw = torch.zeros(3, 2, dtype=torch.float16)
    with pytest.raises(NonFiniteError, match=r"range of torch\.float16, up to 65504, got larger ones in samples 1"):
        hn.layers.LAYERS[method](constraint)(raw, x)
    y = hn.layers.LAYERS[method](constraint, on_invalid="nan")(raw, x)
    assert y[1].isnan().all()
    assert torch.equal(y[[0, 2]], torch.tensor([[0.5, 0.5], [1.0, 1.0]], dtype=torch.float16))


@pytest.mark.parametrize("dtype", HALF)
def test_strict_is_refused_since_rounding_would_undo_it(dtype):
    layer = hn.layers.HardNetAff(hn.Affine(draw(2, 4), upper=0.0), strict=True).to(dtype)
    with pytest.raises(DTypeError, match="float32 or float64 with strict=True"):
        layer(draw(3, 4, seed=1).to(dtype))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("n", [2, 8])
def test_rayen_drops_no_row_in_half_precision(dtype, n):
    layer = hn.layers.Rayen(hn.Box(-torch.ones(n), torch.ones(n))).to(dtype)
    y = layer((20 * draw(256, n)).to(dtype))
    assert hn.check(layer.constraint, y).ok
    assert (y.abs().amax(-1) > 0.9).float().mean() > 0.9, "far displacements end at the boundary"


@pytest.mark.parametrize("dtype", HALF)
def test_an_interval_that_rounding_closes_is_refused_by_rayen(dtype):
    layer = hn.layers.Rayen(hn.Box(torch.tensor([1.0, 0.0]), torch.tensor([1.00001, 1.0])))
    with pytest.raises(UnsupportedSetError, match="interior: expected a point strictly inside"):
        layer.to(dtype)
