"""Constant rows by shared factors: the answers of the general solver, whoever may look."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from hardnet.products import align, exponent, shift_rows
from hardnet.solvers import Status
from hardnet.solvers.polyhedron import shared_rows
from hardnet.solvers.polyhedron.active import split
from hardnet.solvers.polyhedron.shared_rows import prepare, shared_vjp
from tests.draws import draw
from tests.solvers.families import F64, gaussian, solved

NO_BOUND = torch.inf


def programs(batch=40, n=40, equalities=20, inequalities=20, spread=2.0):
    """One-sided rows beside equalities whose right-hand sides differ from sample to sample."""
    C, A = draw(equalities, n, seed=1), draw(inequalities, n, seed=2)
    center = draw(batch, n, seed=3)
    b = center @ C.mT
    upper = center @ A.mT + draw(batch, inequalities, seed=4).abs()
    raw = center + spread * draw(batch, n, seed=5)
    return raw, torch.cat([A, C]), torch.cat([torch.full_like(upper, -NO_BOUND), b], 1), torch.cat([upper, b], 1)


def boxed(batch=30, n=24):
    """A box, twelve two-sided rows and six equalities."""
    raw, A, lower, upper = gaussian(batch, n, 18, equalities=6, shared=True, seed=7)
    center = raw - 3 * draw(batch, n, seed=11)
    low, high = center - 0.5 * draw(batch, n, seed=12).abs(), center + 0.5 * draw(batch, n, seed=13).abs()
    return raw, torch.cat([A, torch.eye(n, dtype=F64)]), torch.cat([lower, low], 1), torch.cat([upper, high], 1)


def repeated(batch=30):
    """Every row twice, once in other units."""
    raw, A, lower, upper = programs(batch, 30, 8, 10)
    rows = torch.cat([A, 3 * A])
    return raw, rows, torch.cat([lower, 3 * lower], 1), torch.cat([upper, 3 * upper], 1)


def degenerate(batch=30, n=12):
    """Thirty half-spaces through one point, and two equalities through it."""
    A, apex = draw(32, n, seed=20), draw(n, seed=21)
    upper = (A @ apex).expand(batch, -1)
    lower = torch.where(torch.arange(32) < 2, upper, -NO_BOUND)
    return apex + 3 * draw(batch, n, seed=22), A, lower, upper


def weakly_active(batch=30):
    """Raw outputs on the bound of their first inequality, outside of others."""
    raw, A, lower, upper = programs(batch)
    upper = upper.clone()
    upper[:, 0] = raw @ A[0]
    return raw, A, lower, upper


def sometimes_equal(batch=30):
    """A row that is an equality in every other sample, and an inequality in the rest."""
    raw, A, lower, upper = programs(batch)
    lower = lower.clone()
    lower[::2, 3] = upper[::2, 3]
    return raw, A, lower, upper


def inside(batch=30):
    """Half of the raw outputs satisfy every row."""
    raw, A, lower, upper = programs(batch)
    raw[::2] = (raw - 2.0 * draw(batch, raw.shape[-1], seed=5))[::2]
    return raw, A, lower, upper


FAMILIES = [programs, boxed, repeated, degenerate, weakly_active, sometimes_equal, inside]


def factors(A, lower, upper):
    """Prepared with its equalities; those that are given twice are too dependent, and then with none."""
    equality = (lower == upper).all(0)
    return prepare(A, equality) or prepare(A)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
@pytest.mark.parametrize("look", [True, False])
def test_it_is_the_nearest_point(family, look):
    raw, A, lower, upper = family()
    expected = solved(raw, A, lower, upper)
    found = solved(raw, A, lower, upper, look=look, shared=factors(A, lower, upper))
    assert (found.status == Status.SOLVED).all()
    assert found.residual.max() <= 1e-12
    size = 1 + raw.abs().max()
    # both are within their residual of the one nearest point, times the conditioning of the active rows
    torch.testing.assert_close(found.y, expected.y, rtol=0, atol=1e-10 * size.item())


@pytest.mark.parametrize("look", [True, False])
def test_raw_outputs_inside_keep_their_bits(look):
    raw, A, lower, upper = inside()
    found = solved(raw, A, lower, upper, look=look, shared=factors(A, lower, upper))
    kept = ((raw @ A.mT - upper).amax(-1) <= 1e-14) & ((lower - raw @ A.mT).amax(-1) <= 1e-14)
    assert kept.sum() >= 10
    assert torch.equal(found.y[kept], raw[kept])


@pytest.mark.parametrize("look", [True, False])
def test_coordinates_of_a_box_hold_exactly(look):
    raw, A, lower, upper = boxed()
    y = solved(raw, A, lower, upper, look=look, shared=factors(A, lower, upper)).y
    assert (y >= lower[:, 18:]).all()
    assert (y <= upper[:, 18:]).all()


def test_a_sample_that_is_empty_does_not_settle_without_a_look_and_is_proved_with_one():
    raw, A, lower, upper = programs()
    rows = torch.cat([A, A[:1]])
    low = torch.cat([lower, torch.full((len(raw), 1), -NO_BOUND, dtype=F64)], 1)
    high = torch.cat([upper, torch.full((len(raw), 1), NO_BOUND, dtype=F64)], 1)
    low[4, -1] = high[4, 0] + 1
    shared = prepare(rows, torch.arange(41).ge(20) & torch.arange(41).lt(40))
    looked, blind = (solved(raw, rows, low, high, look=look, shared=shared) for look in (True, False))
    others = torch.arange(len(raw)) != 4
    assert looked.status[4] == Status.INFEASIBLE
    assert blind.status[4] == Status.NOT_CONVERGED
    assert (looked.status[others] == Status.SOLVED).all()
    assert (blind.status[others] == Status.SOLVED).all()


@pytest.mark.parametrize("family", [programs, boxed, repeated], ids=lambda family: family.__name__)
@pytest.mark.parametrize("look", [True, False])
def test_the_derivative_splits_a_cotangent(family, look):
    raw, A, lower, upper = family()
    shared = factors(A, lower, upper)
    found = solved(raw, A, lower, upper, shared=shared)
    active = (found.side != 0) | (lower == upper)
    grad, unit = draw(*raw.shape, seed=9), exponent(A.abs().amax(-1))
    expected = split(align(grad), align(shift_rows(A, unit), 2), align(active))
    u, w, missed = shared_vjp(align(grad), shared, align(active), look)
    assert missed.max() <= 1e-11
    torch.testing.assert_close(u, expected[0], rtol=0, atol=1e-10)
    if family is not repeated:  # where w is unique
        torch.testing.assert_close(w, expected[1], rtol=0, atol=1e-9)


def test_dependent_equalities_are_left_alone():
    A = draw(6, 10)
    A[3] = A[0] + A[1]
    assert prepare(A, torch.ones(6, dtype=torch.bool)) is None
    assert prepare(draw(12, 10), torch.ones(12, dtype=torch.bool)) is None


@pytest.mark.parametrize("look", [True, False])
def test_blocks_of_a_gpu_are_the_same_factors(look, monkeypatch):
    monkeypatch.setitem(shared_rows.BLOCK, "cpu", 7)
    raw, A, lower, upper = programs()
    found = solved(raw, A, lower, upper, look=look, shared=factors(A, lower, upper))
    assert (found.status == Status.SOLVED).all()
    assert found.residual.max() <= 1e-12


def test_nobody_looks_where_nobody_may(monkeypatch):
    """Tensors without values refuse every look; few steps, since these are slow."""
    monkeypatch.setattr(shared_rows, "FIRST_STEPS", 2)
    monkeypatch.setattr(shared_rows, "AGAIN", ((0, 8), (2, 2)))
    monkeypatch.setitem(shared_rows.BLOCK, "cpu", 16)
    raw, A, lower, upper = programs()
    shared = factors(A, lower, upper)
    with FakeTensorMode() as mode:
        raw, A, lower, upper = (mode.from_tensor(part) for part in (raw, A, lower, upper))
        shared = type(shared)(*(mode.from_tensor(part) for part in shared))
        found = solved(raw, A, lower, upper, look=False, shared=shared)
        u, w, _ = shared_vjp(align(raw), shared, align(found.side != 0), look=False)
        with pytest.raises(DataDependentOutputException):
            bool(found.residual.max() > 0)
    assert found.y.shape == raw.shape
    assert u.shape[0] == w.shape[0] == len(raw)
