"""The closed form as one differentiable operation, open to every transform.

`ClosedForm` carries its path from the forward to the backward. A gradient that is itself differentiated or mapped is
`ClosedFormGradients`, whose own derivative is that of the formulas. Forward mode and export run through the formulas in
differentiable operations alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.functional.affine_factors import by_qr, make_factor
from hardnet.functional.affine_formulas import moved, signed_violation, times, to_bounds, unverified
from hardnet.functional.affine_paths import PATHS, Kept, careful, choose, pull_back, widen
from hardnet.functional.diagnose import raise_invalid
from hardnet.functional.mapping import join_batches
from hardnet.functional.transforms import full_precision
from hardnet.modes import forward_mode, may_look, plain, transformed

Rows = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]
"""raw ``(B, n)``, A ``(B, m, n)`` or ``(m, n)``, lower and upper ``(B, m)`` or ``(m,)`` or None, the factor or None."""


def closed_form(rows: Rows, refuse: torch.Size | None, memory: bool = False) -> Tensor:
    """``y = raw + A⁺ s``; samples without an answer raise where values may be looked at, else they are NaN.

    Args:
        rows: The numbers.
        refuse: The shape of the batch that an error names samples of; None where NaN is the answer.
        memory: Whether all are known to be plain memory, which nothing transforms.
    """
    if not memory:
        if forward_mode() or torch.compiler.is_exporting():
            return by_formula(*rows[:4])
        if transformed():
            return ClosedForm.apply("torch", None, False, *rows)[0]  # pyright: ignore[reportIndexIssue]
        refuse = refuse if may_look(rows[0]) else None
    path = choose(rows[0], rows[1], memory or plain(*rows))
    if _records(*rows[:4]):
        return ClosedForm.apply(path, refuse, True, *rows)[0]  # pyright: ignore[reportIndexIssue]
    return _attempt(path, refuse, *rows)[0]


def by_formula(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """The same in differentiable operations alone: any order of derivative, any graph."""
    wide, rows, low, high = (widen(part) for part in (raw, A, lower, upper))
    made = make_factor(rows, raw.dtype)
    y = moved(wide, made.solve(signed_violation(times(rows, wide), low, high)))
    with torch.no_grad():  # the correction at y is rounding, and so is its derivative
        rest = made.solve(to_bounds(times(rows, y), low, high))
        final = moved(y, rest).to(raw.dtype)
        bad = unverified(to_bounds(times(rows, widen(final)), low, high), rows, widen(final), low, high, _eps(raw))
    return torch.where(bad.unsqueeze(-1), torch.nan, moved(y, rest).to(raw.dtype))


class ClosedForm(torch.autograd.Function):
    """``y = raw + A⁺ s`` ``(B, n)`` and, without derivative, what the backward of its path reads."""

    @staticmethod
    def forward(
        path: str,
        refuse: torch.Size | None,
        keep: bool,
        raw: Tensor,
        A: Tensor,
        lower: Tensor | None,
        upper: Tensor | None,
        factor: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """Y and what is kept."""
        y, kept = _attempt(path, refuse, raw, A, lower, upper, factor)
        return (y, *kept) if keep else (y,)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the inputs, and what the path kept."""
        ctx.path, _, ctx.keeps, *rows = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*rows, *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    @full_precision
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients of raw, A, lower and upper."""
        raw, A, lower, upper, factor, *kept = ctx.saved_tensors
        gradient, needs = gradients[0], ctx.needs_input_grad[3:]
        if gradient is None:
            return (None,) * 8
        if torch.is_grad_enabled() or transformed() or not ctx.keeps or not _readable(ctx.path, gradient):
            grads = ClosedFormGradients.apply(gradient, raw, A, lower, upper, factor)
        else:
            path = PATHS[ctx.path]
            factor = kept.pop() if factor is None and path.wants_factor(A) else factor
            grads = path.backward(gradient, raw, A, lower, upper, factor, tuple(kept), needs[1])
        return None, None, None, *fit(grads, lower if needs[2] else None, upper if needs[3] else None), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[tuple[Tensor], tuple[int]]:
        """Join the mapped dimension with the batch."""
        sizes, flat = join_batches(info.batch_size, in_dims[3:], inputs[3:], (1, 2, 1, 1, 2))
        y = ClosedForm.apply(*inputs[:3], *flat)[0]  # pyright: ignore[reportIndexIssue]
        return (y.unflatten(0, sizes),), (0,)


class ClosedFormGradients(torch.autograd.Function):
    """The gradients of raw, A ``(B, m, n)`` or ``(m, n)``, lower and upper ``(B, m)`` from that of y."""

    @staticmethod
    def forward(
        gradient: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, factor: Tensor | None
    ) -> tuple[Tensor, ...]:
        """The formulas, with the factor of A."""
        return formula_gradients(gradient, raw, A, lower, upper)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the inputs."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    @full_precision
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The second derivative, through the differentiable formulas."""
        *inputs, _ = ctx.saved_tensors
        given = [index for index, part in enumerate(inputs) if part is not None]

        def formulas(*tensors: Tensor) -> tuple[Tensor, ...]:
            parts: list[Any] = list(inputs)
            for index, tensor in zip(given, tensors, strict=True):
                parts[index] = tensor
            return formula_gradients(*parts)

        pull: Any = torch.func.vjp(formulas, *(inputs[index] for index in given))[1]
        second: list[Tensor | None] = [None] * 6
        for index, grad in zip(given, pull(gradients), strict=True):
            second[index] = grad
        return tuple(second)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Join the mapped dimension with the batch; a shared A has one gradient per mapped call."""
        sizes, flat = join_batches(info.batch_size, in_dims, inputs, (1, 1, 2, 1, 1, 2), share=False)
        found: Any = ClosedFormGradients.apply(*flat)
        grads = [grad.unflatten(0, sizes) for grad in found]
        if inputs[2].dim() - (in_dims[2] is not None) == 2:
            grads[1] = grads[1].sum(1)
        return tuple(grads), (0, 0, 0, 0)


def formula_gradients(
    gradient: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None
) -> tuple[Tensor, ...]:
    """The gradients of all four arguments in differentiable operations alone."""
    wide, rows, low, high = (widen(part) for part in (raw, A, lower, upper))
    violation = signed_violation(times(rows, wide), low, high)
    grads: Any = pull_back(widen(gradient), wide, rows, violation, make_factor(rows, raw.dtype), True)
    return tuple(grad.to(raw.dtype) for grad in grads)


def _attempt(
    path: str,
    refuse: torch.Size | None,
    raw: Tensor,
    A: Tensor,
    lower: Tensor | None,
    upper: Tensor | None,
    factor: Tensor | None,
) -> tuple[Tensor, Kept]:
    """Y of the path; on a CPU the samples that compiled code gave up are tried again, and refused if that fails."""
    made = by_qr(widen(A), A.dtype).to(A.dtype).contiguous() if factor is None and PATHS[path].wants_factor(A) else None
    y, kept, lost = PATHS[path].forward(raw, A, lower, upper, factor if made is None else made)
    if lost and path == "cpu":
        at = y.isnan().any(-1).nonzero().squeeze(-1)
        own: list[Any] = [part if part is None or part.dim() == core else part[at]
                          for part, core in ((A, 2), (lower, 1), (upper, 1))]  # fmt: skip
        again = careful(raw[at], *own)
        y, lost = y.index_put_((at,), again), int(again.isnan().any(-1).sum())
    if lost and refuse is not None:
        raise_invalid(raw, A, lower, upper, refuse)
    return y, kept if made is None else (*kept, made)


def fit(grads: Any, lower: Tensor | None, upper: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients of the arguments: those ``(B, m)`` of the bounds summed over the batch where a bound is shared."""
    bounds = (
        None if bound is None else grad.sum(0) if bound.dim() == 1 else grad
        for grad, bound in zip(grads[2:], (lower, upper), strict=True)
    )
    return grads[0], grads[1], *bounds


def _readable(path: str, gradient: Tensor) -> bool:
    """Whether the backward of this path may read this gradient: batched ones are no memory for kernels."""
    return plain(gradient) or (torch.compiler.is_compiling() and path != "cpu")


def _records(*parts: Tensor | None) -> bool:
    """Whether somebody will ask for a gradient."""
    return torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in parts)


def _eps(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps
