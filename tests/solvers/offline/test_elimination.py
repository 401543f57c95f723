"""Fourier-Motzkin elimination: derived rows are right, complete, few, and say when nothing satisfies them."""

import pytest
import torch

from hardnet.errors import InfeasibleError, UnsupportedSetError
from hardnet.layers.cdgm import Step, clamp_in_order
from hardnet.solvers.offline import eliminate, require_consistent, right_hand_sides, unmet_conditions
from tests.draws import draw, tensor

F64 = torch.float64
NONE = torch.zeros(2, dtype=torch.bool)


def test_constants_are_rescaled_together_with_their_rows():
    """2 y2 - y1 >= 1 and 3 y2 <= 6 give y1 <= 3."""
    constants = tensor(-1.0, 6.0)
    first, _ = eliminate(tensor([1.0, -2.0], [0.0, 3.0]), constants, NONE, [0, 1]).stages
    assert torch.equal(first.upper.body, tensor([1.0, 0.0]).reshape(1, 2))
    assert (first.upper.mix @ constants).tolist() == [3.0]
    assert len(first.lower.body) == 0


def test_coefficients_that_cancel_leave_no_variable_behind():
    """0 <= y1 + y2 <= 1 bounds y2 for each y1, and y1 not at all."""
    first, _ = eliminate(tensor([-1.0, -1.0], [1.0, 1.0]), tensor(0.0, 1.0), NONE, [0, 1]).stages
    assert len(first.upper.body) == len(first.lower.body) == 0


def test_cancellation_survives_rounding():
    body = tensor([0.1, 0.3], [-0.1 * 3, -0.3 * 3])
    _, conditions = eliminate(body, tensor(1.0, 1.0), NONE, [0, 1])
    assert len(conditions.body) == 1


def test_rows_without_variables_are_kept_as_conditions():
    body, constants = tensor([1.0, 1.0], [-1.0, -1.0]), tensor(1.0, -2.0)
    _, conditions = eliminate(body, constants, NONE, [0, 1])
    assert unmet_conditions(conditions.mix, conditions.equality, constants, 1e-12).tolist() == [True]
    assert unmet_conditions(conditions.mix, conditions.equality, tensor(2.0, -2.0), 1e-12).tolist() == [False]
    with pytest.raises(
        InfeasibleError, match=r"constraints are inconsistent: no y satisfies rows 4, 7 together"
    ) as error:
        require_consistent(conditions, constants, [4, 7], 1e-12)
    assert error.value.rows == [[4, 7]]


def test_contradicting_equalities_are_inconsistent_and_repeated_ones_are_not():
    body, both = tensor([1.0, 2.0], [2.0, 4.0]), torch.ones(2, dtype=torch.bool)
    for constants, fails in ((tensor(1.0, 2.0), False), (tensor(1.0, 3.0), True)):
        _, conditions = eliminate(body, constants, both, [0, 1])
        assert unmet_conditions(conditions.mix, conditions.equality, constants, 1e-12).any() == fails


def test_an_equality_is_substituted_not_combined():
    """y1 + y2 + y3 = 1 and y >= 0: y1 in [0, 1], y2 in [0, 1 - y1], y3 fixed."""
    body = torch.cat([-torch.eye(3, dtype=F64), torch.ones(1, 3, dtype=F64)])
    constants, equality = tensor(0.0, 0.0, 0.0, 1.0), torch.tensor([False, False, False, True])
    first, second, third = eliminate(body, constants, equality, [0, 1, 2]).stages
    assert [len(rows.body) for rows in (first.upper, first.lower, first.fixed)] == [1, 1, 0]
    assert (first.upper.mix @ constants).tolist() == [1.0]
    assert [len(rows.body) for rows in (second.upper, second.lower, second.fixed)] == [1, 1, 0]
    assert [len(rows.body) for rows in (third.upper, third.lower, third.fixed)] == [0, 0, 1]


