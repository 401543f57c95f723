"""Modes in which compiled CPU code must not be used, and derivatives of every kind where it computes the forward."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import hardnet
from hardnet.functional import enforce_affine
from hardnet.functional.affine import choose
from hardnet.kernels.cpu.affine import CompiledPath
from hardnet.modes import plain
from hardnet.rows import Batch, take_rows
from tests.bounds import assert_within, of_factor
from tests.functional.affine_problems import by_operations, problem

caching = pytest.importorskip("numba.core.caching")
carray = pytest.importorskip("numba").carray

ANY = pytest.mark.parametrize(
    ("m", "n", "shared"),
    [(1, 1, False), (2, 2, False), (3, 5, False), (2, 3, True), (7, 10, True)],
)
"""Few rows per sample, a small shared A, and a shared A for which torch multiplies."""


@pytest.fixture
def taken(monkeypatch):
    """A list with one entry for each forward that compiled code computed."""
    calls, compute = [], CompiledPath.forward
    monkeypatch.setattr(CompiledPath, "forward", lambda *parts: calls.append(1) or compute(*parts))
    return calls


def leaves_of(numbers):
    return [number.clone().requires_grad_() for number in numbers]


@ANY
def test_plain_tensors_are_taken_in_eager_mode(m, n, shared, taken):
    numbers = problem(n, m, shared=shared)
    for parts in (numbers, [torch.nn.Parameter(part) for part in numbers], leaves_of(numbers)):
        enforce_affine(*parts)
    with torch.no_grad():
        enforce_affine(*numbers)
    with torch.inference_mode():
        enforce_affine(*problem(n, m, shared=shared))
    assert len(taken) == 5


@ANY
def test_first_and_second_derivatives_agree_with_differences(m, n, shared, taken):
    leaves = leaves_of(problem(n, m, samples=3, shared=shared))
    assert torch.autograd.gradcheck(enforce_affine, leaves, check_batched_grad=True)
    assert taken
    assert torch.autograd.gradgradcheck(enforce_affine, leaves, fast_mode=n > 5)


@ANY
def test_jacobians_by_any_transform_agree(m, n, shared, taken):
    numbers = problem(n, m, samples=3, shared=shared)
    expected = torch.autograd.functional.jacobian(by_operations, tuple(numbers))
    legacy = torch.autograd.functional.jacobian(enforce_affine, tuple(numbers), vectorize=True)
    assert taken
    taken.clear()
    ours = torch.func.jacrev(enforce_affine, argnums=(0, 1, 2, 3))(*numbers)
    forward = torch.func.jacfwd(enforce_affine, argnums=(0, 1, 2, 3))(*numbers)
    assert not taken
    mapped = torch.func.vmap(enforce_affine, in_dims=(0, None if shared else 0, 0, 0))(*numbers)
    torch.testing.assert_close(mapped, enforce_affine(*numbers))
    for others in (legacy, ours, forward):
        for one, other in zip(others, expected, strict=True):
            assert_within(one, other, of_factor(numbers[1]), most=1e-8)


@ANY
def test_batches_of_gradients_agree_with_one_at_a_time(m, n, shared):
    leaves = leaves_of(problem(n, m, samples=3, shared=shared))
    weights = torch.randn(4, 3, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    together = torch.autograd.grad(enforce_affine(*leaves), leaves, weights, is_grads_batched=True)
    one_by_one = [torch.autograd.grad(enforce_affine(*leaves), leaves, weight) for weight in weights]
    for grads, singles in zip(together, zip(*one_by_one, strict=True), strict=True):
        assert_within(grads, torch.stack(singles), of_factor(leaves[1]), most=1e-9)


@pytest.mark.parametrize(("m", "n", "shared"), [(2, 2, False), (3, 4, False), (2, 3, True)])
def test_second_derivatives_by_transforms_and_by_backward_agree(m, n, shared):
    raw, A, lower, upper = problem(n, m, samples=2, shared=shared)
    loss = lambda function: lambda A: function(raw, A, lower, upper).square().sum()
    expected = torch.func.hessian(loss(by_operations))(A)
    eager = torch.autograd.functional.hessian(loss(enforce_affine), A)
    for second in (eager, torch.func.hessian(loss(enforce_affine))(A)):
        assert_within(second, expected, of_factor(A, 3), most=1e-8)


def test_forward_mode_reaches_every_argument():
    numbers = problem(5, 3, samples=2)
    with torch.autograd.forward_ad.dual_level():
        duals = [torch.autograd.forward_ad.make_dual(part, torch.ones_like(part)) for part in numbers]
        change = torch.autograd.forward_ad.unpack_dual(enforce_affine(*duals)).tangent
    expected = torch.func.jvp(by_operations, tuple(numbers), tuple(torch.ones_like(part) for part in numbers))
    torch.testing.assert_close(change, expected[1])


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@ANY
def test_a_trace_computes_new_numbers(m, n, shared, taken):
    first, second = problem(n, m, seed=0, shared=shared), problem(n, m, seed=1, shared=shared)
    expected = enforce_affine(*second)
    taken.clear()
    traced: Any = torch.jit.trace(enforce_affine, tuple(first), check_trace=False)  # the check runs without gradients
    assert not taken
    assert_within(traced(*second), expected, of_factor(second[1], 1), most=1e-9)


@ANY
def test_who_records_or_fakes_operations_meets_the_formulas(m, n, shared, taken):
    """The formulas read a value, which raises an error; a kernel would silently bake its numbers into the graph."""
    numbers = problem(n, m, shared=shared)
    with pytest.raises(RuntimeError, match="value out of a tracing tensor"):
        make_fx(lambda *parts: enforce_affine(*parts))(*numbers)
    with FakeTensorMode() as mode, pytest.raises(DataDependentOutputException):
        enforce_affine(*(mode.from_tensor(part) for part in numbers))
    assert not taken


@pytest.mark.parametrize(("m", "n"), [(2, 2), (3, 5)])
def test_compiled_graphs_and_eager_code_agree(m, n, taken):
    torch._dynamo.reset()
    leaves = leaves_of(problem(n, m))
    expected = enforce_affine(*leaves)
    taken.clear()
    y = torch.compile(enforce_affine, fullgraph=True, backend="aot_eager")(*leaves)
    assert not taken
    torch.testing.assert_close(y, expected)
    ours, others = (torch.autograd.grad(part.square().sum(), leaves) for part in (y, expected))
    torch.testing.assert_close(ours, others)


class Labeled(torch.Tensor):
    """A tensor subclass that adds nothing."""


@pytest.mark.parametrize("which", range(4))
def test_a_subclass_takes_the_formulas(which, taken):
    numbers = problem(5, 3)
    expected = enforce_affine(*numbers)
    taken.clear()
    numbers[which] = numbers[which].as_subclass(Labeled)
    y = enforce_affine(*numbers)
    assert not taken
    torch.testing.assert_close(y.as_subclass(torch.Tensor), expected)


def test_what_compiled_code_does_not_take():
    raw, A, lower, upper = problem(5, 3)
    assert choose(take_rows(raw, A, lower, upper)) == "cpu"
    assert choose(take_rows(raw, A[0], None, upper)) == "cpu"
    long, many = torch.ones(5, 1, 300, dtype=raw.dtype), torch.eye(9, dtype=raw.dtype).expand(5, 9, 9)
    refused = [
        (long[:, 0], long, None, upper[:, :1], None),
        (many[:, 0], many, None, many[:, 0], None),
        (*(part.bfloat16() for part in (raw, A, lower, upper)), None),
        (raw.to_sparse(), A, lower, upper, None),
        (raw.to("meta"), *(part.to("meta") for part in (A, lower, upper)), None),
    ]
    for arguments in refused:
        assert choose(Batch(*arguments, look=True, memory=plain(*arguments))) == "torch", [
            part if part is None else part.shape for part in arguments
        ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@ANY
def test_half_types_are_the_rounded_answer(m, n, shared, dtype, taken):
    numbers = problem(n, m, dtype=dtype, shared=shared)
    y = enforce_affine(*numbers)
    assert taken
    assert torch.equal(y, enforce_affine(*(part.float() for part in numbers)).to(dtype))
    leaves = leaves_of(numbers)
    grads = torch.autograd.grad(enforce_affine(*leaves), leaves, torch.ones_like(y))
    wide = leaves_of(part.float() for part in numbers)
    expected = torch.autograd.grad(enforce_affine(*wide), wide, torch.ones_like(y).float())
    assert all(torch.equal(one, other.to(dtype)) for one, other in zip(grads, expected, strict=True))


def test_several_python_threads_call_it_at_once():
    from concurrent.futures import ThreadPoolExecutor

    problems = [problem(5, 3, samples=700, seed=seed) for seed in range(8)]
    expected = [enforce_affine(*numbers) for numbers in problems]
    with ThreadPoolExecutor(4) as pool:
        for got, right in zip(
            pool.map(lambda numbers: enforce_affine(*numbers), problems * 8), expected * 8, strict=True
        ):
            assert torch.equal(got, right)


FORK = """
import os, torch
from hardnet.functional import enforce_affine
from hardnet.kernels.cpu import launch as cpu
torch.set_num_threads(2)
samples = 2 * cpu.NUMBERS_OF_A_THREAD // 16 + 1
raw, A = torch.ones(samples, 4), torch.eye(4).expand(samples, 4, 4).contiguous()
upper = torch.zeros(4)
parent = enforce_affine(raw, A, None, upper)
child = os.fork()
if child == 0:
    y = enforce_affine(raw, A, None, upper)
    os._exit(0 if y[0].sum() == 0 and y[-1].sum() == 0 else 1)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_can_call_it_after_threads_ran():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=600)
    assert done.stdout == "child 0\n", (done.returncode, done.stderr[-2000:])


