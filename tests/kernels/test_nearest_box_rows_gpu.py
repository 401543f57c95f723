"""The GPU kernels of a box and several rows: in Triton's interpreter, and on a GPU if there is one."""

import pytest
import torch

from hardnet.functional import project_box_rows
from tests.kernels import box_rows_cases
from tests.kernels.interpreter import interpret
from tests.solvers.box_families import KINDS, box_family


@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_plain_torch_on_the_interpreter(kind):
    interpret("box_rows_cases", f"compare('cpu', [(2, 3), (3, 7)], 2, ['{kind}'])")


def test_promises_on_the_interpreter():
    interpret("box_rows_cases", "compare_bad_samples('cpu'); compare_inside('cpu')")


def test_shared_numbers_and_units_on_the_interpreter():
    interpret("box_rows_cases", "compare_shared('cpu', 2); compare_units('cpu', 2)")


def test_gradients_on_the_interpreter():
    interpret(
        "box_rows_cases", "compare_gradients('cpu', [(2, 5)], 3)", "compare_gradients('cpu', [(1, 5)], 2, KINDS[:1])"
    )


@pytest.mark.gpu
def test_agrees_with_plain_torch_on_a_device():
    box_rows_cases.compare("cuda", [(2, 1), (3, 7), (5, 5), (8, 30), (20, 100)], 200)
    box_rows_cases.compare_shared("cuda", 60)
    for k in (3, 8):
        box_rows_cases.compare_bad_samples("cuda", k)
        box_rows_cases.compare_inside("cuda", k)
        box_rows_cases.compare_units("cuda", k)
    box_rows_cases.compare_gradients("cuda", [(1, 500), (8, 30), (20, 100)], 100, ["plain", "dependent", "fixed"])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_a_device_gives_the_answers_of_a_cpu_and_is_captured(dtype, k):
    numbers = [part.to(dtype) for part in box_family("plain", 64, k, 50)]
    expected = project_box_rows(*numbers, on_infeasible="nan", on_unsolved="nan")
    there = [part.cuda() for part in numbers]
    found = project_box_rows(*there)
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(found.cpu(), expected, rtol=64 * rounding, atol=256 * rounding, equal_nan=True)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = project_box_rows(*there)
    there[0].copy_(numbers[0].flip(0))
    graph.replay()
    assert torch.equal(captured, project_box_rows(*there))


@pytest.mark.gpu
@pytest.mark.parametrize("k", [1, 4])
def test_a_pass_takes_few_launches(k):
    """At most 12 launches forward and 12 backward, counted by the profiler."""
    raw, A, lower, upper, low, high = (part.float().cuda() for part in box_family("plain", 64, k, 50))
    leaves = [part.requires_grad_() for part in (raw, A[0].contiguous())]
    project = lambda: project_box_rows(*leaves, lower[0], upper[0], low[0], high[0])
    for _ in range(3):
        project().sum().backward()
    forward, both = _launches(project), _launches(lambda: project().sum().backward())
    assert forward <= 12
    assert both - forward <= 12 + 4  # the sum, its gradient, and two accumulations


def _launches(work):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    on_device = torch.autograd.DeviceType.CUDA
    return sum(event.count for event in seen.key_averages() if event.device_type == on_device)
