"""Where a call runs and what stands around it: the only questions about devices and transforms that hardnet asks.

Values may decide what is computed, and compiled kernels may read memory, in plain eager code alone. Everything else
(torch.compile, export, tracing, vmap, forward mode, tensor subclasses) takes formulas in tensor operations. Products
run in full precision whatever autocast says, and half precision is enforced in float32. Every room asks here.

Called by `hardnet.rows`, `hardnet.layers.base` and others.
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
"""The modes in which operations are recorded once and run later: nothing is raised, nothing read."""


def mode() -> Literal["export", "compile", "forward", "func", "trace", "eager"]:
    """What stands around the call: the first that holds.

    ``export`` and ``compile`` record a graph, ``forward`` carries derivatives forward (jvp, jacfwd, hessian, dual
    numbers), ``func`` is any other transform of torch.func (vmap, grad, jacrev), ``trace`` is torch.jit.trace.
    """
    if torch.compiler.is_compiling():  # first: the compiler does not get past the rest
        # torch 2.11 says is_exporting() in everything it compiles; the flag behind it is right in every version
        return "export" if torch.compiler._is_exporting_flag else "compile"
    if forward_ad._current_level >= 0:
        return "forward"
    if torch._C._are_functorch_transforms_active():  # pyright: ignore[reportAttributeAccessIssue]
        return "func"
    return "trace" if torch._C._is_tracing() else "eager"  # pyright: ignore[reportAttributeAccessIssue]


def may_look(tensor: Tensor) -> bool:
    """Whether a value may decide what is computed: eager code on a CPU, where a look costs no synchronization."""
    if torch.compiler.is_compiling() or not tensor.is_cpu:
        return False
    return not torch._C._are_functorch_transforms_active()  # pyright: ignore[reportAttributeAccessIssue]


def may_wait() -> bool:
    """Whether a value can be looked at where that is asked for, at the cost of waiting for the device."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():  # pyright: ignore[reportAttributeAccessIssue]
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def look_or_nan(policy: str, raw: Tensor) -> str:
    """``"auto"`` as what it means for this call: raise where a look is free, else NaN."""
    if policy != "auto":
        return policy
    return "raise" if may_look(raw) else "nan"


def plain(*tensors: Tensor | None) -> bool:
    """Whether these are memory to read: no subclass, no wrapper, and operations are neither traced nor intercepted."""
    if (
        torch.compiler.is_compiling()  # first: the compiler does not get past the rest
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


def outside_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it is, also where a compiled graph calls it: for loops whose length depends on the data.

    `torch.compiler.disable` would import the compiler with the library, which takes seconds; this does at the first
    call from compiled code.
    """
    disabled = torch._disable_dynamo(function)

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        call = disabled if torch.compiler.is_compiling() else function
        return call(*arguments, **options)

    return run


def signed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its signature kept: torch asks for it at every call of an autograd Function's forward."""
    function.__signature__ = signature(function)  # pyright: ignore[reportFunctionMemberAccess]
    return function


def full_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of tensors, with autocast off: products in half precision would leave the set.

    The device is that of the first tensor among the arguments.
    """

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        part = arguments[0] if arguments else None
        if not isinstance(part, Tensor):
            part = next((part for part in (*arguments, *options.values()) if isinstance(part, Tensor)), None)
        # most calls are on a CPU, and the name of a device takes longer than the question
        if part is None or not torch.is_autocast_enabled("cpu" if part.is_cpu else part.device.type):
            return function(*arguments, **options)
        with torch.autocast(part.device.type, enabled=False):
            return function(*arguments, **options)

    return run


def refuse_forward_tangent() -> None:
    """Refuse ``gradient="tangent"`` where derivatives are carried forward: it is a rule for what comes back."""
    if mode() == "forward":
        remedy = "use gradient='exact', or reverse mode"
        raise UnsupportedSetError(sentence("torch.func", "no forward mode for gradient='tangent'", "one", remedy))


def refuse_transforms(solver: str, *, mapped: bool = False, exporting: str | None = None) -> None:
    """Refuse export, forward mode and, unless the solver can be `mapped`, every transform of torch.func.

    Args:
        solver: The solver, in a phrase for people.
        mapped: Whether vmap, grad and jacrev work.
        exporting: What would work in place of an export; by default another method, or none.
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
    """The dtype to compute in: float32 for half types, which have too few digits to factorize or to sum in."""
    return torch.float32 if dtype in HALF else dtype


def widen(value: Any) -> Any:
    """The same structure with its half-precision tensors in float32; anything else as it is."""
    if isinstance(value, Tensor):  # a tree of one leaf, without the 7 us that walking it takes
        return value.to(working(value.dtype))
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.to(working(leaf.dtype)), value)


def input_of_set(x: Any, beside: Tensor) -> Any:
    """X as a set sees it beside raw or y: half precision in float32, unless these are in half precision too.

    Autocast counts as float32, in which it leaves modules and y: a certificate of y sees the same set after it.
    """
    return x if beside.dtype in HALF and not torch.is_autocast_enabled(beside.device.type) else widen(x)


def narrow(y: Tensor, dtype: torch.dtype, on_invalid: str = "raise") -> Tensor:
    """Y ``(*batch, n)`` rounded to a half type; a sample beyond its range is an error, or NaN where no look is free."""
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
