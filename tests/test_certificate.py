"""The certificate speaks the truth: in float64, per sample, also about NaN and rounding."""

from math import isnan

import pytest
import torch

import hardnet as hn
from tests.draws import draw

D = torch.float64


def test_names_what_is_violated():
    constraint = hn.Affine(torch.eye(2), upper=torch.ones(2))
    certificate = hn.check(constraint, torch.tensor([[0.0, 0.0], [0.0, 3.0]]))
    assert certificate.satisfied.tolist() == [True, False]
    assert certificate.max_violation == 2.0
    assert not certificate.ok
    assert "1 of 2 samples" in str(certificate)
    assert "Affine[1] of sample (1,) by 2" in str(certificate)


def test_evaluates_in_float64():
    # in float32 the sum 1e8 + 1 rounds to 1e8 and the violation of 1 would go unseen
    constraint = hn.Affine(torch.tensor([[1.0, 1.0]]), upper=torch.tensor([1e8]))
    certificate = hn.check(constraint, torch.tensor([[1e8, 1.0]]), tolerance=0.5)
    assert certificate.violation.dtype == torch.float64
    assert certificate.violation.item() == 1.0
    assert not certificate.ok


def test_nan_satisfies_nothing():
    certificate = hn.check(hn.Box(0.0, 1.0), torch.tensor([[torch.nan, 0.5], [0.5, 0.5]]))
    assert certificate.satisfied.tolist() == [False, True]
    assert not certificate.ok


def test_rounding_is_relative_to_the_terms_of_the_row():
    constraint = hn.Affine(torch.tensor([[1e6, -1e6]], dtype=torch.float64), lower=0.0, upper=0.0)
    y = torch.tensor([[1 / 3, 1 / 3 + 1e-16]], dtype=torch.float64)
    assert hn.check(constraint, y).ok
    assert not hn.check(constraint, y + torch.tensor([0.0, 1e-12], dtype=torch.float64)).ok


def test_coordinates_of_a_box_are_compared_exactly():
    limits = torch.tensor([1.0, 3.0], dtype=D)
    above = torch.nextafter(limits, limits + 1)
    certificate = hn.check(
        hn.Box(0.0, limits) & hn.Equality(torch.ones(1, 2, dtype=D), 4.0), torch.stack([limits, above])
    )
    assert certificate.ok
    assert certificate.exact_box.tolist() == [True, False]
    assert certificate.coordinates.tolist() == [True, True, False]
    assert certificate.violation[1, 0] == above[0] - limits[0]


def test_by_name():
    constraint = hn.Box(0.0, 1.0, name="limits") & hn.Affine(torch.ones(1, 2, dtype=D), upper=1.0, name="budget")
    certificate = hn.check(constraint, torch.tensor([[0.5, 0.5], [3.0, 0.0], [1.0, 1.0], [0.0, torch.nan]], dtype=D))
    table = certificate.by_name()
    assert list(table) == ["limits[0]", "limits[1]", "budget"]
    assert [row.satisfied for row in table.values()] == [0.75, 0.75, 0.25]
    assert next(iter(table.values())).violation == 2.0
    assert isnan(list(table.values())[2].violation)
    empty = hn.check(constraint, torch.zeros(0, 2, dtype=D)).by_name()
    assert [row.satisfied for row in empty.values()] == [1.0, 1.0, 1.0]


def test_words_name_the_worst_rows_first_and_count_the_rest():
    constraint = hn.Box(0.0, torch.zeros(8, dtype=D))
    y = torch.arange(8.0, dtype=D).expand(2, 8)
    text = str(hn.check(constraint, y))
    places = [text.index(f"by {value}") for value in (7, 6, 5, 4, 3)]
    assert places == sorted(places)
    assert "2 more rows" in text


@pytest.mark.parametrize("tolerance", [-1.0, torch.nan])
def test_refuses_a_tolerance_that_means_nothing(tolerance):
    with pytest.raises(hn.errors.BoundsError, match="tolerance: expected a number >= 0"):
        hn.check(hn.Box(0.0), torch.zeros(1, 2), tolerance=tolerance)


def test_empty_batch_is_satisfied():
    certificate = hn.check(hn.Box(0.0, 1.0), torch.zeros(0, 3))
    assert certificate.ok
    assert certificate.max_violation == 0.0


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4)])
def test_any_batch_shape(shape):
    certificate = hn.check(hn.Box(-9.0, 9.0), draw(*shape))
    assert certificate.satisfied.shape == shape[:-1]


