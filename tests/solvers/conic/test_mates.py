"""Curved sets: a sample's bits do not depend on its mates, and what is called solved passes the certificate."""

import pytest
import torch

import hardnet as hn
from hardnet.functional.quadratic import diagonalize
from hardnet.products import gram, product_each
from hardnet.solvers import Status
from hardnet.solvers.algebra.small import ascending
from tests.draws import F64, draw

ORDERS = [1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 17]
EPS = 2.0**-52


def symmetric(count, k, seed=0):
    X = draw(count, k, k, seed=seed)
    X = X + X.mT
    X[::3, 0] = X[::3, :, 0] = 0
    X[1] = 0
    return X


@pytest.mark.parametrize("k", ORDERS)
@pytest.mark.parametrize("exponent", [0, -480, 480])
def test_eigenvalues_in_ascending_order(k, exponent):
    X = symmetric(12, k) * 2.0**exponent
    values, V = ascending(X)
    norm = torch.linalg.matrix_norm(symmetric(12, k), 2).amax() * 2.0**exponent
    # backward stable: a modest multiple of k roundings of the norm, here that of the filled matrix, twice as large
    assert ((V * values.unsqueeze(-2)) @ V.mT - X).abs().amax() <= 32 * k * EPS * norm
    assert (V.mT @ V - torch.eye(k, dtype=F64)).abs().amax() <= 32 * k * EPS
    assert (values.diff(dim=-1) >= 0).all()


@pytest.mark.parametrize("k", ORDERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("function", [ascending, diagonalize])
def test_a_matrix_has_the_same_eigenvectors_at_any_place(function, k, dtype):
    for seed in range(4):
        X = symmetric(24, k, seed).to(dtype)
        whole = function(X)
        for place in range(24):
            for all_, one in zip(whole, function(X[place : place + 1]), strict=True):
                assert torch.equal(all_[place], one[0])


def matrix_and_ball(k, n):
    F = draw(n, k, k, seed=k)
    return hn.LMI(torch.eye(k, dtype=F64), (F + F.mT) / 2) & hn.Ball(torch.zeros(n, dtype=F64), 2.0)


def matrix_of_samples(k, n, count):
    F = draw(count, n, k, k, seed=k)
    return hn.LMI(torch.eye(k, dtype=F64), lambda x: ((F + F.mT) / 2)[x])


@pytest.mark.parametrize("far", [3.0, 1e10])
@pytest.mark.parametrize("k", [3, 5, 7])
def test_bad_mates_change_no_bit_of_a_matrix_inequality(k, far):
    raw, n, places = far * draw(24, 4, seed=3), 4, torch.arange(24)
    spoilt, kept = raw.clone(), torch.arange(24) % 3 == 1
    spoilt[::3] = torch.nan
    spoilt[2::3] = 0.0
    for constraint in (matrix_and_ball(k, n), matrix_of_samples(k, n, 24)):
        layer = hn.layers.HardNetCvx(constraint, on_invalid="nan")
        y = layer(raw, places)
        assert torch.equal(layer(spoilt, places)[kept], y[kept])
        assert torch.equal(layer(raw[kept], places[kept]), y[kept])


def touching(seed, slack, n=2):
    """A ball, a box and a line that share a point z, and little more than it."""
    z, side, line = draw(n, seed=seed), draw(n, seed=seed + 1), draw(1, n, seed=seed + 2)
    side = side / side.norm()
    ball = hn.Ball(z - side * (1 - slack), 1.0)
    box = hn.Box(z - draw(n, seed=seed + 3).abs(), z + torch.tensor([slack, 1.0], dtype=F64))
    return ball & box & hn.Equality(line, line @ z)


@pytest.mark.parametrize("slack", [1e-6, 1e-9, 1e-12, 0.0])
def test_what_is_solved_passes_the_certificate(slack):
    """Sets of nearly one point leave no room to step inwards; then no answer is called solved."""
    solved = 0
    for seed in range(0, 300, 10):
        constraint, raw = touching(seed, slack), draw(12, 2, seed=seed + 4)
        layer = hn.layers.HardNetCvx(constraint)
        found = layer.solve(raw)
        good = found.status == Status.SOLVED
        solved += int(good.sum())
        assert hn.check(constraint, found.y[good]).ok
        open_ = found.status == Status.NOT_CONVERGED
        if bool(open_.any()):
            with pytest.raises(hn.errors.ConvergenceError) as caught:
                hn.layers.HardNetCvx(constraint, on_infeasible="nan")(raw)
            assert caught.value.samples == open_.nonzero().squeeze(-1).tolist()
        y = hn.layers.HardNetCvx(constraint, on_infeasible="nan", on_unsolved="nan")(raw)
        assert y[open_].isnan().all()
        assert torch.equal(y[good], found.y[good])
    assert solved >= 100 or slack == 0.0


@pytest.mark.parametrize(("k", "n"), [(3, 4), (9, 12), (16, 20), (24, 10)])
def test_matrix_inequalities_of_every_order_are_solved_and_certified(k, n):
    """An eigenvalue below zero spreads over all entries: each may be rounding while the eigenvalue is not."""
    F, raw = draw(n, k, k, seed=1), 3 * draw(64, n, seed=2)
    constraint = hn.LMI(torch.eye(k, dtype=F64), F + F.mT)
    found = constraint.solve(raw)
    assert (found.status == Status.SOLVED).all()
    assert hn.check(constraint, found.y).ok


@pytest.mark.parametrize("n", [3, 5, 8, 9])
@pytest.mark.parametrize("m", [1, 7, 25])
def test_products_have_the_same_bits_at_any_place(m, n):
    rows, weight = draw(12, m, n), draw(12, m, seed=1)
    whole, right = gram(rows, weight), draw(12, n, n, seed=2)
    moved = product_each(rows, right)
    # the error of a sum of m products, whatever their order
    assert (
        (whole - rows.mT @ (weight.unsqueeze(-1) * rows)).abs() <= 4 * m * EPS * gram(rows.abs(), weight.abs())
    ).all()
    assert ((moved - rows @ right).abs() <= 4 * n * EPS * (rows.abs() @ right.abs())).all()
    for place in range(12):
        one = slice(place, place + 1)
        assert torch.equal(gram(rows[one], weight[one])[0], whole[place])
        assert torch.equal(product_each(rows[one], right[one])[0], moved[place])
    assert torch.equal(gram(rows), gram(rows, torch.ones_like(weight)))
