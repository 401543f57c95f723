"""Small symmetric systems in one launch against plain elimination: in Triton's interpreter, and on a GPU if any."""

import pytest
import torch

from hardnet.solvers.algebra.small import _eliminate
from tests.draws import draw
from tests.kernels.interpreter import interpret

pytest.importorskip("triton")
EPS = torch.finfo(torch.float64).eps


def compare(device, batch, n, k):
    """``|A x - b|`` within the backward error of elimination on definite matrices, ``4 n eps |A| |x|``; same pivots."""
    from hardnet.kernels.gpu.definite import solve

    half, right = draw(batch, n, n, seed=n).to(device), draw(batch, n, k, seed=k).to(device)
    matrix = half @ half.mT + 0.1 * torch.eye(n, dtype=half.dtype, device=device)
    solved, pivot = solve(matrix, right)
    bound = 4 * n * EPS * (matrix.abs() @ solved.abs() + right.abs()).amax((-1, -2)) * _growth(matrix)
    assert ((matrix @ solved - right).abs().amax((-1, -2)) <= bound).all()
    least = _eliminate(matrix, right)[1]
    assert ((pivot - least).abs() <= 4 * n * EPS * matrix.abs().amax((-1, -2))).all()


def _growth(matrix):
    """The error of Gauss-Jordan may exceed that of plain elimination by the condition number of the scaled matrix."""
    scale = matrix.diagonal(dim1=-2, dim2=-1).rsqrt()
    return torch.linalg.cond(matrix * scale.unsqueeze(-1) * scale.unsqueeze(-2))


def compare_bad(device):
    """A pivot that is not positive is reported, NaN stays in its sample, and the other samples keep their bits."""
    from hardnet.kernels.gpu.definite import solve

    matrix, right = torch.eye(4, dtype=torch.float64).repeat(3, 1, 1), draw(3, 4, 2)
    matrix[1, 2, 2], matrix[2, 0, 1] = -1.0, torch.nan
    solved, pivot = solve(matrix.to(device), right.to(device))
    assert pivot[0] == 1.0
    assert pivot[1] == -1.0
    assert not pivot[2] > 0
    assert solved[0].cpu().equal(right[0])
    alone, _ = solve(matrix[1:2].to(device), right[1:2].to(device))
    assert alone[0].equal(solved[1])


def test_small_systems_on_the_interpreter():
    calls = [f"compare('cpu', 3, {n}, {k})" for n, k in ((1, 1), (2, 3), (6, 1), (9, 7), (17, 1), (32, 32))]
    interpret("test_definite", *calls, "compare_bad('cpu')")


@pytest.mark.gpu
def test_small_systems_on_the_device():
    for n, k in ((1, 1), (2, 3), (6, 1), (9, 7), (17, 1), (32, 32)):
        compare("cuda", 1000, n, k)
    compare_bad("cuda")