@pytest.mark.parametrize("y", [[0.0, 1.0], torch.ones(2, 2, dtype=torch.int64)])
def test_refuses_outputs_that_are_no_float_tensor(y):
    with pytest.raises(hn.errors.DTypeError, match="y: expected a"):
        hn.check(hn.Box(0.0, 1.0), y)


def test_an_output_that_should_be_zero_has_a_floor():
    """What a closed form leaves of an exact 0 is a rounding of a rounding; relative to itself it would be all."""
    corner = hn.Affine(torch.eye(3, dtype=torch.float64), upper=0.0)
    residue = torch.full((1, 3), 1e-33, dtype=torch.float64)
    assert hn.check(corner, residue).ok
    assert not hn.check(corner, 1e13 * residue).ok


def test_what_is_no_set_is_named():
    model = hn.HardNet(torch.nn.Linear(2, 3), hn.Box(0.0, 1.0))
    y = model(torch.zeros(4, 2))
    for wrong in (model.net, y, None):
        with pytest.raises(
            hn.errors.DTypeError, match=f"constraint: expected a set, or a model, got {type(wrong).__name__}"
        ):
            hn.check(wrong, y)
    with pytest.raises(hn.errors.ShapeError, match=r"y: expected shape \(\*batch, 2\), got \(4, 3\)"):
        hn.check(hn.Box([0.0, 0.0], [1.0, 1.0]), y)


def test_a_certificate_shows_its_line_at_the_prompt():
    certificate = hn.check(hn.Box(0.0, 1.0), torch.ones(3, 2))
    assert repr(certificate) == str(certificate) == "3 of 3 samples satisfy every row; largest violation 0"


def _limit(x):
    return 0.5 + x[..., :1].abs()


def _radius(x):
    return 0.5 + x[..., 0].abs()


OF_X = {
    "rows": lambda: hn.Affine(draw(2, 4), upper=0.5),
    "box and a row": lambda: hn.Box(-1.0, 1.0) & hn.Affine(draw(1, 4), upper=_limit),
    "ball": lambda: hn.Ball([0.0] * 4, _radius),
    "quadratic": lambda: hn.Quadratic(torch.eye(4, dtype=torch.float64), [0.0] * 4, lambda x: -_radius(x)),
    "cone": lambda: hn.SecondOrderCone(torch.eye(4, dtype=torch.float64), [0.0] * 4, [0.0] * 4, _radius),
    "simplex": lambda: hn.Simplex(4, _radius),
    "nonlinear": lambda: hn.Nonlinear(lambda y, x: y.square().sum(-1, keepdim=True), dim=4, upper=_limit),
    "relaxed": lambda: hn.Box(-0.1, 0.1) & hn.Relaxed(hn.Affine(draw(1, 4), lower=_limit)),
    "ball and a row": lambda: hn.Ball([0.0] * 4, _radius) & hn.Affine(draw(1, 4), upper=0.2),
    "scaled": lambda: hn.scaled(hn.Box(-1.0, 1.0) & hn.Affine(draw(1, 4), upper=_limit), 0.1, 2.0),
}


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("name", OF_X)
def test_no_samples_are_satisfied_in_every_set(name, shape):
    certificate = hn.check(OF_X[name](), draw(*shape, 4), draw(*shape, 3))
    assert certificate.ok
    assert certificate.satisfied.shape == shape
    assert certificate.max_violation == 0
    assert certificate.violation.shape == certificate.tolerance.shape == (*shape, len(certificate.names))


@pytest.mark.parametrize("far", [1e5, 1e13, 1e30])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_a_coefficient_of_zero_grants_nothing(far, sparse, dtype):
    """A row is off relative to the outputs that it reads, not to another one beside them."""
    A = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]], dtype=dtype)
    bounded = hn.Affine(A.to_sparse_csr() if sparse else A, upper=torch.tensor([1.0, 2 * far], dtype=dtype))
    per_sample = hn.Affine(lambda x: x, upper=torch.tensor([1.0, 2 * far], dtype=dtype))
    y = torch.tensor([[1.001, far, 0.0], [0.999, far, 0.0]], dtype=dtype)
    for constraint, x in ((bounded, None), (per_sample, A.expand(2, 2, 3))):
        assert hn.check(constraint, y, x).satisfied.tolist() == [False, True]
    nonlinear = hn.Nonlinear(lambda y, x: y[..., :1].square(), dim=3, upper=1.0)
    assert hn.check(nonlinear, y).satisfied.tolist() == [False, True]
    assert hn.check(hn.Box(-9.0, torch.tensor([1.0, 2 * far, 1.0], dtype=dtype)), y).satisfied.tolist() == [False, True]