@pytest.mark.parametrize("known", [True, False])
def test_pruning_keeps_chains_small(known):
    """y1 <= ... <= y12 in the unit box: quadratically many directions, however many pairs they come from."""
    n = 12
    steps = torch.eye(n, dtype=F64)[:-1] - torch.eye(n, dtype=F64)[1:]
    body = torch.cat([steps, torch.eye(n, dtype=F64), -torch.eye(n, dtype=F64)])
    constants = torch.cat([torch.zeros(n - 1), torch.ones(n), torch.zeros(n)]).to(F64)
    given = constants if known else torch.full_like(constants, torch.nan)
    stages, _ = eliminate(body, given, torch.zeros(len(body), dtype=torch.bool), list(range(n)))
    most = max(len(stage.upper.body) + len(stage.lower.body) for stage in stages)
    assert most <= (4 if known else n + 2)


def test_copies_and_parallel_rows_with_a_larger_constant_go():
    body = tensor([1.0, 1.0], [2.0, 2.0], [1.0, 1.0], [-1.0, 0.0])
    constants, none = tensor(3.0, 4.0, 2.0, 0.0), torch.zeros(4, dtype=torch.bool)
    _, last = eliminate(body, constants, none, [0, 1]).stages
    assert (last.upper.mix @ constants).tolist() == [2.0]
    _, last = eliminate(body, torch.full_like(constants, torch.nan), none, [0, 1]).stages
    assert len(last.upper.body) == 3  # which one is tightest is known only later


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_the_first_variable_gets_the_exact_range(seed, known):
    """Its bounds are the smallest and largest y1 of the polyhedron, found here as linear programs."""
    from scipy.optimize import linprog

    body, none = draw(12, 4, seed=seed), torch.zeros(12, dtype=torch.bool)
    body = torch.cat([body, torch.eye(4, dtype=F64), -torch.eye(4, dtype=F64)])
    constants = torch.cat([draw(12, seed=seed + 50).abs(), torch.full((8,), 3.0, dtype=F64)])
    given = constants if known else torch.full_like(constants, torch.nan)
    first = eliminate(body, given, torch.zeros(20, dtype=torch.bool), [0, 1, 2, 3]).stages[0]
    assert len(none) == 12
    for rows, sign in ((first.upper, -1), (first.lower, 1)):
        best = linprog([sign, 0, 0, 0], A_ub=body.numpy(), b_ub=constants.numpy(), bounds=(None, None)).fun
        assert (rows.mix @ constants).min().item() == pytest.approx(-best, abs=1e-9)


def test_too_many_rows_are_counted_and_refused():
    body, none = draw(20, 6), torch.zeros(20, dtype=torch.bool)
    with pytest.raises(
        UnsupportedSetError, match=r"at most 50 rows while eliminating, got \d+ rows in the order \[0, 1"
    ):
        eliminate(body, torch.ones(20, dtype=F64), none, range(6), limit=50)
    with pytest.raises(UnsupportedSetError, match=r"got \d+ rows; try another order"):
        eliminate(draw(200, 3), torch.ones(200, dtype=F64), torch.zeros(200, dtype=torch.bool), range(3), limit=2)


def test_an_infinite_constant_makes_its_rows_infinite_and_no_other():
    mix = tensor([1.0, 2.0], [0.0, 1.0])
    constants = tensor(torch.inf, 3.0).requires_grad_()
    right = right_hand_sides(constants, mix)
    assert right.tolist() == [torch.inf, 3.0]
    right[1].backward()
    assert constants.grad is not None
    assert constants.grad.tolist() == [0.0, 1.0]


def test_clamping_in_order_uses_the_values_already_fixed():
    """y2 <= 1, then y2 <= y1 <= y2 + 1."""
    none = slice(0, 0)
    steps = [Step(1, slice(0, 1), none, none), Step(0, slice(1, 2), slice(2, 3), none)]
    body = tensor([1.0, 0.0], [-1.0, 1.0], [1.0, -1.0])  # columns in the order of the steps: y2, y1
    y = clamp_in_order(tensor([9.0, 5.0], [0.0, 0.5]), body, tensor(1.0, 1.0, 0.0), steps)
    assert y.tolist() == [[2.0, 1.0], [0.5, 0.5]]
