"""Rows, objective, penalty and metrics of SnareNet's and FSNet's programs, on small ones and by hand."""

import pytest
import torch

from hardnet_lab.problems.suites.programs import ConeRows, Objective, Separable, SeparableRows


def numbers(*size, seed=0):
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


ROWS = {
    "affine": lambda: SeparableRows(numbers(2, 6)),
    "sine": lambda: SeparableRows(numbers(2, 6), curve="sin"),
    "squares": lambda: SeparableRows(numbers(2, 6), numbers(2, 6, seed=1).abs()),
    "cosine": lambda: SeparableRows(numbers(2, 6), numbers(2, 6, seed=1).abs(), "cos"),
    "cones": lambda: ConeRows(numbers(2, 3, 6), numbers(2, 3, seed=1), numbers(2, 6, seed=2)),
}


def small(kind="squares", box=None, follows=False, curve="sin", weight=0.0):
    objective = Objective(numbers(6).abs(), numbers(6, seed=3), curve, weight)
    bound = torch.full((2,), 4.0, dtype=torch.float64)
    problem = Separable("small", objective, numbers(2, 6, seed=4), ROWS[kind](), bound, box, follows=follows)
    problem.take_data(*(0.1 * numbers(30, 2, seed=5)).split(10), "")
    return problem


@pytest.mark.parametrize("kind", ROWS)
def test_the_jacobian_is_the_derivative(kind):
    rows, y = ROWS[kind](), numbers(4, 6, seed=7)
    derived = torch.stack([torch.autograd.functional.jacobian(lambda point: rows(point, point), one) for one in y])
    torch.testing.assert_close(rows.jacobian(y, y), derived)


@pytest.mark.parametrize("kind", ROWS)
def test_rows_by_the_formula(kind):
    rows, y = ROWS[kind](), numbers(6, seed=7)
    if kind == "cones":
        expected = [(rows.A[i] @ y + rows.b[i]).norm() - rows.c[i] @ y for i in range(2)]
    else:
        bent = {"sin": y.sin(), "cos": y.cos(), "identity": y}[rows.curve]
        expected = [rows.G[i] @ bent + (0 if rows.H is None else rows.H[i] @ y**2) for i in range(2)]
    torch.testing.assert_close(rows(y, y), torch.stack(expected))


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize(("box", "follows"), [(None, False), (0.5, True)])
def test_the_penalty_is_the_sum_of_the_squared_violations(kind, box, follows):
    problem = small(kind, box, follows and kind != "affine")
    x, y = problem.inputs(problem.train), 3 * numbers(10, 6, seed=8)
    expected = sum(part.square().sum(-1) for part in problem.residuals(y, x))
    torch.testing.assert_close(problem.penalty(y, x), expected)
    torch.testing.assert_close(problem.constraint.violation(y, x).square().sum(-1), expected)


def test_the_objective_by_the_formula():
    problem, y = small(weight=0.1), numbers(6, seed=9)
    expected = 0.5 * y @ torch.diag(problem.Q) @ y + problem.p @ y.sin() + 0.1 * y.norm()
    torch.testing.assert_close(problem.value(y, y), expected)


def test_a_moved_problem_keeps_its_rows_with_its_set():
    moved = small("cones").to("cpu")
    assert moved.inequalities.g is moved.rows
    assert moved.inequalities.jacobian.__self__ is moved.rows
