"""The kernels of the nearest point for few rows: in Triton's interpreter, and on a GPU if there is one."""

import pytest
import torch

from hardnet.kernels.gpu.nearest import FewRows
from hardnet.rows import take_rows
from tests.functional.nearest_cases import nearest_few, random_problem
from tests.kernels.interpreter import interpret
from tests.kernels.nearest_cases import compare, compare_answers, compare_promises

ON_DEVICE = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
EVERY = [(1, 1), (1, 3), (2, 1), (2, 2), (2, 5), (3, 2), (3, 4), (4, 3), (4, 4), (4, 9), (4, 16)]


def test_kernels_agree_with_the_formulas_on_the_interpreter():
    shapes = "[(1, 1), (2, 2), (3, 2), (2, 3), (4, 5)]"
    interpret(
        "nearest_cases",
        "from hardnet.kernels.gpu.nearest import FewRows; gpu = FewRows()",
        f"compare(gpu, {shapes}, (torch.float64,)); compare(gpu, [(2, 2)], (torch.float32,)); compare_promises(gpu)",
        "compare_gradients(gpu, 3, 4, torch.float64, samples=200); compare_answers(gpu)",
    )


def test_the_interpreter_is_not_taken_for_a_device():
    assert not FewRows().takes(take_rows(*random_problem(0, 3, 2, 2)))


@ON_DEVICE
def test_kernels_agree_with_the_formulas_on_a_device():
    gpu = FewRows()
    compare(gpu, EVERY, (torch.float64, torch.float32), device="cuda", samples=500, seeds=(0, 1))
    compare_promises(gpu, "cuda")
    compare_answers(gpu, "cuda")


@ON_DEVICE
def test_a_device_gives_the_answers_of_a_cpu_without_a_look():
    numbers = random_problem(0, 1000, 3, 4)
    expected = nearest_few(*numbers)
    there = [part.cuda() for part in numbers]
    nearest_few(*there)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = nearest_few(*there)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(found.y.cpu(), expected.y, rtol=1e-9, atol=1e-9)
    assert torch.equal(found.status.cpu(), expected.status)
