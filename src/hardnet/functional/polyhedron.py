"""The Euclidean projection onto ``lower <= A y <= upper``, for any rows, with its implicit derivative.

With J the strictly active rows (and all equalities), N the projector on the null space of A_J, and g the
cotangent of y,

    u = N g,   w = (A_J')^+ g:     raw receives u,  the active bounds w,  A_J  -dual u' - w y'.

Rows that touch y with a zero multiplier are left out of J, which agrees with relu'(0) = 0. Dependent active rows share
dual and w by the pseudo-inverse, so that duplicates share evenly.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack  # pyright: ignore[reportMissingModuleSource]

from hardnet.errors import UnsupportedSetError, sentence
from hardnet.functional.inputs import check_affine
from hardnet.functional.polyhedron_errors import raise_infeasible, raise_invalid, warn_not_converged
from hardnet.functional.polyhedron_gradient import gradients
from hardnet.functional.samples import look_is_free
from hardnet.functional.transforms import outside_compiler, refuse_transforms, transformed
from hardnet.solvers.projection import flatten, solve
from hardnet.solvers.solution import Status

POLICIES = ("raise", "nearest", "nan")


def project_affine(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    *,
    on_infeasible: Literal["raise", "nearest", "nan"] = "raise",
    on_invalid: Literal["raise", "nan"] = "raise",
) -> Tensor:
    """``argmin |y - raw|  subject to  lower <= A y <= upper``, differentiable in all four arguments.

    Any number of rows: more than n, dependent, duplicated, redundant, equalities (lower == upper). The solver works in
    float64 whatever the dtype. A raw output inside the set (to rounding) is returned bit for bit, and a sample's
    answer does not depend on its batch mates. A sample that misses the tolerance raises a `NotConvergedWarning`.

    Args:
        raw: ``(*batch, n)``.
        A: ``(m, n)`` or ``(*batch, m, n)``.
        lower: ``(m,)``, ``(*batch, m)`` or a number for all rows; None is -inf.
        upper: Like `lower`; None is +inf.
        on_infeasible: What an empty set gives: an `InfeasibleError` with the rows that contradict each other;
            the compromise with the least sum of squared distances to the rows; or NaN for that sample alone.
        on_invalid: What NaN, an infinite A or raw, or lower > upper give: an error, or NaN for that sample alone.

    Returns:
        y ``(*batch, n)``, in the dtype and on the device of raw. Samples answered by NaN have zero gradients.
    """
    batch, lower, upper = check_affine(raw, A, lower, upper)
    for name, policy, known in (("on_infeasible", on_infeasible, POLICIES), ("on_invalid", on_invalid, POLICIES[::2])):
        if policy not in known:
            raise ValueError(sentence(name, " or ".join(map(repr, known)), repr(policy)))
    if A.shape[-2] == 0:
        return raw.expand(*batch, raw.shape[-1])
    refuse_transforms("the projection onto a polyhedron", mapped=True)
    return _project(raw, A, lower, upper, on_infeasible, on_invalid)  # pyright: ignore[reportReturnType, reportCallIssue, reportArgumentType]


@outside_compiler  # loops until the last sample is through: a compiled graph calls it as it is
def _project(
    raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, on_infeasible: str, on_invalid: str
) -> Tensor:
    """Solve, then raise or warn for the samples without an answer where a look is possible."""
    y, dual, _, status, residual = _Projection.apply(raw, A, lower, upper)  # pyright: ignore[reportGeneralTypeIssues]
    may_look = look_is_free(raw) or not transformed()
    if may_look and bool((status != Status.SOLVED).any()):
        if on_invalid == "raise":
            raise_invalid(raw, A, lower, upper, status == Status.INVALID)
        if on_infeasible == "raise":
            raise_infeasible(status == Status.INFEASIBLE, dual)
        warn_not_converged(status == Status.NOT_CONVERGED, residual)
    if on_infeasible == "nearest":
        return y
    return torch.where((status == Status.INFEASIBLE).unsqueeze(-1), torch.nan, y)


class _Projection(torch.autograd.Function):
    """y and, without derivative, dual, side, status and residual; saves O(n + m) numbers a sample beside A."""

    @staticmethod
    def forward(
        raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Solve in float64."""
        batch, flat = flatten(raw, A, lower, upper)
        found = solve(*flat)
        y = found.y.to(raw.dtype).view(*batch, raw.shape[-1])
        dual, side = (part.view(*batch, A.shape[-2]) for part in (found.dual, found.side.to(torch.int8)))
        return y, dual, side, found.status.view(batch), found.residual.view(batch)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the derivative reads."""
        y, dual, side, status, residual = output
        ctx.save_for_backward(*inputs, y, dual, side, status)
        ctx.mark_non_differentiable(dual, side, status, residual)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """``u``, ``-dual u' - w y'`` and w to the active bounds, summed over what was shared."""
        if grads[0] is None:
            return None, None, None, None
        if _mapped():
            return tuple(grad if grad.numel() else None for grad in _Pullback.apply(grads[0], *ctx.saved_tensors))  # pyright: ignore[reportGeneralTypeIssues]
        return gradients(grads[0], *ctx.saved_tensors, needed=ctx.needs_input_grad)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor | None
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """The mapped dimension becomes the first batch dimension."""
        cores = (1, 2, 1, 1)
        depth = max(
            tensor.dim() - core - (dim is not None)
            for tensor, core, dim in zip(inputs, cores, in_dims, strict=True)
            if tensor is not None
        )
        joined = (_lead(*parts, depth) for parts in zip(inputs, in_dims, cores, strict=True))
        return _Projection.apply(*joined), (0,) * 5  # pyright: ignore[reportReturnType]


class _Pullback(torch.autograd.Function):
    """`gradients` under vmap, which must see the active rows of every mapped sample; an absent cotangent is empty."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        """All four cotangents."""
        found = gradients(*inputs, needed=(True,) * 4)
        return tuple(inputs[0].new_empty(0) if part is None else part for part in found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        """Refused."""
        remedy = "use torch.autograd, with batch dimensions instead of vmap"
        raise UnsupportedSetError(sentence("torch.func", "no second derivative of a projection", "one", remedy))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        """Every input gets the mapped dimension first, so that every mapped call has cotangents of its own."""
        cores = (1, 1, 2, 1, 1, 1, 1, 1, 0)
        depth = inputs[0].dim() - 1 - (in_dims[0] is not None)
        whole = [_first(tensor, dim, info.batch_size) for tensor, dim in zip(inputs, in_dims, strict=True)]
        found: Any = _Pullback.apply(
            *(_lead(tensor, 0, core, depth) for tensor, core in zip(whole, cores, strict=True))
        )
        pairs = list(zip(found, whole[1:5], strict=True))
        grads = tuple(part if tensor is None else part.reshape(tensor.shape) for part, tensor in pairs)
        return grads, tuple(None if tensor is None else 0 for _, tensor in pairs)


def _first(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """The tensor with its mapped dimension first, which one that is not mapped gets by expansion."""
    if tensor is None:
        return None
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _mapped() -> bool:
    """Whether vmap is at work."""
    return transformed() and any(level.key() == TransformType.Vmap for level in get_interpreter_stack() or ())


def _lead(tensor: Tensor | None, dim: int | None, core: int, depth: int) -> Tensor | None:
    """Move the mapped dimension to the front, before `depth` batch dimensions."""
    if tensor is None or dim is None:
        return tensor
    tensor = tensor.movedim(dim, 0)
    missing = depth - (tensor.dim() - 1 - core)
    return tensor.reshape(tensor.shape[0], *(1,) * missing, *tensor.shape[1:])
