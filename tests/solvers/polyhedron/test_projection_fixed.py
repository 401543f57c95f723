"""The projection that never looks: what it returns holds to the certificate, also for raws just outside."""

import pytest
import torch

from hardnet.solvers import Status
from hardnet.solvers.polyhedron.problem import GENERAL
from hardnet.solvers.polyhedron.shared_rows import prepare_rows
from tests.solvers.families import solved
from tests.solvers.near import EPS, far_away, just_outside, roundings_outside


@pytest.mark.parametrize("roundings", [40.0, 200.0, 2e3, 2e4])
@pytest.mark.parametrize(("n", "m", "equalities"), [(5, 8, 0), (10, 20, 2), (40, 60, 10)])
def test_a_raw_just_outside_is_brought_inside(n, m, equalities, roundings):
    numbers = just_outside(roundings, 64, n, m, equalities=equalities)
    found = solved(*numbers, look=False, rounding=EPS)
    assert (found.status == Status.SOLVED).all()
    assert (roundings_outside(found.y, *numbers[1:]) <= GENERAL.allowed).all()


@pytest.mark.parametrize("roundings", [40.0, 200.0, 2e3, 2e4])
def test_a_raw_just_outside_constant_rows_is_brought_inside(roundings):
    numbers = just_outside(roundings, 64, 40, 60, equalities=10, shared=True)
    shared = prepare_rows(numbers[1], torch.arange(60) < 10)
    found = solved(*numbers, look=False, shared=shared, rounding=EPS)
    assert (found.status == Status.SOLVED).all()
    assert (roundings_outside(found.y, *numbers[1:]) <= GENERAL.allowed).all()


def test_a_raw_within_the_rounding_of_a_certificate_comes_back_bit_for_bit():
    raw, *rows = just_outside(1.0, 64, 10, 20)
    assert solved(raw, *rows, look=False, rounding=EPS).y.equal(raw)


def test_rows_that_are_not_met_are_told():
    """Two rows whose bounds exclude each other by 1e-13, far above a rounding and far below the residual's limit."""
    A = torch.tensor([[1.0, 0.5], [1.0, 0.5], [0.3, -0.7]], dtype=torch.float64)
    lower = torch.tensor([[1.0 + 1e-13, -torch.inf, -torch.inf]], dtype=torch.float64)
    upper = torch.tensor([[torch.inf, 1.0, 5.0]], dtype=torch.float64)
    found = solved(torch.zeros(1, 2, dtype=torch.float64), A, lower, upper, look=False, rounding=EPS)
    assert found.status.item() == Status.NOT_CONVERGED


@pytest.mark.parametrize("distance", [1.0, 1e6, 1e12, 1e14, 1e16, 1e20, 1e60, 1e150])
@pytest.mark.parametrize("shared", [False, True])
def test_a_row_that_is_violated_has_an_infinite_residual_however_far_raw_is(distance, shared):
    """Else a violation would count as small beside raw, and be returned without a word where nobody looks."""
    numbers = far_away(distance, 64, 6, 20, equalities=2, shared=shared)
    prepared = prepare_rows(numbers[1], torch.arange(20) < 2) if shared else None
    found = solved(*numbers, look=False, shared=prepared, rounding=EPS)
    met = roundings_outside(found.y, *numbers[1:]) <= GENERAL.allowed
    assert (met | found.residual.isinf()).all()
    assert ((found.status == Status.SOLVED) <= met).all()
