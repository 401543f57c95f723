"""The least slack and the nearest point that has it, against an interior point method."""

import pytest
import torch

import hardnet as hn
from hardnet.products import times_aligned
from hardnet.solvers import Status
from hardnet.solvers.polyhedron.relaxed import KNOWN, Rows, relax
from tests.solvers.oracles import two_stages


def contradicting(seed, n, m, batch=3, unit=1.0):
    """Rows of random length around random levels, out of reach of each other or of the unit cube; last n rows hard."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    A = torch.cat([draw(batch, m, n), torch.eye(n, dtype=torch.float64).expand(batch, n, n)], dim=-2)
    middle, width = 2 * draw(batch, m), draw(batch, m).abs()
    lower = torch.cat([middle - width, -torch.ones(batch, n, dtype=torch.float64)], dim=-1)
    upper = torch.cat([middle + width, torch.ones(batch, n, dtype=torch.float64)], dim=-1)
    lower[:, 0] = -torch.inf
    weight = torch.cat([0.1 + 3 * draw(m).abs(), torch.zeros(n, dtype=torch.float64)]).expand(batch, -1)
    return unit * 2 * draw(batch, n), A, unit * lower, unit * upper, weight


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize(("n", "m"), [(1, 2), (2, 3), (3, 2), (4, 7)])
def test_both_stages_agree_with_an_interior_point_method(n, m, unit):
    raw, A, lower, upper, weight = contradicting(10 * n + m, n, m, unit=unit)
    rows, length = Rows.of_unit_length(A, lower, upper, weight)
    found = relax(raw, rows)
    assert (found.status == Status.SOLVED).all()
    for i in range(len(raw)):
        slack, y = two_stages(*(part[i] / unit for part in (raw, A * unit, lower, upper)), weight[i])
        assert torch.allclose((found.slack * length)[i] / unit, slack, rtol=0, atol=1e-6)  # Clarabel's own tolerance
        assert torch.allclose(found.y[i] / unit, y, rtol=0, atol=1e-4)  # it moves y by the root of its tolerance
    product = times_aligned(rows.A, found.y) + found.slack
    assert (product - product.clamp(rows.lower, rows.upper)).abs().max() <= 1e-13 * unit


@pytest.mark.parametrize("gap", [1e-12, 1e-10, 1e-7, 1e-3, 1e3, 1e9])
def test_small_and_large_gaps(gap):
    """``y >= gap`` and ``y <= 0`` share the gap evenly, whatever its size beside the other coordinate of size 1."""
    A = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]], dtype=torch.float64)
    upper = torch.tensor([[0.0, -gap]], dtype=torch.float64)
    rows, _ = Rows.of_unit_length(A, torch.full_like(upper, -torch.inf), upper, torch.ones_like(upper))
    found = relax(torch.tensor([[0.3, 1.0]], dtype=torch.float64), rows)
    if found.status[0] == Status.SOLVED:
        assert torch.allclose(found.slack, torch.full_like(upper, -gap / 2), rtol=1e-6, atol=1e-15)
        assert torch.allclose(found.y, torch.tensor([[gap / 2, 1.0]], dtype=torch.float64), rtol=1e-9, atol=1e-15)
    else:
        assert gap < 1e-11  # below what makes a row strictly active


def test_many_rows_through_one_point_and_duplicates():
    """Degenerate: every row twice, and rows that touch the answer without a multiplier."""
    one = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    A = torch.cat([one, one, torch.eye(2, dtype=torch.float64)])[None]
    lower = torch.tensor([[4.0, 1.0, 1.0, 4.0, 1.0, 1.0, -1.0, -1.0]], dtype=torch.float64)
    upper = torch.tensor([[torch.inf] * 6 + [1.0, 1.0]], dtype=torch.float64)
    weight = torch.tensor([[1.0] * 6 + [0.0] * 2], dtype=torch.float64)
    rows, length = Rows.of_unit_length(A, lower, upper, weight)
    found = relax(torch.tensor([[-3.0, 0.5]], dtype=torch.float64), rows)
    assert found.status[0] == Status.SOLVED
    assert torch.allclose(found.y, torch.ones(1, 2, dtype=torch.float64), rtol=0, atol=1e-12)
    expected = torch.tensor([[2.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(found.slack * length, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("start", [[100.0, -100.0, -100.0, 0.0], [0.0, 0.0, 0.0, 0.0], [-300.0, 50.0, 20.0, 700.0]])
def test_an_equality_may_hold_from_either_side_wherever_the_search_starts(start):
    """Hard equalities at a corner of the limits: the least slack is the same from every start, its answer included."""
    A = torch.tensor([[0, 2, -2, 1], [-1, -1, -2, -1], [-2, 2, 1, -1], [-1, 1, -1, 2], [0, 1, 0, 0]]).double()
    A = torch.cat([A, torch.eye(4, dtype=torch.float64)])[None]
    lower = torch.tensor([[-300.0, -600, -700, -100, -100, -100, -100, -100, -100]], dtype=torch.float64)
    upper = torch.tensor([[-100.0, -200, -500, -100, -100, 100, 100, 100, 100]], dtype=torch.float64)
    weight = torch.tensor([[1.0] * 2 + [0.0] * 7], dtype=torch.float64)
    rows, length = Rows.of_unit_length(A, lower, upper, weight)
    found = relax(torch.tensor([start], dtype=torch.float64), rows)
    assert found.status[0] == Status.SOLVED
    expected = torch.tensor([[-100.0, -400] + [0.0] * 7], dtype=torch.float64)
    assert torch.allclose(found.slack * length, expected, rtol=0, atol=1e-10)


def test_hard_rows_that_contradict_each_other_are_proved_so():
    A = torch.tensor([[[1.0], [1.0], [1.0]]], dtype=torch.float64)
    bounds = torch.tensor([[1.0, -torch.inf, 5.0]]).double(), torch.tensor([[torch.inf, 0.0, torch.inf]]).double()
    rows, _ = Rows.of_unit_length(A, *bounds, torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64))
    found = relax(torch.zeros(1, 1, dtype=torch.float64), rows)
    assert found.status[0] == Status.INFEASIBLE
    assert (found.proof[0] != 0).tolist() == [True, True, False]


@pytest.mark.parametrize("ratio", [1e-3, 1e-5, 1e-10, 1e-14, 1e-16, 1e-20, 1e-40])
def test_a_small_weight_is_known_or_refused(ratio):
    """``a y = 1`` and ``a y = 3`` meet in the middle; ``B y = c``, with a small weight, need not give way at all."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    batch, n = 200, 3
    own = draw(batch, n, n)
    own = own[torch.linalg.cond(own) < 10]
    level = torch.cat([torch.full_like(own[:, 0, :1], 3.0), draw(len(own), n - 1)], dim=-1)
    A, bound = torch.cat([own[:, :1], own], dim=-2), torch.cat([torch.ones_like(level[:, :1]), level], dim=-1)
    weight = torch.tensor([1.0, 1.0] + [ratio] * (n - 1), dtype=torch.float64).expand(len(own), -1)
    rows, _ = Rows.of_unit_length(A, bound, bound, weight)
    found = relax(draw(len(own), n), rows)
    solved = found.status == Status.SOLVED
    assert solved.all() if ratio >= 1e-5 else (found.status != Status.INFEASIBLE).all()
    level[:, 0] = 2.0
    right = torch.linalg.solve(own, level)
    off = (found.y - right).abs().amax(-1) / right.abs().amax(-1)
    assert (off[solved] <= 100 * KNOWN).all()  # the slack is known to KNOWN, y to that times the condition of its rows


@pytest.mark.parametrize("unit", [1e-300, 1e-170, 1e-155, 1e155, 1e170, 1e300])
def test_rows_of_any_size_give_way(unit):
    """``y_1 >= 3, y_1 + y_2 >= 6`` in the box of 2: the corner, though the squares of such rows are no numbers."""
    A = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.float64) * unit
    constraint = hn.Box(-2.0, 2.0) & hn.Relaxed(hn.Affine(A, lower=torch.tensor([6.0, 3.0]).double() * unit))
    y = hn.layers.Projection(constraint)(torch.tensor([[0.3, 0.5]], dtype=torch.float64))
    torch.testing.assert_close(y, torch.full_like(y, 2.0), rtol=1e-14, atol=0)
    certificate = hn.check(constraint, y)
    assert certificate.ok
    slack = torch.tensor([[0.0, 0.0, 2.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(certificate.slack / unit, slack, rtol=1e-9, atol=0)
