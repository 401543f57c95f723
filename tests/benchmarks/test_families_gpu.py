"""Both layouts of few rows can be timed against each other, and against the blocks."""

import pytest
import torch

from benchmarks.families_gpu import LIMITS, served_by

pytest.importorskip("triton")


def test_a_layout_serves_only_while_it_is_asked_to():
    from hardnet.kernels.gpu import affine_blocks, affine_few, affine_plan

    usual = affine_plan.plan(5, 10, torch.float32, True)
    served = []
    for family in LIMITS:
        with served_by(family):
            how = affine_plan.plan(5, 10, torch.float32, True)
            served.append((how.kernels, how.constants.get("THREADS")))
    assert served == [(affine_few, True), (affine_few, False), (affine_blocks, None)]
    assert affine_plan.plan(5, 10, torch.float32, True) == usual
