"""The data sets are the published ones, bit for bit."""

import hashlib
import sys

import pytest
import torch

from hardnet.errors import MissingExtraError
from hardnet_lab.problems import PROBLEMS, Programs


def checksum(tensor):
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("name", "counts", "sums"),
    [
        ("pwc", (50, 401, 401), ("21250365d2bfcba5", "9c8aaf27b31016a3", "9c8aaf27b31016a3")),
        ("pwcfull", (50, 401, 401), ("399b2b530092252e", "9c8aaf27b31016a3", "9c8aaf27b31016a3")),
        ("pwcbox", (10, 401, 401), ("f337d00a3e63fcab", "9c8aaf27b31016a3", "9c8aaf27b31016a3")),
        ("opt", (8334, 833, 833), ("3aa645ef4f70af94", "42e6c8356fb8cfa3", "cafde5df99378b0c")),
        ("cbf", (833, 83, 84), ("2e0c834f61bb5a55", "e4327e5cf377b9f7", "ec1a3680b0c772e1")),
    ],
)
def test_every_data_set_is_the_published_one(name, counts, sums):
    problem = PROBLEMS[name]()
    parts = (problem.train, problem.validation, problem.test)
    assert tuple(len(part) for part in parts) == counts
    assert tuple(checksum(part) for part in parts) == sums
    assert all(part.dtype == torch.float64 and part.shape[-1] == problem.input_dim for part in parts)


def test_the_grid_has_its_points_where_the_pieces_meet():
    grid = PROBLEMS["pwc"]().test.squeeze(-1)
    assert grid[100] == -1
    assert grid[300] == 1
    assert -4.2e-17 < grid[200] < -4.1e-17  # not zero: it falls in the piece (-1, 0]


def test_the_program_coefficients_are_the_published_ones():
    problem = Programs()
    numbers = (problem.Q, problem.p, problem.inequalities.A, problem.equalities.A)
    assert [checksum(number) for number in numbers] == [
        "4c68fa70e5047ebf", "5c4b10181ea8f8d1", "57217796b6e2d5b3", "efffe698e1b264a0",
    ]  # fmt: skip
    stacked = torch.cat([problem.inequalities.A, problem.equalities.A])
    assert abs(torch.linalg.cond(stacked).item() - 170.5) < 0.05
    assert problem.dc3.predicted is not None
    assert len(set(problem.dc3.predicted)) == 50


def test_the_order_of_the_dc3_paper_gives_other_matrices_from_the_same_stream():
    ours, theirs = Programs(), Programs(dc3_order=True)
    assert torch.equal(ours.inequalities.A, theirs.equalities.A)
    assert not torch.equal(ours.test, theirs.test)


def test_sizes_are_parameters():
    problem = Programs(variables=1000, inequalities=500, equalities=500, samples=30)
    start = problem.test @ torch.linalg.pinv(problem.equalities.A).T
    assert problem.evaluate(lambda _: start, problem.test)["max_violation"] < 1e-10


def test_without_numpy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    for make in PROBLEMS.values():
        with pytest.raises(MissingExtraError, match="this needs the package 'numpy'"):
            make()


def test_global_random_streams_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    for make in PROBLEMS.values():
        make()
    assert torch.equal(torch.rand(3), expected)