def twice(numbers, count: int):
    """A kernel called with addresses that doubles every number."""
    array = carray(numbers, (count,))
    for index in range(count):
        array[index] *= 2.0
    return 0


def test_code_is_compiled_where_no_directory_can_be_written(monkeypatch):
    from hardnet.kernels.cpu import compiling

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])  # a read-only installation, and no home
    numbers = torch.ones(3, dtype=torch.float64)
    compiling.compile_addresses(twice, torch.float64)(numbers.data_ptr(), 3)
    assert torch.equal(numbers, torch.full((3,), 2.0, dtype=torch.float64))


def test_the_default_device_does_not_matter():
    raw, upper = torch.tensor([[1.0, -1.0], [2.0, 0.5]]).requires_grad_(), torch.zeros(2)
    large = torch.eye(10), torch.eye(10).requires_grad_()
    for A in (torch.eye(2).expand(2, 2, 2).contiguous(), torch.eye(2), torch.eye(2).requires_grad_()):
        with torch.device("meta"):
            y = enforce_affine(raw, A, None, upper)
            (grad,) = torch.autograd.grad(y.sum(), raw)
        assert torch.equal(y, torch.tensor([[0.0, -1.0], [0.0, 0.0]]))
        assert torch.equal(grad, torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    raw = torch.ones(3, 10, requires_grad=True)
    for A in large:
        with torch.device("meta"):
            y = enforce_affine(raw, A, None, torch.zeros(10, device="cpu"))
            (grad,) = torch.autograd.grad(y.sum(), raw)
        assert (y == 0).all()
        assert (grad == 0).all()


def test_zeros_without_memory_are_zeros():
    zeros, A = torch._efficientzerotensor(2, 2), torch.eye(2).expand(2, 2, 2).contiguous()
    assert torch.equal(enforce_affine(zeros, A, torch.ones(2)), torch.ones(2, 2))


KERNEL = """
from numba import carray
from hardnet.kernels.cpu.tiles import fill

def entry(numbers, count: int):
    fill(carray(numbers, (count,)), 1.0)
    return 0
"""
RESULT = """
import torch
from hardnet.kernels.cpu import entry as cpu_entry
from hardnet.kernels.cpu.compiling import compile_addresses
numbers = torch.zeros(1, dtype=torch.float64)
compile_addresses(cpu_entry.entry, torch.float64)(numbers.data_ptr(), 1)
print(numbers.item())
"""


def test_a_change_of_what_a_kernel_calls_is_compiled(tmp_path):
    package = shutil.copytree(Path(hardnet.__file__).parent, tmp_path / "hardnet", ignore=lambda *_: ["__pycache__"])
    (package / "kernels" / "cpu" / "entry.py").write_text(KERNEL)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    answer = lambda: subprocess.check_output([sys.executable, "-c", RESULT], env=environment, text=True, timeout=600)
    assert answer() == "1.0\n"
    tiles = package / "kernels" / "cpu" / "tiles.py"
    before = tiles.read_text()
    after = before.replace("flat[index] = value", "flat[index] = 3 * value")  # what an upgrade might bring
    assert after != before
    tiles.write_text(after)
    assert answer() == "3.0\n"
