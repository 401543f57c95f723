"""The kernels of the closed form against their reference: in Triton's interpreter, and on a GPU if there is one."""

import pytest
import torch

from hardnet.functional import enforce_affine
from hardnet.kernels.gpu import affine
from hardnet.testing import KernelMismatchError, check_kernel
from tests.kernels import affine_reference
from tests.kernels.interpreter import interpret

SMALL = [(1, 1), (2, 2), (3, 6), (6, 12)]
EVERY = [
    (1, 1), (1, 5), (2, 2), (3, 6), (8, 9), (5, 17), (4, 4), (5, 10), (7, 7), (8, 16), (8, 256),
    (9, 12), (16, 16), (25, 50), (33, 40), (50, 100), (64, 64), (64, 256),
]  # fmt: skip


def test_few_rows_agree_with_the_reference():
    interpret("affine_cases", f"compare({SMALL}, (torch.float32,), 'cpu', 9, kinds=('both',))")
    interpret("affine_cases", "compare([(2, 2)], (torch.float64,), 'cpu', 9, kinds=('lower', 'upper', 'shared'))")


def test_many_rows_agree_with_the_reference():
    interpret("affine_cases", "compare([(18, 21)], (torch.float32,), 'cpu', 8, kinds=('both',))")
    interpret("affine_cases", "compare([(9, 12)], (torch.float64,), 'cpu', 2, kinds=('shared',))")


def test_a_block_without_rows_to_spare_agrees_with_the_reference():
    """Fifteen rows leave space for raw but not for the gradient too; sixteen leave none."""
    interpret("affine_cases", "compare([(15, 17), (16, 16)], (torch.float32,), 'cpu', 8, kinds=('both',))")


def test_half_types_agree_with_the_reference():
    interpret("affine_cases", "compare([(2, 2), (3, 6)], (torch.bfloat16, torch.float16), 'cpu', 2, kinds=('both',))")


def test_promises_on_the_interpreter():
    interpret("affine_cases", "compare_promises([(2, 2), (6, 12)], 'cpu', 10)")


def test_bad_conditioning_leaves_violations_at_rounding():
    interpret("affine_cases", "compare_conditioning([(2, 4), (5, 14), (10, 20), (25, 50), (20, 20)], 'cpu')")


def test_outputs_far_outside_satisfy_the_certificate():
    interpret("affine_cases", "compare_certificates([(2, 2), (3, 5), (9, 10)], 'cpu', 20, (torch.float64,))")
    interpret("affine_cases", "compare_certificates([(2, 2), (6, 6)], 'cpu', 20, (torch.float32,))")
    interpret("affine_cases", "compare_close_rows([(2, 2), (3, 40), (9, 10)], 'cpu')")


def test_shared_rows_give_the_bits_of_rows_per_sample():
    interpret("affine_cases", "compare_shared([(1, 3), (2, 2), (5, 10)], (torch.float64, torch.float32), 'cpu', 10)")


def test_the_gradient_of_shared_rows_is_summed_in_parts():
    small = "from hardnet.kernels.gpu import affine_kernels; affine_kernels.LARGEST_PART = 70; "
    interpret("affine_cases", small + "compare_shared([(2, 2), (5, 6)], (torch.float64,), 'cpu', 40)")


def test_compiled_code_meets_operators():
    interpret("affine_cases", "compare_compiled('cpu')")


def test_kernels_are_chosen_by_device_shape_and_dtype(monkeypatch):
    assert not affine.available(torch.zeros(3, 2, 2))
    monkeypatch.setattr(affine, "_supported", lambda device: True)
    monkeypatch.setattr(affine, "HAS_TRITON", True)

    class OnDevice(torch.Tensor):
        device = torch.device("cuda")

    on_device = lambda *shape, dtype=torch.float32: torch.zeros(*shape, dtype=dtype).as_subclass(OnDevice)
    assert affine.available(on_device(3, 64, 256))
    assert affine.available(on_device(3, 8, 9, dtype=torch.bfloat16))
    for refused in (on_device(64, 256), on_device(3, 65, 70), on_device(3, 2, 257), on_device(3, 0, 2)):
        assert not affine.available(refused)
    assert not affine.available(on_device(3, 9, 9, dtype=torch.bfloat16))
    assert not affine.available(on_device(3, 2, 2, dtype=torch.int64))


def test_reference_knows_the_answers_of_the_paper():
    A = torch.tensor([[[1.0, 0.0], [1.0, 1.0]]], dtype=torch.float64)
    raw, upper = torch.tensor([[2.0, -2.0]], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    y = affine_reference.forward(raw, A, None, upper)
    torch.testing.assert_close(y, torch.tensor([[1.0, -1.0]], dtype=torch.float64))
    jacobian = [
        affine_reference.backward(row[None], raw, A, None, upper)[0][0] for row in torch.eye(2, dtype=torch.float64)
    ]
    torch.testing.assert_close(torch.stack(jacobian), torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64))


def broken_value(x):
    return 2 * x + 1e-3


