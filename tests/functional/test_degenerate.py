"""Polyhedra as operations research has them: degenerate vertices, dependent and nearly dependent rows, other units."""

import numpy as np
import pytest
import torch

import hardnet as hn
from benchmarks.structured import FAMILIES
from hardnet.functional import solve_rows
from hardnet.solvers import Status
from hardnet.structure import BoxedRows

D = torch.float64
EPS = torch.finfo(D).eps


def clean(found, raw, rows):
    """Whether the optimality conditions hold: the points of the normal cone, as the multipliers say."""
    m = rows.A.shape[0]
    dual, push = found.dual[:, :m], found.dual[:, m:]
    terms = dual.abs() @ rows.A.abs()
    size = torch.maximum(torch.maximum(raw.abs(), found.y.abs()).amax(-1), terms.amax(-1)).unsqueeze(-1)
    stationary = ((raw - found.y - dual @ rows.A - push).abs() <= 1e-12 * size).all()
    at = lambda value, bound: (value - bound).abs() <= 1e-9 * (1 + size)
    held = ((push <= 1e-12 * size) | at(found.y, rows.box_upper)) & (
        (push >= -1e-12 * size) | at(found.y, rows.box_lower)
    )
    return bool(stationary) and bool(held.all())


@pytest.mark.parametrize("n", [60, 150])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_sample_is_solved_and_certified(name, n):
    for seed in (3, 4):
        drawn = FAMILIES[name](seed, n)
        rows = BoxedRows(*drawn[:5])
        found = solve_rows(drawn.raw, rows)
        assert (found.status == int(Status.SOLVED)).all()
        assert ((found.y >= drawn.box_lower) & (found.y <= drawn.box_upper)).all()
        assert hn.check(
            hn.Box(drawn.box_lower, drawn.box_upper) & hn.Affine(drawn.A, lower=drawn.lower, upper=drawn.upper), found.y
        ).ok
        assert clean(found, drawn.raw, rows)


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_that_contradict_each_other_are_never_solved(name):
    for contradiction in (1e-2, 1e-5):
        drawn = FAMILIES[name](5, 60, contradiction)
        found = solve_rows(drawn.raw, BoxedRows(*drawn[:5]))
        assert (found.status == int(Status.INFEASIBLE)).all()


def test_a_redundant_equality_changes_no_point():
    """Doubly stochastic matrices: one of the 2k sums follows from the others."""
    k = 5
    rows = torch.cat([torch.eye(k, dtype=D).repeat_interleave(k, 1), torch.eye(k, dtype=D).repeat(1, k)])
    raw = 3 * torch.randn(40, k * k, generator=torch.Generator().manual_seed(0), dtype=D)
    one = torch.ones(2 * k, dtype=D)
    whole = solve_rows(raw, BoxedRows(rows, one, one, torch.zeros(k * k, dtype=D), None))
    part = solve_rows(raw, BoxedRows(rows[1:], one[1:], one[1:], torch.zeros(k * k, dtype=D), None))
    assert (whole.status == 0).all()
    torch.testing.assert_close(whole.y, part.y, rtol=0, atol=1e-13)


def test_the_textbook_examples_of_cycling_end():
    """Rows on which the simplex method cycles (Beale, 1955; Marshall and Suurballe, 1969), all active at the origin."""
    beale = torch.tensor([[0.25, -60.0, -0.04, 9.0], [0.5, -90.0, -0.02, 3.0], [0.0, 0.0, 1.0, 0.0]], dtype=D)
    marshall = torch.tensor([[0.5, -5.5, -2.5, 9.0], [0.5, -1.5, -0.5, 1.0], [1.0, 0.0, 0.0, 0.0]], dtype=D)
    source = torch.Generator().manual_seed(0)
    for A, cost in ((beale, [0.75, -150.0, 0.02, -6.0]), (marshall, [10.0, -57.0, -9.0, -24.0])):
        raw = 100 * torch.tensor([cost], dtype=D) + torch.randn(50, 4, generator=source, dtype=D)
        upper = torch.tensor([0.0, 0.0, 1.0], dtype=D)
        rows = BoxedRows(
            A,
            torch.full((3,), -torch.inf, dtype=D),
            upper,
            torch.zeros(4, dtype=D),
            torch.full((4,), torch.inf, dtype=D),
        )
        found = solve_rows(raw, rows)
        assert (found.status == 0).all()
        assert hn.check(hn.Box(0.0) & hn.Affine(A, upper=upper), found.y).ok
        assert clean(found, raw, rows)


@pytest.mark.parametrize("gap", [1e-3, 1e-8, 1e-12])
def test_nearly_parallel_equalities_with_a_common_point_are_solved(gap):
    source = np.random.default_rng(7)
    for _ in range(10):
        inside, a, d = source.normal(size=(3, 12))
        A = torch.from_numpy(np.stack([a, a + gap * d, 2 * a - gap * d]))
        value = A @ torch.from_numpy(inside)
        box = torch.from_numpy(inside - 1), torch.from_numpy(inside + 1)
        raw = torch.from_numpy(inside + 20 * source.normal(size=(6, 12)))
        found = solve_rows(raw, BoxedRows(A, value, value, *box))
        assert (found.status == 0).all()
        assert hn.check(hn.Box(*box) & hn.Equality(A, value), found.y).ok
