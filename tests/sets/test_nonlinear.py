"""The set of nonlinear rows: bounds, names, certificates, scaled units, what it refuses."""

import pytest
import torch

import hardnet as hn
from hardnet.errors import BoundsError, DTypeError, ShapeError
from hardnet.testing import check_set
from tests.nonlinear_problems import F64, column, real, sphere, torus


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


def test_existence_of_an_exact_solution_on_a_sphere():
    """Hessian 2 I; from a point of length s outside the theorem always applies, inside from s = sqrt(1/2) on."""
    lengths = real([3.0, 1.5, 1.001, 1.0, 0.999, 0.72, 0.70, 0.1])
    y = lengths.unsqueeze(-1) * real([0.6, 0.8])
    found = hn.Nonlinear(sphere, dim=2, lower=0.0, upper=0.0).existence(y, second_derivative=2.0)
    assert found.proven.tolist() == [True] * 6 + [False] * 2
    distance = (lengths - 1).abs()
    assert (found.radius >= distance).all()
    assert (found.radius[2:5] <= 1.01 * distance[2:5] + 1e-13).all()
    assert found.radius[6:].isinf().all()
    single = hn.Nonlinear(sphere, dim=2, lower=0.0, upper=0.0).existence(y.float()[2:3], second_derivative=[2.0])
    assert single.proven.all()


def test_existence_on_a_torus_and_beside_a_row_that_holds():
    generator = torch.Generator().manual_seed(0)
    angle = 6.3 * torch.rand(50, 2, generator=generator, dtype=F64)
    away = 0.02 * torch.randn(50, generator=generator, dtype=F64)
    across = 2 + (0.5 + away) * angle[:, 1].cos()
    y = torch.stack([across * angle[:, 0].cos(), across * angle[:, 0].sin(), (0.5 + away) * angle[:, 1].sin()], dim=-1)
    found = hn.Nonlinear(torus, dim=3, lower=0.0, upper=0.0).existence(y, second_derivative=2.0)  # for radii above 1
    assert found.proven.all()
    assert (found.radius >= away.abs() - 1e-14).all()
    assert (found.radius <= 1.1 * away.abs() + 1e-13).all()
    both = lambda y, x: torch.cat([torus(y, x), y[..., 2:]], dim=-1)
    bounds = {"lower": real([0.0, -torch.inf]), "upper": real([0.0, 1.0])}
    assert hn.Nonlinear(both, dim=3, **bounds).existence(y, second_derivative=[2.0, 0.0]).proven.all()
    bounds["upper"] = real([0.0, 0.3])  # some of the points are above
    some = hn.Nonlinear(both, dim=3, **bounds).existence(y, second_derivative=[2.0, 0.0])
    assert not some.proven[(y[:, 2] > 0.4) & (away.abs() < 0.02)].any()


def test_existence_is_refused_where_there_is_no_solution():
    y = real([[1.0, 2.0], [0.0, 0.0], [1e-9, 0.0], [torch.nan, 1.0]])
    nothing = hn.Nonlinear(lambda y, x: sphere(y, x) + 2, dim=2, lower=0.0, upper=0.0)
    assert not nothing.existence(y, second_derivative=2.0).proven.any()
    # |y|^2 <= -1e-13 is violated by less than rounding of larger terms at 0, and is empty all the same
    nearly = hn.Nonlinear(lambda y, x: y.square().sum(-1, keepdim=True), dim=2, lower=-1e-13, upper=-1e-13)
    assert not nearly.existence(y, second_derivative=2.0).proven.any()
    with pytest.raises(ShapeError, match="second_derivative"):
        nothing.existence(y, second_derivative=[2.0, 1.0, 1.0])
    with pytest.raises(ShapeError, match="second_derivative"):
        nothing.existence(y, second_derivative=-1.0)


@pytest.mark.parametrize("g", [lambda y: y, lambda: 0, torch.nn.Linear(2, 1)], ids=["y", "nothing", "module of y"])
def test_a_function_of_other_arguments_is_refused_when_the_set_is_built(g):
    with pytest.raises(DTypeError, match=r"g: expected a function of two arguments, \(y, x\), got one of"):
        hn.Nonlinear(g, dim=2, upper=0.0)


def test_one_number_per_sample_without_its_row_is_told_the_slip():
    flat = hn.Nonlinear(lambda y, x: y.sum(-1), dim=2, upper=0.0)
    with pytest.raises(ShapeError, match=r"for one entry per sample add \.unsqueeze\(-1\)$"):
        hn.HardNet(torch.nn.Linear(3, 2), flat)(torch.ones(4, 3))
