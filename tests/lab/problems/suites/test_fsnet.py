"""FSNet's data by the published recipe: checksums, split, and a feasible point of every instance."""

import numpy as np
import pytest
import torch

from hardnet_lab.problems.suites.programs import FSNet

CHECKSUMS = {"qp": "4b189dd6635af51d", "qcqp": "fc623fa341174758", "socp": "e060cce49202048b"}


@pytest.mark.parametrize("rows", CHECKSUMS)
def test_the_data_are_those_of_the_recipe(rows):
    problem = FSNet("convex", rows)
    assert problem.checksum == CHECKSUMS[rows]
    assert [len(part) for part in (problem.train, problem.validation, problem.test)] == [7000, 1000, 2000]
    x = problem.inputs(problem.test)
    start = x @ torch.linalg.pinv(problem.C).T
    equal, over = problem.residuals(start, x)
    assert equal.max() < 1e-12, "rounding of a product of 50 numbers of size one"
    assert over.max() == 0, "C⁺ x is inside"


def test_the_split_is_torchs_shuffle_of_numpys_draws():
    problem, random = FSNet("convex", "qp"), np.random.RandomState(2025)
    random.rand(100), random.uniform(-1, 1, 100), random.uniform(-1, 1, (50, 100))
    X = torch.from_numpy(random.uniform(-1, 1, (10000, 50)))
    order = torch.randperm(10000, generator=torch.Generator().manual_seed(2025))
    assert torch.equal(problem.inputs(problem.train), X[order[:7000]])
    assert torch.equal(problem.inputs(problem.test), X[order[8000:]])


def test_nonconvex_rows_follow_the_input():
    problem = FSNet("nonconvex", "qp")
    x = problem.inputs(problem.test)[:3]
    y = torch.linspace(-5, 5, 100, dtype=torch.float64).expand(3, 100)
    over = problem.residuals(y, x)[1][:, :50]
    expected = (y.sin() @ problem.rows.G.T - problem.bound * x.cos()).clamp_min(0)
    torch.testing.assert_close(over, expected)


def test_objectives_differ_by_their_shape():
    y = torch.linspace(-1, 1, 100, dtype=torch.float64)
    convex, bent, kinked = (FSNet(shape, "qp").value(y, y) for shape in ("convex", "nonconvex", "nonsmooth"))
    p = FSNet("convex", "qp").p
    torch.testing.assert_close(convex - bent, p @ (y - y.sin()))
    torch.testing.assert_close(kinked - bent, 0.1 * y.norm())
