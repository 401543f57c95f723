"""The kernels for a shared A and its factor: in Triton's interpreter, and on a GPU if there is one."""

import pytest
import torch

from hardnet.functional import enforce_affine, factorize
from hardnet.kernels.backends import find
from hardnet.kernels.cpu import launch
from hardnet.kernels.gpu import affine, affine_kernels
from hardnet.rows import Batch
from tests.kernels.interpreter import interpret

SHAPES = [(9, 12), (16, 16), (25, 50), (33, 40), (50, 100), (64, 64), (64, 256)]
BOTH = "(torch.float32, torch.float64)"


def test_agrees_with_the_reference():
    interpret(
        "shared_cases",
        f"compare([(9, 12)], {BOTH}, 'cpu', 20)",
        f"compare([(33, 40)], {BOTH}, 'cpu', 20, kinds=('both',))",
    )


def test_promises_on_the_interpreter():
    interpret(
        "shared_cases",
        f"compare_promises([(9, 12), (18, 21)], {BOTH}, 'cpu', 40)",
        "compare_alone(9, 12, 'cpu', 40)",
        "for dtype in (torch.float32, torch.float64): compare_dependent(9, 12, dtype, 'cpu')",
    )


def test_outputs_far_outside_satisfy_the_certificate():
    interpret("shared_cases", "compare_certificates([(9, 12), (18, 21), (16, 16)], 'cpu', 40)")


def test_gradients_of_a_learned_matrix_and_its_factor():
    interpret(
        "shared_cases", "compare_learned([(9, 12), (17, 17)], 'cpu')", "compare_factors([(9, 12), (18, 21)], 'cpu')"
    )


class OnDevice(torch.Tensor):
    device = torch.device("cuda")


def on_device(*shape, dtype=torch.float32):
    return torch.zeros(*shape, dtype=dtype).as_subclass(OnDevice)


@pytest.fixture
def capable(monkeypatch):
    monkeypatch.setattr(affine, "_supported", lambda device: True)
    monkeypatch.setattr(affine, "HAS_TRITON", True)


def test_kernels_are_chosen_by_device_shape_and_dtype(capable, monkeypatch):
    for taken in (on_device(9, 9), on_device(64, 256, dtype=torch.float64)):
        assert affine.reads_factor(taken)
    refused = [on_device(8, 9), on_device(65, 70), on_device(9, 257), on_device(3, 9, 9), torch.zeros(9, 9)]
    for other in (*refused, on_device(9, 9, dtype=torch.bfloat16)):
        assert not affine.reads_factor(other)
    monkeypatch.setattr(affine, "HAS_TRITON", False)
    assert not affine.reads_factor(on_device(9, 9))


def test_only_eager_code_takes_the_kernels(capable, monkeypatch):
    A = on_device(9, 12)
    monkeypatch.setattr(launch, "HAS_NUMBA", False)
    assert find("closed_form", Batch(A, A, None, None, memory=True)).name == "gpu"
    assert find("closed_form", Batch(A, A, None, None)) is None
    assert not affine.FusedPath.takes_as_operator(Batch(A, A, None, None, mode="compile"))


def test_tiles_are_chosen_by_shape_and_dtype():
    few, many = (affine_kernels.plan_shared(*shape, torch.float32, False) for shape in ((9, 12), (50, 100)))
    assert (few["M"], few["K"], many["M"]) == (16, 16, 64)
    assert many["ROUNDING"] == torch.finfo(torch.float32).eps
    assert "ROUNDING" not in affine_kernels.plan_shared(9, 12, torch.float32, True)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_agrees_with_the_reference_on_the_device(shape):
    from tests.kernels.shared_cases import compare, compare_alone, compare_dependent, compare_promises

    dtypes = (torch.float32, torch.float64)
    compare([shape], dtypes, "cuda", 33, (0, 1))
    compare_promises([shape], dtypes, "cuda", 40)
    compare_alone(*shape, "cuda", 40)
    for dtype in dtypes:
        compare_dependent(*shape, dtype, "cuda")


@pytest.mark.gpu
def test_far_outputs_satisfy_the_certificate_on_the_device():
    from tests.kernels.shared_cases import compare_certificates

    compare_certificates(SHAPES, "cuda", 2000)


@pytest.mark.gpu
def test_learned_matrices_and_factors_on_the_device():
    from tests.kernels.shared_cases import compare_factors, compare_learned, learned

    compare_learned([(9, 12), (17, 17), (50, 100)], "cuda")
    compare_factors(SHAPES, "cuda")
    leaves = learned(9, 12, "cuda")
    assert torch.autograd.gradcheck(enforce_affine, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(enforce_affine, leaves, fast_mode=True)


@pytest.mark.gpu
def test_enforce_affine_takes_the_kernel_and_a_graph_captures_it():
    from tests.kernels.shared_cases import run_forward, same_bits, shared_problem

    raw, A, _, lower, upper, gradient = shared_problem(0, 100, 25, 50, torch.float32, "cuda")
    P = factorize(A)
    expected = run_forward(raw, A, P, lower, upper, gradient)
    assert same_bits(enforce_affine(raw, A, lower, upper, factor=P), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = enforce_affine(raw, A, lower, upper, factor=P)
    graph.replay()
    assert same_bits(captured, expected)
