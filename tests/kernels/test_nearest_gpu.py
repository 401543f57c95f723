"""The kernels of the nearest point for few rows: on the interpreter here, on a device where there is one."""

import os
import subprocess
import sys

import pytest
import torch

from hardnet.functional.nearest import nearest_few
from hardnet.kernels.gpu import nearest as gpu
from hardnet.rows import take_rows
from tests.functional.nearest_cases import random_problem
from tests.kernels.nearest_cases import compare, compare_promises

ON_DEVICE = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
EVERY = [(1, 1), (1, 3), (2, 1), (2, 2), (2, 5), (3, 2), (3, 4), (4, 3), (4, 4), (4, 9), (4, 16)]


def interpret(statement):
    """Run a statement on the CPU, where Triton interprets its kernels; it must know before it is imported."""
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    head = "import torch; from hardnet.kernels.gpu import nearest as gpu; from tests.kernels.nearest_cases import *"
    code = f"{head}; {statement}"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def test_kernels_agree_with_the_formulas_on_the_interpreter():
    shapes = "[(1, 1), (2, 2), (3, 2), (2, 3), (4, 5)]"
    interpret(
        f"compare(gpu, {shapes}, (torch.float64,)); compare(gpu, [(2, 2)], (torch.float32,)); compare_promises(gpu)"
    )


def test_the_interpreter_is_not_taken_for_a_device():
    assert not gpu.takes(take_rows(*random_problem(0, 3, 2, 2)))


@ON_DEVICE
def test_kernels_agree_with_the_formulas_on_a_device():
    compare(gpu, EVERY, (torch.float64, torch.float32), device="cuda", samples=500, seeds=(0, 1))
    compare_promises(gpu, "cuda")


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