def broken_empty(x):
    result = torch.empty_like(x)
    result[1:] = 2 * x[1:]
    return result


def broken_input(x):
    return x.mul_(2)


def broken_shape(x):
    return 2 * x[1:]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (broken_value, "off by"),
        (broken_empty, "is NaN where the reference is not"),
        (broken_input, "changed its input 0"),
        (broken_shape, "is \\(3,\\)"),
        (lambda x: 2 * x + 1e-9 * torch.rand(4), "differs between two runs"),
    ],
)
def test_check_kernel_finds_what_is_wrong(broken, message):
    make = lambda seed: (torch.arange(4, dtype=torch.float64) + seed,)
    with pytest.raises(KernelMismatchError, match=message):
        check_kernel(broken, lambda x: 2 * x, make, tolerance=1e-6)
    check_kernel(lambda x: x + x, lambda x: 2 * x, make, tolerance=0.0)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", EVERY)
def test_every_shape_agrees_with_the_reference_on_the_device(shape):
    from tests.kernels.affine_cases import compare, compare_promises

    compare([shape], (torch.float32, torch.float64), "cuda", 33, (0, 1))
    compare_promises([shape], "cuda", 33)


@pytest.mark.gpu
def test_half_types_and_bad_conditioning_on_the_device():
    from tests.kernels.affine_cases import compare, compare_conditioning

    compare([(2, 2), (5, 10), (8, 16)], (torch.bfloat16, torch.float16), "cuda", 33)
    compare_conditioning([(2, 4), (5, 14), (8, 16), (10, 20), (25, 50)], "cuda")


@pytest.mark.gpu
def test_shared_rows_give_the_bits_of_rows_per_sample_on_the_device():
    from hardnet.functional import enforce_affine, factorize
    from tests.kernels.affine_cases import compare_shared, problem

    compare_shared([(1, 64), (2, 2), (3, 6), (5, 10), (8, 16)], (torch.float64, torch.float32), "cuda", 1000)
    for m, n in ((2, 2), (5, 10), (20, 40)):  # the fused kernel, and the factor with two products
        raw, A, lower, upper, gradient = problem(5, 7, m, n, torch.float64, "cuda")
        leaves = [raw.requires_grad_(), A[0], lower, upper]
        y = enforce_affine(*leaves, factor=factorize(A[0]))
        expected = enforce_affine(raw, A[:1].expand_as(A), lower, upper)
        torch.testing.assert_close(y, expected)
        grads = [torch.autograd.grad(out, raw, gradient)[0] for out in (y, expected)]
        torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.gpu
def test_far_outputs_satisfy_the_certificate_on_the_device():
    from tests.kernels.affine_cases import compare_certificates, compare_close_rows

    compare_certificates([(2, 2), (4, 4), (5, 10)], "cuda", 20000)
    compare_close_rows([(2, 2), (3, 40), (9, 10)], "cuda")
    compare_certificates([(8, 16), (16, 16), (25, 50), (50, 50)], "cuda", 2000)


@pytest.mark.gpu
@pytest.mark.parametrize(("m", "n"), [(2, 2), (3, 6), (8, 9), (17, 18)])
def test_gradients_of_any_order_agree_with_differences_on_the_device(m, n):
    """Wide inequalities with raw away from every kink, and equalities without gradients of their bounds."""
    source = torch.Generator().manual_seed(m)
    normal = lambda *shape: torch.randn(*shape, generator=source, dtype=torch.float64)
    A, center = normal(2, m, n) + 2 * torch.eye(m, n, dtype=torch.float64), normal(2, n)
    middle = (A @ center.unsqueeze(-1)).squeeze(-1)
    step = torch.linalg.lstsq(A, (normal(2, m).sign() * (2 + normal(2, m).abs())).unsqueeze(-1)).solution.squeeze(-1)
    raw, A, middle = ((center + step).cuda().requires_grad_(), A.cuda().requires_grad_(), middle.cuda())
    lower, upper = (middle - 1).requires_grad_(), (middle + 4).requires_grad_()
    enforce = lambda *parts: enforce_affine(*parts)
    fixed = lambda raw, A: enforce_affine(raw, A, middle, middle)
    for function, inputs in ((enforce, (raw, A, lower, upper)), (fixed, (raw, A))):
        assert torch.autograd.gradcheck(function, inputs, fast_mode=m > 3)
        assert torch.autograd.gradgradcheck(function, inputs, fast_mode=m > 3)


@pytest.mark.gpu
def test_capture_and_compile_give_the_same_bits():
    from tests.kernels.affine_cases import kernel_forward, problem

    raw, A, lower, upper, _ = problem(0, 100, 2, 2, torch.float32, "cuda")
    expected = kernel_forward(raw, A, lower, upper)[0]
    compiled = torch.compile(lambda *parts: kernel_forward(*parts)[0], fullgraph=True)(raw, A, lower, upper)
    assert compiled.view(torch.int32).equal(expected.view(torch.int32))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kernel_forward(raw, A, lower, upper)[0]
    graph.replay()
    assert captured.view(torch.int32).equal(expected.view(torch.int32))
