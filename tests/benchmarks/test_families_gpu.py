"""Both layouts of few rows can be timed against each other, and against the blocks."""

import pytest
import torch

from benchmarks.families_gpu import LIMITS, served_by

pytest.importorskip("triton")


def test_a_layout_serves_only_while_it_is_asked_to():
    from hardnet.kernels.gpu import affine_blocks, affine_kernels

    usual = affine_kernels.plan(5, 10, torch.float32, True)
    served = []
    for family in LIMITS:
        with served_by(family):
            how = affine_kernels.plan(5, 10, torch.float32, True)
            served.append((how.backward, how.constants.get("THREADS")))
    few = affine_kernels.few_backward
    assert served == [(few, True), (few, False), (affine_blocks.backward, None)]
    assert affine_kernels.plan(5, 10, torch.float32, True) == usual
