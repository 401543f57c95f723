"""The set of nonlinear rows: bounds, names, certificates, scaled units, what it refuses."""

import pytest
import torch

import hardnet as hn
from hardnet.errors import BoundsError, DTypeError, ShapeError
from hardnet.testing import check_set
from tests.nonlinear_problems import F64, column, real, sphere


def test_it_judges_like_every_set():
    constraint = hn.Nonlinear(sphere, dim=2, lower=-0.5, upper=0.5, name="ring") & hn.Box(real([-1.0, -1.0]), 2.0)
    y = real([[0.6, 0.8], [2.0, 2.0], [0.0, 0.5]])
    check_set(constraint, y)
    certificate = hn.check(constraint, y)
    assert certificate.satisfied.tolist() == [True, False, False]
    assert certificate.by_name()["ring"].violation == 6.5
    torch.testing.assert_close(constraint.violation(y)[:, 0], real([0.0, 6.5, 0.25]))


def test_bounds_may_be_numbers_vectors_and_functions_of_x():
    x = torch.ones(3, 3, dtype=F64)
    for lower in (0.0, [0.0] * 6, torch.zeros(6, dtype=F64), lambda x: torch.zeros(len(x), 6, dtype=F64)):
        rows = hn.Nonlinear(column, dim=9, lower=lower, upper=0.0)
        assert rows.violation(torch.ones(3, 9, dtype=F64), x).shape == (3, 6)
    like = x.new_zeros(3, 9)
    assert rows.row_names(rows.numbers(x, like), like)[5] == "Nonlinear[5]"


def test_scaled_units():
    mean, std = real([1.0, -2.0]), real([2.0, 0.5])
    slope = lambda y, x: 2 * y.unsqueeze(-2)
    for jacobian in (None, slope):
        plain = hn.Nonlinear(sphere, dim=2, lower=0.0, upper=0.0, jacobian=jacobian)
        scaled = hn.scaled(plain, mean, std)
        z = hn.layers.NonlinearLayer(scaled)(real([[0.3, 4.0], [2.0, -1.0]]))
        assert hn.check(scaled, z).ok
        assert hn.check(plain, mean + std * z, tolerance=1e-12).ok


def test_what_it_refuses():
    with pytest.raises(ShapeError, match="lower, upper: expected at least one bound"):
        hn.Nonlinear(sphere, dim=2)
    with pytest.raises(DTypeError, match="g: expected a function"):
        hn.Nonlinear(3.0, dim=2, upper=0.0)
    with pytest.raises(ShapeError, match="dim: expected the number of outputs"):
        hn.Nonlinear(sphere, dim=0, upper=0.0)
    with pytest.raises(BoundsError, match="lower > upper"):
        hn.Nonlinear(sphere, dim=2, lower=1.0, upper=0.0)
    with pytest.raises(ShapeError, match="upper"):
        hn.Nonlinear(sphere, dim=2, upper=[1.0, 2.0]).violation(torch.zeros(3, 2, dtype=F64))
