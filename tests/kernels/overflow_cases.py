"""Raws so large that their sums overflow, for every GPU kernel that checks its own answer."""

import torch

from hardnet import check
from hardnet.kernels.gpu import affine_kernels
from hardnet.kernels.gpu import nearest as gpu
from hardnet.rows import Batch
from hardnet.sets import Affine
from tests.kernels.shared_cases import pseudo_inverse
from tests.solvers.box_families import flat_box


def raws(n, dtype, samples=30):
    """Random raws up to the largest number of the dtype, and smaller ones whose squares still overflow."""
    generator, largest = torch.Generator().manual_seed(1), torch.finfo(dtype).max
    for part in (0.95, 0.5, 0.05, 1e-3, largest**-0.3, largest**-0.49):
        yield (2 * torch.rand(samples, n, generator=generator, dtype=torch.float64) - 1).to(dtype) * (part * largest)


def assert_in_rows(y, A, lower, upper):
    """Check that every finite y satisfies its rows."""
    holds = check(Affine(A, lower=lower, upper=upper), y).holds.all(-1)
    assert (holds | ~y.isfinite().all(-1)).all(), y[~holds]


def compare_answers(device, samples):
    """The nearest point for few rows and for a box with a row, and the closed form of each kernel family."""
    for dtype in (torch.float64, torch.float32):
        A = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype).to(device)
        one = torch.ones(2, dtype=dtype, device=device)
        for raw in (part.to(device) for part in raws(4, dtype, samples)):
            rows = Batch(raw, A, -one, one)
            assert_in_rows(gpu.FewRows().answer(rows), A, -one, one)
            assert_in_rows(gpu.FewRows().forward(rows)[0], A, -one, one)
            boxed = flat_box(raw, A[:1].abs(), None, one[:1], raw.new_zeros(4), None)
            boxed = tuple(part.to(dtype) for part in boxed)
            assert_in_rows(gpu.BoxRows().answer(boxed), A[:1].abs(), None, one[:1])
            each = A.expand(len(raw), 2, 4).contiguous()
            assert_in_rows(affine_kernels.launch_forward(raw, each, -one, one), A, -one, one)
            shared = affine_kernels.launch_shared_forward(raw, A, pseudo_inverse(A), -one, one)
            assert_in_rows(shared, A, -one, one)
