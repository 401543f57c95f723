"""A box and a few rows: against brute force, the general solver, and certificates."""

import itertools
from fractions import Fraction

import pytest
import torch

from hardnet.solvers import Status, project_affine, project_box_rows
from tests.solvers.box_families import KINDS, D, box_family, dense_rows

EPS = torch.finfo(D).eps


def rows_miss(y, A, lower, upper):
    """Violation of rows in roundings of their size."""
    product = (A * y[:, None]).sum(-1)
    size = A.abs().sum(-1) * y.abs().amax(-1, keepdim=True) + lower.abs() + upper.abs()
    return torch.maximum(product - upper, lower - product) / (EPS * size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("k", "n"), [(1, 7), (3, 9)])
def test_agrees_with_dense_rows(kind, k, n):
    raw, A, lower, upper, low, high = box_family(kind, 60, k, n)
    found = project_box_rows(raw, A, lower, upper, low, high)
    solved = found.status == Status.SOLVED
    assert not bool((found.status == Status.INFEASIBLE).any())
    # degenerate corners may be left open where k > 1; whoever calls in eager mode sends them on
    assert solved.sum() >= (60 if k == 1 else 50)
    y = found.y[solved]
    assert bool(((y >= low[solved]) & (y <= high[solved])).all())
    assert rows_miss(y, A[solved], lower[solved], upper[solved]).max() <= 16
    dense = project_affine(raw, *dense_rows(A, lower, upper, low, high))
    both = solved & (dense.status == Status.SOLVED)
    assert both.sum() > 40
    # both solvers are backward stable: off by roundings of raw times the condition of the active rows
    error = (found.y - dense.y)[both].abs().amax(-1) / raw[both].abs().amax(-1)
    assert error.max() <= 1e-9


def exact_one_row(raw, a, b, low, high):
    """The projection onto ``a'y = b`` in a box in rational arithmetic: which coordinates are at which bound."""
    best = None
    for places in itertools.product((-1, 0, 1), repeat=len(raw)):
        free = [i for i, place in enumerate(places) if place == 0]
        y = [low[i] if place < 0 else high[i] for i, place in enumerate(places)]
        rest = b - sum(a[i] * y[i] for i in range(len(raw)) if places[i])
        square = sum(a[i] ** 2 for i in free)
        if square == 0:
            if rest != 0:
                continue
            for i in free:
                y[i] = raw[i]
        else:
            dual = (sum(a[i] * raw[i] for i in free) - rest) / square
            for i in free:
                y[i] = raw[i] - dual * a[i]
        if all(low[i] <= y[i] <= high[i] for i in range(len(raw))):
            distance = sum((y[i] - raw[i]) ** 2 for i in range(len(raw)))
            best = min(best, (distance, y)) if best else (distance, y)
    return best


def test_one_equality_in_rational_arithmetic():
    raw, A, _, _, low, high = box_family("plain", 12, 1, 4)
    a = A[:, 0]
    b = (a * (0.3 * low + 0.7 * high)).sum(-1)
    found = project_box_rows(raw, A, b[:, None], b[:, None], low, high)
    for i in range(12):
        exact = [[Fraction(float(number)) for number in part[i]] for part in (raw, a, low, high)]
        _, y = exact_one_row(exact[0], exact[1], Fraction(float(b[i])), exact[2], exact[3])
        assert max(abs(Fraction(float(value)) - want) for value, want in zip(found.y[i], y, strict=True)) < 64 * EPS


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("unit", [1e-150, 1e-30, 1e30, 1e150])
def test_units_do_not_matter(k, unit):
    raw, A, lower, upper, low, high = box_family("plain", 40, k, 6, seed=3)
    y = project_box_rows(raw, A, lower, upper, low, high).y
    scaled = project_box_rows(raw * unit, A, lower * unit, upper * unit, low * unit, high * unit).y
    assert (scaled / unit - y).abs().max() <= 1e-12
    rows = project_box_rows(raw, A * unit, lower * unit, upper * unit, low, high).y
    assert (rows - y).abs().max() <= 1e-12


def test_a_row_out_of_reach_of_the_box_is_infeasible_and_the_border_is_not():
    raw, low, high = box_family("plain", 3, 1, 5)[0], torch.zeros(5, dtype=D), torch.full((5,), 0.2, dtype=D)
    total = high.sum() * torch.tensor([[1.0], [1 + 1e-12], [-1e-12]], dtype=D)
    found = project_box_rows(raw, torch.ones(1, 5, dtype=D), total, total, low, high)
    assert found.status.tolist() == [Status.SOLVED, Status.INFEASIBLE, Status.INFEASIBLE]
    assert found.dual[1:, 0].sign().tolist() == [-1, 1]
    assert (found.y[0] - high).abs().max() <= 8 * EPS


def test_what_is_called_empty_is_empty():
    raw, A, lower, upper, low, high = box_family("plain", 200, 3, 5, seed=1)
    shift = torch.randn(200, 3, generator=torch.Generator().manual_seed(2), dtype=D)
    found = project_box_rows(raw, A, lower + shift, upper + shift, low, high)
    dense = project_affine(raw, *dense_rows(A, lower + shift, upper + shift, low, high))
    empty = found.status == Status.INFEASIBLE
    assert empty.sum() > 20
    assert bool((dense.status[empty] == Status.INFEASIBLE).all())
    assert bool((dense.status[found.status == Status.SOLVED] == Status.SOLVED).all())
    v, A, low, high = found.dual[empty], A[empty], low[empty], high[empty]
    slope = (A * v[..., None]).sum(-2)
    least = torch.where(slope > 0, slope * low, slope * high).sum(-1)
    most = torch.where(v > 0, v * (upper + shift)[empty], v * (lower + shift)[empty]).sum(-1)
    assert bool((least > most).all())


def test_inside_comes_back_bit_for_bit_and_invalid_samples_alone_are_nan():
    raw, A, lower, upper, low, high = box_family("plain", 30, 2, 6)
    inside = project_box_rows(raw, A, lower, upper, low, high).y
    again = project_box_rows(inside, A, lower, upper, low, high)
    assert torch.equal(again.y, inside)
    raw = raw.clone()
    raw[3, 1], A[5, 0, 0] = torch.nan, torch.inf
    low = low.clone()
    low[7, 2] = high[7, 2] + 1
    found = project_box_rows(raw, A, lower, upper, low, high)
    bad = torch.tensor([3, 5, 7])
    assert (found.status == Status.INVALID).nonzero().squeeze(-1).tolist() == bad.tolist()
    good = torch.ones(30, dtype=torch.bool).index_fill(0, bad, False)
    assert torch.equal(found.y[good], inside[good])
    assert bool(found.y[bad].isnan().all())
