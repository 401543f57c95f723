"""Cached kernels are those that Triton would choose, and launches go to the device of their tensors.

No GPU is needed: Triton chooses and launches for a fake driver that only records its calls.
"""

import itertools
import math
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(triton.knobs.runtime.interpret, reason="the interpreter compiles nothing")

from hardnet.kernels.gpu import affine_blocks, affine_kernels  # noqa: E402 (they import Triton)
from hardnet.kernels.gpu import launch as launching  # noqa: E402


class Compiled(triton.compiler.CompiledKernel):
    """A fake compiled kernel with Triton's interface that records its launches."""

    def __init__(self, src, launches):
        self.src, self.name, self.module, self.function, self.packed_metadata = src, "kernel", 1, 2, ()
        self._run = lambda x, y, z, stream, function, metadata, launch, entered, left, *arguments: launches.append(
            SimpleNamespace(compiled=self, grid=(x, y, z), stream=stream, arguments=arguments)
        )


class Driver:
    """A fake driver with the methods that Triton calls at a launch."""

    device, stream = 0, 7

    def get_current_device(self):
        return self.device

    def get_current_stream(self, device):
        return self.stream

    def get_current_target(self):
        return triton.backends.compiler.GPUTarget("cuda", 90, 32)


@pytest.fixture
def launches(monkeypatch):
    """All launches so far, starting from kernels that are not compiled yet."""
    done = []
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    monkeypatch.setattr(triton.compiler, "compile", lambda src, **_: Compiled(src, done))
    for module, before in ((affine_kernels, "few_"), (affine_blocks, "")):
        for name in (f"{before}forward", f"{before}backward"):
            monkeypatch.setattr(module, name, triton.jit(getattr(module, name).fn))
    forget = lambda: (affine_kernels.plan.cache_clear(), affine_kernels.launcher.cache_clear())
    forget()
    yield done
    forget()


@pytest.fixture
def compared(monkeypatch, launches):
    """Repeat every launch the ordinary way, which must choose the same kernel and the same arguments."""
    compare, launch = [], launching.Launcher.launch

    def both(self, grid, tensors, numbers):
        launch(self, grid, tensors, numbers)
        self.kernel[grid](*tensors, *numbers, **self.constants)
        ours, ordinary = launches[-2:]
        assert ours.compiled is ordinary.compiled
        assert (ours.grid, ours.stream) == (ordinary.grid, ordinary.stream)
        assert len(ours.arguments) == len(ordinary.arguments) == len(self.kernel.arg_names)
        assert all(one is other or one == other for one, other in zip(ours.arguments, ordinary.arguments, strict=True))
        compare.append(dict(zip(self.kernel.arg_names, ours.arguments, strict=True)) | {"compiled": ours.compiled})

    monkeypatch.setattr(launching.Launcher, "launch", both)
    return compare


