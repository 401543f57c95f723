"""The GPU kernel of a box and one row: in Triton's interpreter, and on a GPU if there is one."""

import pytest
import torch

from hardnet.functional import project_box_rows
from hardnet.kernels.gpu import nearest as gpu
from hardnet.rows import take_rows
from tests.kernels import box_cases
from tests.kernels.interpreter import interpret
from tests.solvers.box_families import box_family


def test_agrees_with_plain_torch_on_the_interpreter():
    interpret("box_cases", "compare('cpu', (2, 7), 3); compare('cpu', (300,), 3, ('far',)); compare_shared('cpu', 5)")


def test_promises_on_the_interpreter():
    interpret("box_cases", "compare_bad_samples('cpu'); compare_units('cpu'); compare_inside('cpu')")


def test_short_numbers_on_the_interpreter():
    interpret("box_cases", "compare_short_numbers('cpu', 2); compare_one_sided('cpu'); compare_one_number('cpu', 4)")


def test_the_interpreter_is_not_taken_for_a_device():
    raw, A, lower, upper, *box = box_family("plain", 3, 1, 4)
    assert not gpu.BoxRows().takes(take_rows(raw, A, lower, upper, None, *box))


@pytest.mark.gpu
def test_agrees_with_plain_torch_on_a_device():
    box_cases.compare("cuda", (1, 2, 7, 300, 1000), 60)
    box_cases.compare("cuda", (4096,), 8, ("plain", "mixed"))
    box_cases.compare_shared("cuda", 60)
    box_cases.compare_bad_samples("cuda")
    box_cases.compare_units("cuda")
    box_cases.compare_inside("cuda")
    box_cases.compare_short_numbers("cuda", 60)
    box_cases.compare_one_sided("cuda")
    box_cases.compare_one_number("cuda", 60)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_device_gives_the_answers_of_a_cpu_and_is_captured(dtype):
    numbers = [part.to(dtype) for part in box_family("plain", 64, 1, 50)]
    expected = project_box_rows(*numbers, on_infeasible="nan")
    there = [part.cuda() for part in numbers]
    found = project_box_rows(*there)
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(found.cpu(), expected, rtol=8 * rounding, atol=64 * rounding)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = project_box_rows(*there)
    there[0].copy_(numbers[0].flip(0))
    graph.replay()
    assert torch.equal(captured, project_box_rows(*there))
