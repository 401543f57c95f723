"""Balancing sigmoids: few steps from any scores, certificates of emptiness, and bits that no other sample changes."""

import pytest
import torch

from hardnet.functional.linsat import (
    _encode,
    balance_by_newton,
    evaluate,
    find_encoding,
    newton_step,
    proves_infeasible,
)
from hardnet.solvers import Status
from tests.draws import draw_uniform

F64 = torch.float64
BISTOCHASTIC = torch.cat(
    [torch.kron(torch.eye(3), torch.ones(1, 3)), torch.kron(torch.ones(1, 3), torch.eye(3))]
).double()


def balance(A, lower, upper, variant, count):
    return _encode(A, lower, upper, find_encoding(A, lower, upper), variant, torch.Size([count]))


@pytest.mark.parametrize("variant", ["entropic", "v2", "v1"])
@pytest.mark.parametrize("temperature", [0.05, 0.02, 0.005])
def test_flat_sigmoids_do_not_stop_newton(variant, temperature):
    """Among these scores are some where every full step lands where all sigmoids are flat."""
    problem = balance(BISTOCHASTIC, torch.ones(6).double(), torch.ones(6).double(), variant, 1000)
    solution = balance_by_newton(problem, draw_uniform(1000, 9) / temperature, tolerance=1e-10, max_iterations=60)
    assert (solution.status == Status.SOLVED).all()
    assert (solution.residual <= 1e-10).all()
    assert solution.iterations.max() <= 30


def test_newton_converges_quadratically():
    problem = balance(torch.ones(1, 3).double(), None, torch.ones(1).double(), "entropic", 1)
    scores, dual, errors = draw_uniform(1, 3), torch.zeros(1, 1, dtype=F64), []
    for _ in range(5):
        point = evaluate(problem, scores, dual)
        errors.append(point.residual.abs().max().item())
        dual = dual + newton_step(problem, point, point.residual)
    assert errors[-1] < 1e-14
    assert errors[3] < errors[2] ** 1.5


def test_an_empty_set_is_proved_by_its_multipliers_or_its_residual():
    A, lower, upper = (
        torch.tensor([[1.0, 1.0], [1.0, 0.0]]).double(),
        torch.tensor([1.9, 0.0]),
        torch.tensor([2.0, 0.5]),
    )
    problem = balance(A, lower.double(), upper.double(), "entropic", 4)
    solution = balance_by_newton(problem, draw_uniform(4, 2), tolerance=1e-10, max_iterations=60)
    assert (solution.status == Status.INFEASIBLE).all()
    for direction in (solution.dual, -evaluate(problem, draw_uniform(4, 2), solution.dual).residual):
        if proves_infeasible(problem, direction).all():
            assert not proves_infeasible(problem, -direction).any()
            return
    pytest.fail("neither the multipliers nor the residual prove it")


def test_a_bad_sample_leaves_the_others_bit_for_bit():
    problem = balance(BISTOCHASTIC, torch.ones(6).double(), torch.ones(6).double(), "entropic", 5)
    scores = 20 * draw_uniform(5, 9)
    good = balance_by_newton(problem, scores, tolerance=1e-10, max_iterations=60)
    scores[2, 4] = torch.nan
    bad = balance_by_newton(problem, scores, tolerance=1e-10, max_iterations=60)
    others = torch.tensor([0, 1, 3, 4])
    assert torch.equal(good.y[others], bad.y[others])
    assert bad.status.tolist() == [0, 0, Status.INVALID, 0, 0]