def test_units_say_what_is_small():
    """Outputs of 1e4 and of 1e-8: without units the larger one hides by how much the smaller one misses its bound."""
    units = [1e4, 1e-8]
    y = torch.tensor([[1e4, 1e-8], [1e4, 1e-8 + 1e-12]], dtype=D)
    for constraint in (
        hn.Affine(torch.tensor([[-1e-12, 1.0]], dtype=D), upper=0.0),
        hn.Affine(torch.tensor([[-1e-12, 1.0]], dtype=D).to_sparse_csr(), upper=0.0),
        hn.Nonlinear(lambda y, x: y[..., 1:] - 1e-12 * y[..., :1], dim=2, upper=0.0),
    ):
        assert hn.check(constraint, y).ok
        assert hn.check(constraint, y, units=units).satisfied.tolist() == [True, False]
    assert not hn.check(hn.Box(0.0, [2e4, 1e-8]), y, units=units).ok


@pytest.mark.parametrize("units", [[1.0], [1.0, -1.0], [1.0, torch.nan], 3.0, [[1.0, 1.0]]])
def test_refuses_units_that_mean_nothing(units):
    with pytest.raises(hn.errors.HardNetError, match="units: expected"):
        hn.check(hn.Box(0.0, 1.0), torch.zeros(1, 2), units=units)


def test_tied_outputs_in_order_and_points_at_an_apex_are_met():
    """What is tied in exact arithmetic is tied to rounding here, at any size beside other outputs."""
    for size in (1e-9, 1.0, 1e9):
        y = size * torch.tensor([[1 / 3, 1 / 3, 1.0, 1.0]], dtype=D)
        y[0, 1] = torch.nextafter(y[0, 0], y[0, 0] - 1)
        order = torch.tensor([[-1.0, 1.0, 0, 0], [0, -1, 1, 0], [0, 0, -1, 1]], dtype=D)
        assert hn.check(hn.Affine(order, lower=0.0), y).ok
        assert not hn.check(hn.Affine(order, lower=0.0), y - size * torch.tensor([[0, 1e-13, 0, 0]], dtype=D)).ok
        apex = hn.SecondOrderCone(torch.eye(4, dtype=D)[:3], -y[0, :3], [0.0, 0.0, 0.0, 1.0], -y[0, 3].item())
        assert hn.check(apex, y).ok
        assert not hn.check(apex, y + size * 1e-10).ok


def test_a_value_of_g_that_is_not_finite_meets_nothing():
    inverse = hn.Nonlinear(lambda y, x: 1 / y, dim=1, lower=1.0)
    falling = hn.Nonlinear(lambda y, x: -1 / y, dim=1, upper=1.0)
    for constraint in (inverse, falling):
        assert hn.check(constraint, torch.tensor([[0.0], [0.5]], dtype=D)).satisfied.tolist() == [False, True]


def test_nonlinear_rows_are_judged_by_what_their_layer_promises():
    """Off by 1e-11 of the terms: what the method promises, so the status, the warning and the certificate agree."""
    sphere = hn.Nonlinear(lambda y, x: y.square().sum(-1, keepdim=True), dim=3, upper=1.0)
    y = torch.tensor([[1.0 + 1e-12, 0.0, 0.0], [1.0 + 1e-8, 0.0, 0.0]], dtype=D)
    found = hn.check(sphere, y)
    assert found.satisfied.tolist() == [True, False]
    assert "1e-10 of their terms" in str(found)
    assert hn.check(hn.HardNet(torch.nn.Identity(), sphere, tol=1e-6), y).ok
    assert "of their terms" not in str(hn.check(hn.Ball([0.0] * 3, 1.0), y))


def test_outputs_that_carry_gradients_are_judged_and_named():
    """A box and a row, broken: reading the tolerances of a certificate is no part of the graph of y."""
    limits = hn.Box(0.0, 1.0) & hn.Affine(torch.ones(1, 4), upper=1.0, name="budget")
    y = torch.full((3, 4), 2.0, requires_grad=True) * 1.0
    certificate = hn.check(limits, y)
    assert "worst" in str(certificate)
    assert not certificate.tolerance.requires_grad
    assert not certificate.violation.requires_grad
