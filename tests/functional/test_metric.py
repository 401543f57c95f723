"""The nearest point in a metric, however badly scaled: rows pass the certificate, and no feasible point is nearer."""

from fractions import Fraction

import pytest
import torch

import hardnet as hn
from hardnet.errors import OptionError
from hardnet.functional import project_affine
from hardnet.solvers import Status
from tests.draws import draw

D = torch.float64
EPS = torch.finfo(D).eps
N = 5


def spread(kind, samples, n, decades, seed):
    """W for each sample with eigenvalues from 1 to ``10^decades``: on the diagonal, or in random directions."""
    values = 10 ** torch.linspace(0, decades, n, dtype=D).expand(samples, n)
    if kind == "diagonal":
        return values
    Q = torch.linalg.qr(draw(samples, n, n, seed=seed))[0]
    W = (Q * values.unsqueeze(-2)) @ Q.mT
    return (W + W.mT) / 2


def members(seed):
    """Polyhedra around one point, with or without an interior."""
    A, center = draw(9, N, seed=seed), draw(N, seed=seed + 1)
    value = A @ center
    return {
        "equalities": hn.Equality(A[:3], value[:3]),
        "more rows": hn.Affine(A, upper=value + 0.5),
        "two-sided rows": hn.Affine(A[:6], lower=value[:6] - 0.1, upper=value[:6] + 0.1),
        "box and equality": hn.Box(center - 0.5, center + 0.5) & hn.Equality(A[:2], value[:2]),
        "simplex": hn.Simplex(N),
    }


@pytest.mark.parametrize("decades", [0, 4, 8, 12])
@pytest.mark.parametrize("kind", ["diagonal", "matrix"])
@pytest.mark.parametrize("name", members(0))
@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
def test_rows_hold_to_the_certificate_whatever_the_condition_of_the_metric(name, kind, decades, unit):
    constraint, raw = members(decades)[name], 3 * draw(64, N, seed=7)
    W = unit * spread(kind, 64, N, decades, seed=8)
    layer = hn.layers.Projection(constraint, metric=lambda _: W)
    x = raw[:, :1]
    found = layer.solve(raw, x)
    assert hn.check(constraint, layer(raw, x)).ok
    assert (found.status == int(Status.SOLVED)).all()
    assert hn.check(constraint, found.y).ok


@pytest.mark.parametrize("exponent", [-300, -100, -30, -16, 0, 16, 30, 100, 300])
def test_an_equality_is_met_by_whoever_is_cheapest(exponent):
    """``y_j = raw_j - (sum raw - 1) / W_j / sum 1/W`` in rationals, to rounding of the largest output."""
    raw = 3 * draw(16, 4, seed=1)
    W = torch.tensor([1.0, 10.0**exponent, 1.0, 2.0], dtype=D)
    y = project_affine(raw, torch.ones(1, 4, dtype=D), *(torch.ones(1, dtype=D),) * 2, metric=W)
    inverse = [1 / Fraction(w) for w in W.tolist()]
    for point, answer in zip(raw.tolist(), y.tolist(), strict=True):
        excess = sum(map(Fraction, point)) - 1
        exact = [Fraction(r) - excess * w / sum(inverse) for r, w in zip(point, inverse, strict=True)]
        size = max(map(abs, point)) + abs(excess)
        # n terms of the sum, the correction and its sum again
        assert all(abs(a - e) <= 16 * EPS * size for a, e in zip(map(Fraction, answer), exact, strict=True))


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, 0.0, -1.0])
@pytest.mark.parametrize("kind", ["diagonal", "matrix"])
@pytest.mark.parametrize("rows", [1, 9])
def test_a_number_that_no_metric_has_is_refused_for_its_sample_alone(wrong, kind, rows):
    A, raw, W = draw(rows, N, seed=2), 3 * draw(6, N, seed=3), spread(kind, 6, N, 1, seed=4).clone()
    upper = torch.zeros(rows, dtype=D)
    good = project_affine(raw, A, upper=upper, metric=W)
    W[(2, 1) if kind == "diagonal" else (2, 1, 1)] = wrong
    with pytest.raises(OptionError, match=r"metric: expected positive.*in sample 2"):
        project_affine(raw, A, upper=upper, metric=W)
    y = project_affine(raw, A, upper=upper, metric=W, on_invalid="nan")
    mates = [0, 1, 3, 4, 5]
    assert y[2].isnan().all()
    assert torch.equal(y[mates], good[mates])


def test_numbers_near_the_largest_are_a_metric():
    """The sum of a matrix of 1e308 and its transpose overflows."""
    W = torch.diag(torch.tensor([1.0, 1e308], dtype=D))
    raw, A = draw(8, 2, seed=5), torch.ones(1, 2, dtype=D)
    y = project_affine(raw, A, *(torch.zeros(1, dtype=D),) * 2, metric=W)
    assert (y[:, 1] - raw[:, 1]).abs().max() <= 4 * EPS * raw.abs().max()
    assert (y.sum(-1)).abs().max() <= 4 * EPS * raw.abs().max()


def test_what_is_not_met_is_said():
    """A metric beyond float64 may leave rows violated: an error, or NaN where no value may be read."""
    A, raw = draw(7, 4, seed=6), 3 * draw(64, 4, seed=7)
    upper = torch.ones(7, dtype=D)
    W = torch.tensor([1.0, 1e-300, 1.0, 1.0], dtype=D)
    constraint = hn.Affine(A, upper=upper)
    layer = hn.layers.Projection(constraint, metric=W)
    with pytest.raises(hn.errors.ConvergenceError) as caught:
        layer(raw)
    last = hn.layers.Projection(constraint, metric=W, on_unsolved="best")(raw)
    held = hn.check(constraint, last).satisfied
    assert torch.equal(layer.solve(raw).status == int(Status.SOLVED), held)
    assert caught.value.samples == (~held).nonzero().squeeze(-1).tolist()
    without_a_look = torch.func.vmap(layer)(raw)
    assert (hn.check(constraint, without_a_look).satisfied | without_a_look.isnan().any(-1)).all()
