"""The problems: feasible, outside, and the same bytes whoever counts them."""

import pytest
import torch

from benchmarks.problems import Size, errors, floors, large_problem, operations, problem


def test_problems_are_feasible_and_outside():
    case = problem(Size(50, 6, 8, equalities=3))
    assert (case.lower[:, :3] == case.upper[:, :3]).all()
    product = (case.A @ case.raw.unsqueeze(-1)).squeeze(-1)
    assert ((product > case.upper) | (product < case.lower)).any(-1).all()


@pytest.mark.parametrize("shared", [False, True])
def test_a_large_batch_repeats_a_drawn_one(shared):
    case = large_problem(Size(2500, 3, 2, shared=shared), "cpu", torch.float32)
    assert case.raw.shape == (2500, 3)
    assert case.A.shape == ((2, 3) if shared else (2500, 2, 3))
    assert torch.equal(case.lower[:500], case.lower[2000:])
    assert not torch.equal(case.raw[:500], case.raw[2000:])


def test_floor_counts_every_number_once():
    forward, both = floors(Size(10, 3, 2), bandwidth=40.0, itemsize=4)
    assert forward == 6 + 6 + 4
    assert both == forward + 12 + 9 + 8
    forward, both = floors(Size(10, 3, 2, shared=True), bandwidth=40.0, itemsize=4)
    assert forward == pytest.approx(0.6 + 6 + 4)
    assert both == pytest.approx(forward + 1.2 + 9 + 8)


def test_operations_of_one_row():
    assert operations(Size(1, 2, 1)) == 8 + 4 + 1 / 3 + 2


def test_errors_see_a_wrong_gradient_and_leave_the_split_of_an_equality_to_the_tool():
    case = problem(Size(4, 3, 2, equalities=1))
    grads = {name: torch.ones(4, 2, dtype=torch.float64) for name in ("lower", "upper")}
    other = {"lower": grads["lower"].clone(), "upper": grads["upper"].clone()}
    other["lower"][:, 0], other["upper"][:, 0] = 2.0, 0.0
    y = case.raw
    assert errors(case, (y, other), (y, grads))["gradient_error"] == 0.0
    other["upper"][:, 1] = 1.5
    assert errors(case, (y, other), (y, grads))["gradient_error"] > 0.1
    assert errors(case, (y, {}), (y + 1, grads))["gradient_error"] is None
    assert errors(case, (y, {}), (y + 1, grads))["distance"] == pytest.approx(1.0)
