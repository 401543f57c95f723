"""Where a call runs and what transforms it: the only place where hardnet asks about devices and transforms.

Only plain eager code may read values to decide what is computed, or hand memory to compiled kernels. Everything else
(torch.compile, export, tracing, vmap, forward mode, tensor subclasses) uses formulas in tensor operations. Products
run in full precision whatever autocast says, and half precision is enforced in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from hardnet.errors import NonFiniteError, UnsupportedSetError, name_samples, sample_indices, sentence

PLAIN_TYPES = (Tensor, torch.nn.Parameter)
HALF = (torch.bfloat16, torch.float16)
GRAPHS = ("compile", "export")
"""The modes in which operations are recorded now and run later, so no value is read and no error is raised for one."""


def mode() -> Literal["export", "compile", "forward", "func", "trace", "eager"]:
    """The mode of the call: the first of these that applies.

    ``export`` and ``compile`` record a graph, ``forward`` carries derivatives forward (jvp, jacfwd, hessian, dual
    numbers), ``func`` is any other transform of torch.func (vmap, grad, jacrev), ``trace`` is torch.jit.trace.
    """
    if torch.compiler.is_compiling():  # must come first: the compiler cannot trace the other checks
        # in torch 2.11 is_exporting() is true for everything it compiles; the flag behind it is right in every version
        return "export" if torch.compiler._is_exporting_flag else "compile"
    if forward_ad._current_level >= 0:
        return "forward"
    if torch._C._are_functorch_transforms_active():  # pyright: ignore[reportAttributeAccessIssue]
        return "func"
    return "trace" if torch._C._is_tracing() else "eager"  # pyright: ignore[reportAttributeAccessIssue]


def may_look(tensor: Tensor) -> bool:
    """Whether values may be read to decide what is computed: on a CPU, neither compiled nor under torch.func.

    Reading a value on an accelerator would wait for the device.
    """
    if torch.compiler.is_compiling() or not tensor.is_cpu:
        return False
    return not torch._C._are_functorch_transforms_active()  # pyright: ignore[reportAttributeAccessIssue]


def may_wait() -> bool:
    """Whether values can be read if an option requires it, at the cost of waiting for the device."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():  # pyright: ignore[reportAttributeAccessIssue]
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def look_or_nan(policy: str, raw: Tensor) -> str:
    """Resolve ``"auto"`` for this call: ``"raise"`` where reading values is free, else ``"nan"``."""
    if policy != "auto":
        return policy
    return "raise" if may_look(raw) else "nan"


def plain(*tensors: Tensor | None) -> bool:
    """Whether kernels may read these as memory: no subclass or wrapper, and nothing traces or intercepts operations."""
    if (
        torch.compiler.is_compiling()  # must come first: the compiler cannot trace the other checks
        or torch._C._is_tracing()  # pyright: ignore[reportAttributeAccessIssue]
        or torch._C._len_torch_dispatch_stack()  # pyright: ignore[reportAttributeAccessIssue]
        or torch._C._are_functorch_transforms_active()  # pyright: ignore[reportAttributeAccessIssue]
        or forward_ad._current_level >= 0
    ):
        return False
    for tensor in tensors:
        if tensor is not None and (
            type(tensor) not in PLAIN_TYPES or not torch._C._has_storage(tensor) or tensor._is_zerotensor()
        ):
            return False
    return True


def saves_elsewhere() -> bool:
    """Whether tensors for the backward are handed to hooks, as in a checkpointed region, which computes twice."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # pyright: ignore[reportAttributeAccessIssue]


def outside_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run the function uncompiled even when a compiled graph calls it: for loops whose length depends on the data.

    `torch.compiler.disable` would import the compiler together with the library, which takes seconds; this wrapper
    imports it at the first call from compiled code.
    """
    disabled = torch._disable_dynamo(function)

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        call = disabled if torch.compiler.is_compiling() else function
        return call(*arguments, **options)

    return run


