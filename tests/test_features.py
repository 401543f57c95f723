"""What a network sees of its constraint: directions and distances, whatever the units of the rows."""

import pytest
import torch

import hardnet as hn
from hardnet.features import FAR_FEATURE
from tests.cases import ball_of_x, cone, constant_rows, giving_way, matrix_inequality, moving_rows, quadratic
from tests.draws import draw

D = torch.float64


def test_rows_of_x_are_unit_rows_and_distances():
    x = draw(5, 4, seed=1)
    point = draw(4, seed=2)
    found = hn.features(moving_rows(), x, at=point)
    rows = moving_rows().affine(x, point.expand(5, 4))
    length = rows.A.norm(dim=-1)
    distance = (rows.upper - rows.A @ point) / length
    expected = torch.cat([distance.asinh(), (rows.A / length.unsqueeze(-1)).flatten(1)], dim=-1)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_the_units_of_a_row_do_not_matter(scale):
    x = draw(5, 4, seed=1)
    constraint = hn.Affine(lambda x: scale * x.unsqueeze(-2), lower=lambda x: -scale * x[..., :1].abs(), upper=scale)
    one = hn.Affine(lambda x: x.unsqueeze(-2), lower=lambda x: -x[..., :1].abs(), upper=1.0)
    at = torch.zeros(4, dtype=D)
    assert torch.allclose(hn.features(constraint, x, at), hn.features(one, x, at), rtol=1e-12, atol=0)


def test_constant_rows_say_only_their_distances_and_equalities_one():
    x = draw(3, 2, seed=1)
    assert hn.features(constant_rows(), x).shape == (3, 4)  # two rows, two sides
    assert hn.features(hn.Equality(draw(2, 4, seed=3), lambda x: x), x).shape == (3, 2)
    assert hn.features(hn.Simplex(4), x).shape == (3, 5)
    box = hn.features(hn.Box([0.0, -1.0], [1.0, float("inf")]), x, at=0.25)
    expected = torch.tensor([0.25, 1.25, 0.75, FAR_FEATURE], dtype=D).asinh()
    assert torch.allclose(box, expected.expand(3, 4), rtol=0, atol=1e-12)


def test_a_union_shows_each_piece():
    one, other, x = moving_rows(), ball_of_x(), draw(5, 4, seed=1)
    expected = torch.cat([hn.features(part, x, at=torch.ones(4, dtype=D)) for part in (one, other)], dim=-1)
    assert torch.equal(hn.features(one | other, x, at=torch.ones(4, dtype=D)), expected)


@pytest.mark.parametrize("make", [ball_of_x, quadratic, cone, matrix_inequality])
def test_curved_sets_are_seen_as_their_tangents(make):
    """To first order, a step of length t along the unit row shortens the distance by t."""
    constraint = make()
    n = constraint.dim
    x, p = draw(4, 4, seed=1), 2 * draw(4, n, seed=2)
    found = hn.features(constraint, x, at=p)
    unit, distance = found[..., :n], found[..., n:].sinh()
    assert torch.allclose(unit.norm(dim=-1), torch.ones(4, dtype=D), rtol=0, atol=1e-12)
    step = 1e-6
    moved = hn.features(constraint, x, at=p + step * unit)
    change = (moved[..., n:].sinh() * 1 - distance) / step
    assert (change < 0).all()
    outside = constraint.violation(p, x) > 0
    assert torch.equal(distance < 0, outside)


def test_gradients_flow_to_x_and_point():
    x = draw(3, 4, seed=1).requires_grad_()
    for constraint in (moving_rows(), ball_of_x(), giving_way()):
        assert torch.autograd.gradcheck(lambda x, own=constraint: hn.features(own, x, at=lambda x: 2 * x), x)
    with torch.no_grad():
        assert not hn.features(ball_of_x(), x).requires_grad


def test_intersections_are_joined_and_batches_of_any_rank():
    constraint = moving_rows() & hn.Box(-1.0, 1.0) & ball_of_x()
    x = draw(2, 3, 4, seed=1)
    parts = [hn.features(part, x, at=torch.zeros(4, dtype=D)) for part in constraint.parts]
    assert torch.equal(hn.features(constraint, x), torch.cat(parts, dim=-1))
    assert hn.features(constraint, x).shape[:-1] == (2, 3)
    assert hn.features(constraint, x).isfinite().all()


def test_what_cannot_be_seen_is_refused():
    x = draw(3, 4, seed=1)
    with pytest.raises(hn.errors.UnsupportedSetError, match="Smooth"):
        hn.features(hn.sets.Smooth(4, lambda y, x: y), x)
    with pytest.raises(hn.errors.ShapeError, match="number of outputs"):
        hn.features(hn.Box(0.0, 1.0), x)
    with pytest.raises(hn.errors.ShapeError, match="floating-point"):
        hn.features(hn.Simplex(4), None)
