"""The inverse of Cholesky's factor in one launch, against the library: on the interpreter here, on a device too."""

import pytest
import torch

from tests.draws import draw
from tests.kernels.interpreter import interpret

EPS = torch.finfo(torch.float64).eps


def compare(device):
    """Of every size up to 64, in a part of a larger matrix, whose other entries are left alone; NaN if indefinite."""
    from hardnet.kernels.gpu.cholesky import invert_factor

    for width in (1, 16, 20, 32, 52, 64):
        rows = draw(5, width, width + 8, seed=width)
        matrix = (rows @ rows.mT).to(device)
        panel, whole = matrix.new_zeros(5, 80, width), matrix.new_full((5, 90, 90), 7.0)
        panel[:, :width] = matrix
        found = whole[:, 9 : 9 + width, 9 : 9 + width]
        invert_factor(panel[:, :width], found)
        L = torch.linalg.cholesky(matrix)
        # a backward stable elimination: the identity is missed by the width, the rounding and the condition number
        allowed = 8 * width * EPS * torch.linalg.cond(L).max().item()
        torch.testing.assert_close(
            found @ L, torch.eye(width, dtype=L.dtype, device=device).expand_as(L), rtol=0, atol=allowed
        )
        assert torch.equal(found, found.tril())
        assert (whole == 7.0).sum() >= whole.numel() - found.numel()
    bad = torch.eye(20, dtype=torch.float64, device=device).repeat(3, 1, 1)
    bad[1, 4, 4] = -1.0
    found = torch.empty_like(bad)
    invert_factor(bad, found)
    assert found.isnan().any((-1, -2)).tolist() == [False, True, False]


def test_agrees_with_the_library_on_the_interpreter():
    interpret("test_cholesky", "compare('cpu')")


@pytest.mark.gpu
def test_agrees_with_the_library_on_the_device():
    compare("cuda")