def signed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Cache the function's signature: torch inspects it at every call of an autograd Function's forward."""
    function.__signature__ = signature(function)  # pyright: ignore[reportFunctionMemberAccess]
    return function


def full_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a function of tensors with autocast off: with products in half precision, y would leave the set.

    The device is taken from the first tensor among the arguments.
    """

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        part = arguments[0] if arguments else None
        if not isinstance(part, Tensor):
            part = next((part for part in (*arguments, *options.values()) if isinstance(part, Tensor)), None)
        # most calls are on a CPU, and looking up the device's name costs more than is_cpu
        if part is None or not torch.is_autocast_enabled("cpu" if part.is_cpu else part.device.type):
            return function(*arguments, **options)
        with torch.autocast(part.device.type, enabled=False):
            return function(*arguments, **options)

    return run


def refuse_forward_tangent() -> None:
    """Refuse ``gradient="tangent"`` in forward mode: it is defined as a rule for the backward pass only."""
    if mode() == "forward":
        remedy = "use gradient='exact', or reverse mode"
        raise UnsupportedSetError(sentence("torch.func", "no forward mode for gradient='tangent'", "one", remedy))


def refuse_transforms(solver: str, *, mapped: bool = False, exporting: str | None = None) -> None:
    """Refuse export, forward mode and, unless the solver can be `mapped`, every transform of torch.func.

    Args:
        solver: A phrase that names the solver in the error message.
        mapped: Whether vmap, grad and jacrev work.
        exporting: The remedy to suggest instead of the export; by default a method without iterations, or no layer.
    """
    around = mode()
    if around == "export":
        remedy = "export a model whose method has no iterations (hn.methods()), or the network without its layer"
        remedy = remedy if exporting is None else exporting
        raise UnsupportedSetError(sentence("torch.export", "a fixed graph", f"{solver}, which iterates", remedy))
    if around == "forward":
        remedy = "use reverse mode: backward, torch.autograd.functional"
        raise UnsupportedSetError(sentence("torch.func", f"no forward mode through {solver}", "one", remedy))
    if not mapped and around == "func":
        remedy = "use torch.autograd; batch dimensions need no vmap"
        raise UnsupportedSetError(sentence("torch.func", f"no transform around {solver}", "one", remedy))


def working(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for half-precision types, which have too few digits for factors and sums."""
    return torch.float32 if dtype in HALF else dtype


def widen(value: Any) -> Any:
    """The same structure with its half-precision tensors in float32; everything else is unchanged."""
    if isinstance(value, Tensor):  # a single tensor: skips the 7 us of traversing a tree
        return value.to(working(value.dtype))
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.to(working(leaf.dtype)), value)


def input_of_set(x: Any, beside: Tensor) -> Any:
    """X as the set receives it: half precision widened to float32, unless raw or y (`beside`) is in half precision too.

    Under autocast x is widened in any case: modules and y stay in float32 there, so that a certificate of y computed
    later sees the same set.
    """
    return x if beside.dtype in HALF and not torch.is_autocast_enabled(beside.device.type) else widen(x)


def narrow(y: Tensor, dtype: torch.dtype, on_invalid: str = "raise") -> Tensor:
    """Y ``(*batch, n)`` rounded to `dtype`; a sample out of range is an error, or NaN where no value may be read."""
    if y.dtype == dtype:
        return y
    rounded = y.to(dtype)
    lost = y.isfinite().all(dim=-1) & ~rounded.isfinite().all(dim=-1)
    if on_invalid == "raise" and may_look(y) and bool(lost.any()):
        samples = sample_indices(lost)
        text = f"y: expected outputs within the range of {dtype}, up to {torch.finfo(dtype).max:.5g}"
        where = f" in samples {name_samples(samples)}" if lost.dim() else ""
        raise NonFiniteError(f"{text}, got larger ones{where}; use bfloat16 or float32", samples)
    return torch.where(lost.unsqueeze(-1), torch.nan, rounded)
