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
    for wrong in (model, y, None):
        with pytest.raises(hn.errors.DTypeError, match=f"constraint: expected a set, got {type(wrong).__name__}"):
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