def numbers(batch, m, n, dtype=torch.float32, misaligned=()):
    """(gradient, raw, A, lower, upper); the named ones start one number past a multiple of 16 bytes."""
    shapes = {"gradient": (batch, n), "raw": (batch, n), "A": (batch, m, n), "lower": (batch, m), "upper": (batch, m)}
    parts = []
    for name, shape in shapes.items():
        size = torch.Size(shape).numel()
        memory = torch.arange(size + 4, dtype=dtype)
        start = int(name in misaligned) + (-memory.data_ptr() // memory.itemsize) % (16 // memory.itemsize)
        parts.append(memory[start : start + size].view(shape))
        assert (parts[-1].data_ptr() % 16 == 0) == (name not in misaligned)
    return parts


BATCHES = (1, 2, 16, 17, 32, 100)
SHAPES = ((2, 2), (3, 20), (9, 12))
"""Few rows in each layout, and blocks of rows."""


def test_three_families_serve_the_closed_form():
    """Few rows and blocks of rows, chosen by shape, and a shared A with its factor; there is no fourth family."""
    shapes = itertools.product((1, 2, 5, 8, 9, 16, 64), (1, 2, 10, 16, 17, 64, 256), (False, True))
    named = {affine_kernels.plan(m, n, torch.float32, backward).forward for m, n, backward in shapes}
    assert named == {affine_kernels.few_forward, affine_blocks.forward}


@pytest.mark.parametrize(
    ("m", "n", "forward", "backward"),
    [(2, 2, True, True), (4, 4, True, True), (5, 10, True, False), (8, 16, False, False), (1, 64, False, False)],
)
def test_one_thread_holds_a_sample_only_where_it_is_tiny(m, n, forward, backward):
    plans = [affine_kernels.plan(m, n, torch.float32, direction) for direction in (False, True)]
    assert [how.constants["THREADS"] for how in plans] == [forward, backward]


@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kept_kernels_are_those_that_triton_takes(m, n, dtype, compared, monkeypatch):
    ordinary, run = [], triton.runtime.JITFunction.run
    monkeypatch.setattr(triton.runtime.JITFunction, "run", lambda *a, **b: ordinary.append(1) or run(*a, **b))
    names = ("raw", "A", "lower", "upper", "gradient")
    alignments = [(), *((name,) for name in names), names]
    cases = [*itertools.product(BATCHES, alignments, ("both", "lower", "shared", "fixed"))]
    for case in (*cases, *reversed(cases)):
        batch, misaligned, bounds = case
        gradient, raw, A, lower, upper = numbers(batch, m, n, dtype, misaligned)
        upper = None if bounds == "lower" else upper if bounds == "both" else upper[0]
        lower = lower[0] if bounds == "fixed" else lower
        affine_kernels.launch_forward(raw, A, lower, upper)
        affine_kernels.launch_backward(gradient, raw, A, lower, upper, True)
        affine_kernels.launch_backward(gradient, raw, A, lower, upper, False)
    taken = len(compared)
    assert len(ordinary) <= taken + len({id(launch["compiled"]) for launch in compared})  # comparisons, compilations
    assert {launch["raw"].dtype for launch in compared} == {dtype}


def test_every_argument_arrives_in_its_place(compared):
    gradient, raw, A, lower, upper = numbers(33, 3, 20)
    y = affine_kernels.launch_forward(raw, A, lower, None)
    grads = affine_kernels.launch_backward(gradient, raw, A, None, upper[0], True)
    unasked = affine_kernels.launch_backward(gradient, raw, A[0], lower, upper, False)
    forward, backward, without = compared
    assert forward["y"] is y
    assert forward["raw"] is raw
    assert forward["A"] is A
    assert forward["lower"] is lower
    expected = {"batch": 33, "m": 3, "n": 20, "LOWER": 2, "UPPER": 0, "EACH": 1, "REFINE": 0}
    assert {name: forward[name] for name in expected} == expected
    places = ("grad_raw", "grad_A", "grad_lower", "grad_upper")
    assert all(backward[place] is grad for place, grad in zip(places, grads, strict=True))
    assert backward["grad_y"] is gradient
    assert backward["upper"].data_ptr() == upper.data_ptr()
    expected = {"batch": 33, "LOWER": 0, "UPPER": 1, "EACH": 1, "MATRIX": True}
    assert {name: backward[name] for name in expected} == expected
    assert unasked[1] is None
    expected = {"batch": 33, "LOWER": 2, "UPPER": 2, "EACH": 0, "MATRIX": False}
    assert {name: without[name] for name in expected} == expected


def test_numbers_without_order_in_memory_are_put_in_order(compared):
    gradient, raw, A, lower, _ = numbers(4, 2, 2)
    negative = torch._neg_view(raw)  # the same memory, read with the opposite sign
    affine_kernels.launch_forward(negative, A.mT, lower.t().contiguous().t(), None)
    affine_kernels.launch_backward(torch._neg_view(gradient), negative, A.mT, None, lower, False)
    for launch in compared:
        assert all(part.is_contiguous() and not part.is_neg() for part in (launch["raw"], launch["A"], launch["lower"]))
        assert torch.equal(launch["raw"], -raw)
        assert torch.equal(launch["A"], A.mT)
    assert torch.equal(compared[1]["grad_y"], -gradient)


def on_device(device: int, dtype: torch.dtype = torch.float32) -> Any:
    """A fake tensor on a given device, with what a launch reads of it."""
    return SimpleNamespace(dtype=dtype, get_device=lambda: device, data_ptr=lambda: 256)


class Kernel:
    """A fake kernel that records the current device of each launch, ordinary or cached, and returns a given result."""

    arg_names, pre_run_hooks = ("tensor", "batch", "SECOND", "FIRST"), ()

    def __init__(self, result=None):
        self.ordinary, self.kept, self.result = [], [], result

    def __getitem__(self, grid):
        def run(*arguments, **constants):
            self.ordinary.append((torch.cuda.current_device(), grid, arguments, constants))
            return self if self.result is None else self.result()

        return run


class Direct:
    """The compiled form of such a kernel."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *arguments: self.kernel.kept.append((torch.cuda.current_device(), grid, arguments))


def kernel_and_launcher(keeps=True):
    kernel = Kernel()
    kernel.result = (lambda: Direct(kernel)) if keeps else (lambda: None)
    return kernel, launching.Launcher(kernel, {"FIRST": 1, "SECOND": 2, "num_warps": 4})


@pytest.fixture
def current(monkeypatch):
    """The current device, and the devices that were made current temporarily."""
    state = SimpleNamespace(device=0, entered=[])

    class Guard:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            state.entered.append(self.device)
            self.before, state.device = state.device, self.device

        def __exit__(self, *_):
            state.device = self.before

    monkeypatch.setattr(torch.cuda, "current_device", lambda: state.device)
    monkeypatch.setattr(torch.cuda, "device", Guard)
    return state


def test_a_launch_goes_to_the_device_of_its_tensors(current):
    kernel, launcher = kernel_and_launcher()
    for device in (0, 1, 0, 1):
        launcher.launch((3, 1, 1), (on_device(device),), (5,))
    assert [launch[0] for launch in kernel.ordinary] == [0, 1]  # each device has its own compiled kernel
    assert [launch[0] for launch in kernel.kept] == [0, 1]
    assert current.entered == [1, 1]
    assert current.device == 0
    current.device = 1
    launcher.launch((3, 1, 1), (on_device(1),), (5,))
    assert current.entered == [1, 1]  # nothing to change
    assert kernel.kept[-1][0] == 1


def test_constants_follow_in_the_order_of_the_parameters(current):
    kernel, launcher = kernel_and_launcher()
    tensor = on_device(0)
    for _ in range(2):
        launcher.launch((3, 1, 1), (tensor,), (5,))
    assert kernel.ordinary == [(0, (3, 1, 1), (tensor, 5), {"FIRST": 1, "SECOND": 2, "num_warps": 4})]
    assert kernel.kept == [(0, (3, 1, 1), (tensor, 5, 2, 1))]


def test_what_is_known_of_an_integer_takes_its_own_kernel(current):
    kernel, launcher = kernel_and_launcher()
    for batch in (1, 2, 3, 16, 32, 1 << 31, (1 << 31) + 1, 1 << 32):
        launcher.launch((1, 1, 1), (on_device(0),), (batch, 0.5))
    assert [launch[2][1] for launch in kernel.ordinary] == [1, 2, 16, 1 << 31, (1 << 31) + 1]
    assert [launch[2][1] for launch in kernel.kept] == [3, 32, 1 << 32]


def test_each_type_takes_its_own_kernel(current):
    kernel, launcher = kernel_and_launcher()
    for dtype in (torch.float32, torch.float64, torch.float32):
        launcher.launch((1, 1, 1), (on_device(0), on_device(0, dtype)), (2,))
    assert (len(kernel.ordinary), len(kernel.kept)) == (2, 1)


@pytest.mark.parametrize("result", [lambda: None, lambda: SimpleNamespace()])
def test_without_a_kernel_to_keep_every_launch_is_ordinary(result, current):
    kernel, launcher = kernel_and_launcher()
    kernel.result = result
    for _ in range(3):
        launcher.launch((1, 1, 1), (on_device(0),), (2,))
    assert len(kernel.ordinary) == 3


def test_who_watches_launches_sees_ordinary_ones(current, monkeypatch):
    kernel, launcher = kernel_and_launcher()
    launch = lambda: launcher.launch((1, 1, 1), (on_device(0),), (2,))
    launch()
    launch()
    assert (len(kernel.ordinary), len(kernel.kept)) == (1, 1)
    runtime = triton.knobs.runtime
    chain = SimpleNamespace(calls=[print])
    for owner, name, value in (
        (kernel, "pre_run_hooks", [print]),
        (runtime, "debug", True),
        (runtime, "launch_enter_hook", chain),
        (runtime, "launch_exit_hook", chain),
        (runtime, "launch_enter_hook", print),  # a plain hook, as in older versions
    ):
        before = len(kernel.ordinary)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            launch()
        assert len(kernel.ordinary) == before + 1
        launch()
        assert len(kernel.ordinary) == before + 1
    launcher.compiled.clear()
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "debug", True)
        launch()
    launch()
    assert len(kernel.ordinary) == 8  # a kernel compiled for a debugger is not reused
    monkeypatch.setattr(runtime, "launch_enter_hook", None)  # no hook, as in older versions
    launch()
    assert len(kernel.ordinary) == 8


def test_no_kernel_reads_a_global_that_differs_from_itself():
    """At every launch Triton compares a kernel's globals with those it was compiled for, and NaN is never equal."""
    for path in Path(launching.__file__).parent.glob("[a-z]*.py"):
        module = import_module(f"hardnet.kernels.gpu.{path.stem}")
        held = [value.value for value in vars(module).values() if isinstance(value, triton.language.constexpr)]
        assert not any(isinstance(value, float) and math.isnan(value) for value in held), path.name
