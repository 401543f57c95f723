"""The nearest point of a polyhedron for autograd: one derivative, made of what holds y, whoever found it.

    y = argmin |y - raw|  subject to  lower <= A y <= upper,  box_lower <= y <= box_upper

With J the active rows, F the coordinates that no bound of the box holds and g the cotangent of y,

    w = (A_JF')^+ g_F,   u = g - A_J'w:     raw receives u_F, the active bounds w, the bounds that hold outputs u, A_J
    -dual u' - w y'.

Rows that touch y with a zero multiplier are not in J, which agrees with relu'(0) = 0. Each bound of an equality
receives half of w. Multipliers are the canonical ones of `hardnet.solvers.polyhedron.canonical`, so that every solver
leads to the same derivative.

Eager code has one autograd function, `Nearest`, whatever the solver. Graphs, transforms and second derivatives use
`smooth`: Newton steps on the optimality conditions, with the inverse at the solution as a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import hardnet.kernels.gpu.affine as gpu
from hardnet.errors import UnsupportedSetError, sentence
from hardnet.kernels.backends import find
from hardnet.kernels.limits import MOST_ACTIVE_COLUMNS, MOST_ON_CHIP
from hardnet.modes import plain
from hardnet.products import (
    align,
    exponent,
    outer_sum,
    power_near,
    shift,
    shift_rows,
    times,
    times_aligned,
    times_columnwise,
)
from hardnet.rows import CORES, REALS, Batch, BoxedBatch, boxed
from hardnet.solvers.polyhedron.active import NEARLY_DEPENDENT, solve_unseen, split
from hardnet.solvers.polyhedron.canonical import Held, inverse_of, unit_rows
from hardnet.solvers.polyhedron.shared_rows import SharedRows, shared_vjp
from hardnet.solvers.solution import Found, Status, solved

ORDER = 2
"""The highest derivative of `smooth`: each Newton step with a constant inverse gains one."""
RANK = 1e-10
"""Singular values of unit rows below this fraction of the largest count as zero in the derivative of a compromise."""
TANGENT = 1e-11
"""How far u may leave the null space of the active rows, relative to g, before the shared factors are abandoned for the
more careful `split`."""
LARGEST_MATRICES = 1 << 26
"""The most numbers in the gradients of a shared A if each sample writes its own before they are summed."""


def smooth(numbers: BoxedBatch, found: Found, held: Held, pull: bool = False) -> Tensor:
    """y ``(B, n)`` with derivatives in all six numbers up to `ORDER`; its value is that of y to rounding.

    From the solution ``(y, dual)``, C the acting rows over the free outputs and K the inverse of ``C C'`` there,

        r = raw - C'dual - y,  step = K (C (y + r) - bound):   y += r - C'step,  dual += step.

    Args:
        numbers: In float64.
        found: y, place and status.
        held: What holds y, constants.
        pull: Whether raw also receives what pulls rows that it violates back inside.
    """
    good = solved(found.status).unsqueeze(-1)
    clean = lambda part: torch.where(good & part.isfinite(), part, 0.0)
    raw, A, lower, upper, low, high = numbers
    raw, A = clean(raw), torch.where(A.isfinite(), A, 0.0)
    rows, power, length = unit_rows(A, None)
    acting = (held.side != 0) & good
    tight = lower == upper
    ends = torch.where(held.side > 0, clean(upper), clean(lower))
    ends = torch.where(tight, 0.5 * clean(lower) + 0.5 * clean(upper), ends) / power / length
    bound = torch.where(acting, ends, 0.0)
    rows = torch.where(acting.unsqueeze(-1), rows, 0.0)
    y, dual = clean(found.y.detach().to(raw.dtype)), torch.where(acting, held.dual * power * length, 0.0)
    free_rows = rows
    if found.place is not None:
        free = (found.place == 0) & good
        middle = torch.where(found.place == 2, 0.5 * clean(low) + 0.5 * clean(high), 0.0)
        fixed = torch.where(found.place == 1, clean(high), torch.where(found.place == -1, clean(low), middle))
        free_rows = torch.where(free.unsqueeze(-2), rows, 0.0)
        raw, y = torch.where(free, raw, fixed), torch.where(free, y, fixed)
    if pull:
        value = times(rows.detach(), raw)
        outside = acting & ~tight & ((value - bound.detach()) * held.side > 0)
        bound = bound + Pull.apply(value, inwards, torch.where(outside, held.side, 0.0))  # pyright: ignore[reportOperatorIssue]
    for _ in range(ORDER):
        rest = raw - times(free_rows.mT, dual) - y
        step = times(held.inverse, times(rows, y + rest) - bound)
        y, dual = y + rest - times(free_rows.mT, step), dual + step
    return y


# One autograd function for all solvers ------------------------------------------------------------------------------

Gradients = tuple[Tensor | None, ...]


class Route(NamedTuple):
    """Who solves, and who computes the product with the derivative, for `Nearest`.

    Attributes:
        find: The solver: from a record without derivatives to the nearest points.
        product: Compiled code for `first`, compared with it by tests: from the cotangent, the record, what was found
            and which gradients are wanted to the gradients, or None where it leaves them to `first`.
        pull: Whether raw also receives what would pull it inside; only a product knows how.
        look: Whether values may be read.
        shared: Factors of rows that all samples share.
        last: What has no second derivative, in words; its product is always its own, and its numbers may be others.
    """

    find: Callable[[Batch], Found]
    product: Callable[[Tensor, Batch, Found, tuple[bool, ...]], Gradients | None] | None = None
    pull: bool = False
    look: bool = False
    shared: Any = None
    last: str | None = None


def nearest(route: Route, rows: Batch) -> Found:
    """The nearest points of a record, with their derivative where autograd needs one."""
    if not rows.learned:
        return route.find(rows)
    return Found(*Nearest.apply(route, *rows.numbers, rows.box_lower, rows.box_upper))  # pyright: ignore[reportGeneralTypeIssues]


class Nearest(torch.autograd.Function):
    """The fields of `Found`; y alone has a derivative. Saves the numbers, and of what was found what acts."""

    @staticmethod
    def forward(ctx: Any, route: Route, *numbers: Tensor | None) -> tuple[Tensor | None, ...]:
        """Solve, and save what the derivative needs."""
        found = route.find(_record(route, numbers))
        ctx.route = route
        ctx.save_for_backward(*numbers, *found[:5])
        ctx.mark_non_differentiable(*(part for part in found[1:] if part is not None))
        ctx.set_materialize_grads(False)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        """`first`, by compiled code where there is some; `again` where it is differentiated or mapped itself."""
        grad, route, needed = grads[0], ctx.route, ctx.needs_input_grad[1:]
        if grad is None:
            return (None,) * 7
        saved = ctx.saved_tensors
        found = Found(*saved[6:], residual=saved[6])
        if route.last is not None and route.product is not None:
            with torch.no_grad():
                passed = route.product(grad, _record(route, saved[:6]), found, needed)
            return None, *last_derivative(route.last, passed or (), [grad, *saved[:6]])
        if torch.is_grad_enabled() or not plain(grad):
            return None, *again(grad, saved[:6], found, needed, route.pull)
        rows = _record(route, saved[:6])
        passed = route.product(grad, rows, found, needed) if route.product is not None else None
        return None, *(first(grad, rows, found, needed, route.shared) if passed is None else passed)


def _record(route: Route, numbers: tuple[Tensor | None, ...]) -> Batch:
    raw, A, lower, upper, low, high = numbers
    return Batch(raw, A, lower, upper, None, low, high, look=route.look, memory=True)  # pyright: ignore[reportArgumentType]


def again(
    grad: Tensor, numbers: tuple[Tensor | None, ...], found: Found, needed: tuple[bool, ...], pull: bool
) -> Gradients:
    """The same by differentiating `smooth` on the active rows that were saved, with a graph of its own if recorded."""
    recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        parts = [
            part if recorded or part is None else part.detach().requires_grad_(wanted)
            for part, wanted in zip(numbers, needed, strict=True)
        ]
        flat = boxed(_record(Route(_unused), tuple(parts)))
        y = smooth(flat, found, settled(flat, found), pull).to(grad.dtype)
        y = y if found.place is not None or found.side is None else _or_compromise(y, flat, found)
        wanted = [part for part, one in zip(parts, needed, strict=True) if part is not None and one]
        passed = iter(torch.autograd.grad(y, wanted, grad, create_graph=recorded, allow_unused=True))
    return tuple(next(passed) if part is not None and one else None for part, one in zip(parts, needed, strict=True))


def _unused(rows: Batch) -> Found:
    raise NotImplementedError


def settled(numbers: BoxedBatch, found: Found) -> Held:
    """What holds y by the multipliers that were saved."""
    fixed: Any = tuple(part.detach() for part in numbers)
    _, A, lower, upper, *_ = fixed
    side = (found.dual.sign() if found.side is None else found.side).double()
    side = torch.where((lower == upper) & (side == 0), 1.0, side)
    if found.side is None:  # few rows leave out those that depend on the ones before
        return Held(found.dual.double(), side, inverse_of(fixed, side, None))
    rows, _, _ = unit_rows(A, found.place)
    spread = torch.linalg.pinv(torch.where((side != 0).unsqueeze(-1) & rows.isfinite(), rows, 0.0))
    return Held(found.dual.double(), side, spread.mT @ spread)


def _or_compromise(y: Tensor, numbers: BoxedBatch, found: Found) -> Tensor:
    """Y with the compromise of empty sets on the rows that it was found on."""
    empty = found.status == int(Status.INFEASIBLE)
    if not plain(empty) or not bool(empty.any()):
        return y
    raw, A, lower, upper, *_ = numbers
    side = found.dual.sign() if found.side is None else found.side
    bound = torch.where(side > 0, upper, torch.where(side < 0, lower, 0.0))
    index = empty.nonzero().squeeze(-1)
    rows = A.expand(len(raw), *A.shape[-2:])[index]
    return y.index_copy(0, index, compromise(raw[index], rows, bound[index], side[index] != 0).to(y.dtype))


def compromise(raw: Tensor, A: Tensor, bound: Tensor, active: Tensor) -> Tensor:
    """``raw - C^+ (C raw - b)`` with C the active rows scaled to length one: the least sum of squared distances."""
    power = power_near(A.detach().abs().amax(-1))
    A, bound = A / power.unsqueeze(-1), bound / power
    scale = active / torch.linalg.vector_norm(A, dim=-1).clamp_min(torch.finfo(A.dtype).tiny)
    C = A * scale.unsqueeze(-1)
    excess = times_aligned(C, raw) - torch.where(active, bound, 0.0) * scale
    return raw - times_aligned(torch.linalg.pinv(C, rtol=RANK), excess)


class Pull(torch.autograd.Function):
    """Zero like its first argument, whose gradient is a function of the cotangent and the tensors after it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(like: Tensor, pull: Callable[..., Tensor], *saved: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(like)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save what the function reads."""
        ctx.pull = inputs[1]
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The function of the cotangent."""
        saved = ctx.saved_tensors  # read once: a checkpoint computes them again
        return ctx.pull(grads[0], *saved), None, *(None for _ in saved)


def inwards(grad: Tensor, side: Tensor) -> Tensor:
    """The part of a row's gradient that pulls back inside: with the sign of the side, +1 above an upper bound."""
    return torch.where(grad * side > 0, grad, 0.0)


def last_derivative(what: str, grads: Sequence[Tensor | None], inputs: Sequence[Any]) -> Gradients:
    """The first derivatives, unchanged; differentiating them again raises an error.

    torch's own `once_differentiable` drops the link to the inputs: where unused inputs are allowed, as in
    ``torch.autograd.functional.hessian``, a second derivative would silently be zero.

    Args:
        what: A phrase that names the function without second derivatives in the error message.
        grads: The first derivatives, from a backward without a graph.
        inputs: The inputs they belong to; anything that is not a tensor is ignored.
    """
    if not torch.is_grad_enabled():
        return tuple(grads)
    history = [part for part in inputs if isinstance(part, Tensor) and part.requires_grad]
    return tuple(None if grad is None else _Last.apply(what, grad, *history) for grad in grads)  # pyright: ignore[reportReturnType]


class _Last(torch.autograd.Function):
    """A gradient that stays connected to its inputs but raises when it is differentiated."""

    @staticmethod
    def forward(ctx: Any, what: str, grad: Tensor, *history: Tensor) -> Tensor:
        ctx.what = what
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        remedy = "leave create_graph=True out, or use a method that has them: affine rows, a box, a simplex, a ball"
        raise UnsupportedSetError(sentence("second derivatives", "first ones alone", ctx.what, remedy))


# The first derivative in eager code -----------------------------------------------------------------------------------


def first(grad: Tensor, rows: Batch, found: Found, needed: tuple[bool, ...], shared: Any = None) -> Gradients:
    """The gradients of raw, A, lower, upper and both bounds of the box; zero for samples without an answer.

    Args:
        grad: Cotangent of y, ``(B, n)``.
        rows: The record of the call.
        found: What was found, with canonical multipliers.
        needed: Which gradients are wanted.
        shared: Factors of rows that all samples share.
    """
    small = found.place is None and _fits(grad, rows)
    fused = _fused(grad, rows, found, needed) if small else None
    return _general(grad, rows, found, needed, shared) if fused is None else fused


def _general(grad: Tensor, rows: Batch, found: Found, needed: tuple[bool, ...], shared: SharedRows | None) -> Gradients:
    """`first` in plain torch: for any size and any active rows."""
    look, place, status = rows.look, found.place, found.status
    raw, A, lower, upper, low, high = boxed(rows)
    A = A.squeeze(0) if rows.A.dim() == 2 else A
    answered = solved(status) if place is not None else solved(status) | (status == int(Status.INFEASIBLE))
    sound = answered.unsqueeze(-1)
    if not look or not bool(sound.all()):
        A = torch.where(sound.unsqueeze(-1) if A.dim() == 3 else sound.any(), A, 0.0)
        A = torch.where(A.isfinite(), A, 0.0) if place is not None else A
    side = found.dual.sign() if found.side is None else found.side
    tight = lower == upper
    active = ((side != 0) | tight) & sound
    grad = torch.where(sound & ~grad.isnan(), grad.double(), 0.0)
    y, dual = (torch.where(sound, part.double(), 0.0) for part in (found.y, found.dual))
    if place is None:
        unit = exponent(A.abs().amax(-1))  # rows of size one, so that no square overflows
        scaled = shift_rows(A, unit)
        u, w = _weights(align(grad), align(scaled, 2), align(active), status, look, shared)
        u, w, push = u[:, : A.shape[-1]], shift(w[:, : A.shape[-2]], -unit), None
    else:
        free = (place == 0) & sound
        w = torch.where(active, _weights_in_box(grad, rows, A, free, active, place), 0.0)
        rest = grad - times_columnwise(A if A.dim() == 3 else A.unsqueeze(0), w)
        u, push = torch.where(free, rest, 0.0), torch.where(free, 0.0, rest)
    matrix = None
    if needed[1]:
        empty = status == int(Status.INFEASIBLE)
        matrix = _matrix_gradient(u, w, y, torch.where(active, dual, 0.0) if place is not None else dual, empty, rows.A)
        if look and place is None:  # otherwise an empty set is NaN and has no compromise
            matrix = matrix + _compromise_gradient(grad, raw, A, lower, upper, side, active, empty, rows.A)
    given = (u.to(raw.dtype), matrix, *_sides(w, side, tight))
    box = (None, None) if push is None else _sides(push, place, low == high)  # pyright: ignore[reportArgumentType]
    return _deliver((*given, *box), rows, needed)


def _sides(weight: Tensor, side: Tensor, tight: Tensor) -> tuple[Tensor, Tensor]:
    """What the lower and the upper bounds receive: the one that holds everything, or half each where they are equal."""
    ends = (torch.where(tight, 0.5, (side == end).double()) for end in (-1, 1))
    lower, upper = (weight * end for end in ends)
    return lower, upper


def _weights_in_box(grad: Tensor, rows: Batch, A: Tensor, free: Tensor, active: Tensor, place: Tensor) -> Tensor:
    """``w = (A_JF')^+ g_F`` ``(B, m)`` in unit rows, 0 off the active rows."""
    kernel = find("box_rows", rows)
    if hasattr(kernel, "pull_back"):
        lead = A if A.dim() == 3 else A.unsqueeze(0)
        return kernel.pull_back(grad, lead, torch.where(free, 0, 1), active)
    C, power, length = unit_rows(A, place)
    own = torch.where(free, grad, 0.0)
    w = split(own, C, active, unit=True)[1] if rows.look else masked_vjp(own, C, active)[1]
    return w / length / power


def _weights(
    grad: Tensor, A: Tensor, active: Tensor, status: Tensor, look: bool, shared: SharedRows | None
) -> tuple[Tensor, Tensor]:
    """``(u, w)``: by the shared factors where they are accurate."""
    if shared is not None:
        u, w, missed = shared_vjp(grad, shared, active, look)
        if not look or not bool(((missed > TANGENT * grad.abs().amax(-1)) | (status == int(Status.INFEASIBLE))).any()):
            return u, w
    if not look and shared is None and _takes(grad, A):
        from hardnet.kernels.gpu.polyhedron import implicit_vjp

        return implicit_vjp(grad.contiguous(), A.contiguous(), active.contiguous())
    return (split if look else masked_vjp)(grad, A, active)


def masked_vjp(grad: Tensor, C: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """`split` by one factor of full size, without reading values."""
    w = solve_unseen(C, active, times(C, grad))
    return grad - times(C.mT, w), w


def _takes(grad: Tensor, A: Tensor) -> bool:
    """Whether the kernel for rows in memory takes these."""
    fits = A.shape[-1] <= MOST_ACTIVE_COLUMNS and A.numel() > 0 and grad.numel() > 0
    return grad.is_cuda and fits and plain(grad, A) and gpu.supported(grad.device)


def _deliver(parts: tuple[Tensor | None, ...], rows: Batch, needed: tuple[bool, ...]) -> Gradients:
    """The gradients that are needed, in the shape and dtype of their inputs."""
    inputs = (*rows.numbers, rows.box_lower, rows.box_upper)
    return tuple(
        _reduce(part, like) if wanted and part is not None and like is not None else None
        for part, like, wanted in zip(parts, inputs, needed, strict=False)
    )


def _matrix_gradient(u: Tensor, w: Tensor, y: Tensor, dual: Tensor, empty: Tensor, A: Tensor) -> Tensor:
    """``-dual u' - w y'``, zero for empty sets, in the shape and dtype of A."""
    dual, w = (torch.where(empty.unsqueeze(-1), 0.0, part) for part in (dual, w))
    return outer_sum(A, (-dual, -w), (u, y)).to(A.dtype)


def _compromise_gradient(
    grad: Tensor, raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, side: Tensor, active: Tensor, empty: Tensor,
    A_in: Tensor,
) -> Tensor | float:  # fmt: skip
    """The gradient of A from empty sets."""
    samples = empty.nonzero().squeeze(-1)
    if len(samples) == 0:
        return 0.0
    with torch.enable_grad():
        rows = A.expand(len(raw), *A.shape[-2:]).detach()[samples].requires_grad_()
        bound = torch.where(side > 0, upper, lower)[samples]
        y = compromise(raw[samples], rows, bound, active[samples])
    (own,) = torch.autograd.grad(y, rows, grad.detach()[samples])
    whole = rows.new_zeros(len(raw), *rows.shape[1:]).index_copy(0, samples, own)
    return _reduce(whole, A_in)


def _reduce(gradient: Tensor, like: Tensor) -> Tensor:
    """The gradient of `like` in its dtype, summed over the batch if all samples share it."""
    return (gradient.sum(0) if like.dim() < gradient.dim() else gradient).to(like.dtype)


# Small problems on a GPU: all gradients in one launch -----------------------------------------------------------------


def _fits(grad: Tensor, rows: Batch) -> bool:
    """Whether the kernel takes these: small and plain, on a GPU."""
    raw, A = rows.raw, rows.A
    if raw.device.type != "cuda" or not plain(grad):
        return False
    return max(A.shape[-2:]) <= MOST_ON_CHIP and grad.numel() > 0 and raw.dtype in REALS and gpu.supported(raw.device)


def _fused(grad: Tensor, rows: Batch, held: Found, needed: tuple[bool, ...]) -> Gradients | None:
    """All gradients in one launch, or None if a sample is left open and the batch needs the general path.

    Where no value may be read, the open samples are NaN instead.
    """
    from hardnet.kernels.gpu.polyhedron import Rules, Saved, launch_backward

    A, (m, n), y, dual, status = rows.A, rows.A.shape[-2:], held.y, held.dual, held.status
    assert held.side is not None
    rules = Rules(NEARLY_DEPENDENT, int(Status.INVALID), int(Status.INFEASIBLE) if needed[1] else -1)
    apart = A.dim() == 3 or status.numel() * m * n <= LARGEST_MATRICES
    dtypes = _dtypes(rows, apart)
    dtypes[1] = dtypes[1] if needed[1] and apart else None
    found = launch_backward(grad, A, rows.lower, rows.upper, Saved(y, dual, held.side, status), rules, dtypes)
    if rows.look and bool(found.open.any()):
        return None
    if not rows.look:
        found = _replace_open(found)
    matrix = found.matrix
    if needed[1] and matrix is None:
        sound, empty = (status != int(Status.INVALID)).unsqueeze(-1), status == int(Status.INFEASIBLE)
        y, dual = (torch.where(sound, part.double(), 0.0) for part in (y, dual))
        matrix = _matrix_gradient(found.raw, found.lower + found.upper, y, dual, empty, A)
    return (*_deliver((found.raw, matrix, found.lower, found.upper), rows, needed), *(None,) * (len(needed) - 4))


def _replace_open(found: Any) -> Any:
    """NaN for the samples whose active rows are nearly dependent, which the kernel leaves open."""
    parts = {name: getattr(found, name) for name in ("raw", "matrix", "lower", "upper")}
    shape = lambda part: found.open.view(-1, *(1,) * (part.dim() - 1)) != 0
    return found._replace(
        **{name: None if part is None else part.masked_fill(shape(part), torch.nan) for name, part in parts.items()}
    )


def _dtypes(rows: Batch, apart: bool) -> list[torch.dtype | None]:
    """The dtype of a sample's gradients: float64 where they are summed over samples afterwards."""
    return [
        rows.raw.dtype if apart and (part is None or part.dim() > core) else torch.float64
        for part, core in zip(rows.numbers, CORES, strict=False)
    ]
