"""Affine on a region: membership in a hull, rows, residual, and what it refuses."""

import pytest
import torch

from hardnet.errors import ShapeError, UnsupportedSetError
from hardnet.sets import AffineOnRegion
from hardnet.sets.affine_on_hull import in_hull
from hardnet.testing import check_set

pytestmark = pytest.mark.core

F64 = torch.float64
TRIANGLE = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]], dtype=F64)
INPUTS = torch.tensor([[0.5, 0.5], [1.0, 1.0], [1.1, 1.0], [0.0, 0.0], [-0.1, 0.5]], dtype=F64)
INSIDE = [True, True, False, True, False]


def given():
    return AffineOnRegion(TRIANGLE, torch.tensor([[1.0, -1.0]], dtype=F64), 3.0)


def test_membership_counts_the_boundary():
    assert in_hull(INPUTS, TRIANGLE).tolist() == INSIDE
    assert in_hull(INPUTS.reshape(5, 1, 2), TRIANGLE).shape == (5, 1)


def test_membership_in_a_hull_with_more_corners_than_dimensions_and_in_a_segment():
    corners = torch.cat([TRIANGLE, torch.tensor([[2.0, 2.0], [1.0, 1.0]], dtype=F64)])
    assert in_hull(INPUTS, corners).tolist() == [True, True, True, True, False]
    assert in_hull(INPUTS, TRIANGLE[:2]).tolist() == [False, False, False, True, False]


def test_only_inputs_in_the_region_are_held_to_the_map():
    violation = given().violation(torch.zeros(5, 1, dtype=F64), INPUTS)
    assert torch.allclose(violation[:, 0], torch.tensor([3.0, 3.0, 0.0, 3.0, 0.0], dtype=F64), rtol=0, atol=1e-12)


def test_contract():
    check_set(given(), torch.linspace(-1, 5, 5, dtype=F64)[:, None], INPUTS)


def test_a_learned_map_has_no_rows():
    learned = AffineOnRegion(TRIANGLE)
    assert learned.violation(torch.zeros(5, 4, dtype=F64), INPUTS).shape == (5, 0)
    assert learned.dim is None
    with pytest.raises(UnsupportedSetError, match="has no affine rows; use method='police'"):
        learned.affine(INPUTS, torch.zeros(5, 4, dtype=F64))


def test_bad_arguments_are_named():
    with pytest.raises(ShapeError, match=r"vertices: expected a constant of shape \(c, d\)"):
        AffineOnRegion(torch.zeros(3))
    with pytest.raises(ShapeError, match="got a function or parameter"):
        AffineOnRegion(lambda x: x)
    with pytest.raises(ShapeError, match=r"A: expected shape \(n, 2\), since inputs have that size, got \(1, 3\)"):
        AffineOnRegion(TRIANGLE, torch.zeros(1, 3, dtype=F64))
    with pytest.raises(ShapeError, match="A: expected a matrix where b is given"):
        AffineOnRegion(TRIANGLE, b=1.0)
    with pytest.raises(ShapeError, match=r"x: expected shape \(\*batch, 2\), as the vertices have, got NoneType"):
        given().violation(torch.zeros(1, dtype=F64))
