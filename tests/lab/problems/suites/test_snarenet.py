"""SnareNet's data by the published recipe: checksums, bounds that hold at C⁺ x, the rows without a half."""

import pytest
import torch

from hardnet_lab.problems.suites.programs import ConvexQCQP, Noncvx

CHECKSUMS = {0: "ea1fe52af691a3f5", 10: "fa49eb752e3810e1", 50: "fa794326985d1bd2", 100: "a37d1a951d9b3521"}


def build(m):
    return ConvexQCQP(m) if m else Noncvx()


@pytest.mark.parametrize("m", CHECKSUMS)
def test_the_data_are_those_of_the_recipe(m):
    problem = build(m)
    assert problem.checksum == CHECKSUMS[m]
    assert [len(part) for part in (problem.train, problem.validation, problem.test)] == [8334, 833, 833]
    x = problem.inputs(problem.test)
    equal, over = problem.residuals(x @ torch.linalg.pinv(problem.C).T, x)
    assert equal.max() < 1e-12, "rounding of a product of 50 numbers of size one"
    assert over.max() == 0, "C⁺ x is inside"


def test_quadratic_rows_have_no_half():
    problem = ConvexQCQP(10)
    y, x = torch.linspace(-3, 3, 100, dtype=torch.float64), problem.inputs(problem.test)[0]
    over = problem.residuals(y, x)[1]
    expected = torch.stack([y @ torch.diag(problem.rows.H[i]) @ y + problem.rows.G[i] @ y for i in range(10)])
    torch.testing.assert_close(over, (expected - problem.bound).clamp_min(0))
