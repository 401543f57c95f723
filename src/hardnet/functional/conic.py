"""The exact projection onto any intersection of blocks, and what happens to samples that have no answer.

Small sets on a CPU are projected by compiled code, sample by sample; the solver takes the others, and samples that
compiled code leaves open. Eager code calls both in a function of autograd, a compiled graph as one operator, since
iterations would be thousands of operations of the graph; nothing is raised there, and a sample that is not solved is
NaN. All have the derivative of `cotangents`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from hardnet.errors import OptionError, ShapeError, sentence
from hardnet.functional.derivatives import attach, implicit_vjp
from hardnet.functional.samples import report_curved
from hardnet.kernels.cpu.conic import project, project_back, takes
from hardnet.kernels.limits import CURVED
from hardnet.modes import GRAPHS, may_look, may_wait, mode, plain, refuse_transforms
from hardnet.nearest.policy import QUIET, Once, OnInfeasible, OnInvalid, OnUnsolved, Policy, answered
from hardnet.products import power_above, times_tiled
from hardnet.rows import lead
from hardnet.shapes import broadcast_batch, require_float, require_like
from hardnet.solvers.conic.blocks import Block, Linear, Stack, gather, images
from hardnet.solvers.conic.solve import StiffSaddle, local_unit
from hardnet.solvers.conic.solve import project_intersection as solve
from hardnet.solvers.solution import Solution, Status, place

# The derivative of the projection onto blocks, by the implicit function theorem.
#
# At a solution, with the derivative of the cone projection in its eigenbasis (rows, delta; see `solvers.conic.stack`),
#
#     W = I + sum_i dual_i D2G_i + rows' diag((1 - delta) / delta) rows   over the rows that bend,
#     C = rows with delta = 0,      N = W^-1 - W^-1 C'(C W^-1 C')^+ C W^-1,
#
# the cotangent of raw is ``u = N g``; that of every number of the set is the gradient of
# ``weight . G(y) - dual . DG(y) u`` at fixed y, with ``weight = -Q (S^+ C W^-1 g + bend rows u)``.


def cotangents(
    grad: Tensor,
    y: Tensor,
    dual: Tensor,
    kinds: Sequence[type[Block]],
    fields: Sequence[Tensor],
    needed: Sequence[int],
    operator: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """The cotangents of raw ``(B, n)``, in float64, and of the `needed` fields, each in its own dtype.

    Args:
        grad: Cotangent of y, ``(B, n)``.
        y: The answer in float64, ``(B, n)``; samples of NaN get zeros.
        dual: Multipliers, ``(B, r)``.
        kinds: The blocks that the fields make up.
        fields: The numbers of all blocks, each led by B or 1.
        needed: Which of them want a cotangent.
        operator: Whether an operator of torch calls, where autograd is off whatever is asked, and `torch.func` is not.
    """
    bad = y.isnan().any(-1, keepdim=True)
    y, dual = torch.where(bad, 0.0, y), torch.where(bad, 0.0, dual)
    clean = [_sound(field.detach()) for field in fields]
    exact = torch.where(bad, 0.0, grad.double())
    if plain(y, *clean) and takes(y, kinds, clean):
        u, weight = project_back(exact, y, dual, kinds, clean)
    else:
        u, weight = _adjoint(gather(kinds, clean), y, dual, exact)
    return u, _number_grads(kinds, fields, needed, (y, u, weight, dual), operator)


def _sound(field: Tensor) -> Tensor:
    """NaN of invalid samples as zero: LAPACK refuses a whole batch for one of them. Infinite bounds stay."""
    return torch.where(field.isnan(), torch.zeros_like(field), field)


def _adjoint(blocks: list[Block], y: Tensor, dual: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The cotangents of raw ``(B, n)`` and of the values G ``(B, r)``.

    Lengths are taken in the unit of y, and the distance is weighted so that the multipliers are of size one too: a
    weight scales the whole Hessian of the Lagrangian, so u comes out divided by it.
    """
    stack = Stack(images(blocks), y.shape[-1])
    factors, unit = stack.factors(y), local_unit(y, stack, y, dual)
    factor = stack.spread(factors, y)
    lean = dual * factor / unit
    size = lean.abs().amax(-1, keepdim=True)
    weight = power_above(1 / size.clamp_min(CURVED.faint))
    lean, scaled, point = lean * weight, stack.scaled(factors, unit), y / unit
    tolerance = torch.where(size == 0, torch.inf, CURVED.tight)  # raw was inside: only equalities are tight
    feet = scaled.feet(scaled.value(point) + lean)
    linear, frames = scaled.linear(point, feet, tolerance)
    tight = torch.where(linear.tight.unsqueeze(-1), linear.rows, 0.0)
    # u is orthogonal to tight rows, so that their squares change nothing but the condition of the Hessian
    hessian = linear.hessian(scaled.curvature(weight, lean)) + tight.mT @ tight
    u, pull = _solve_adjoint(grad, linear, hessian)
    bent = linear.bend * times_tiled(linear.rows, u)
    return weight * u, -scaled.restore(frames, pull + bent) / factor


def _solve_adjoint(grad: Tensor, linear: Linear, hessian: Tensor) -> tuple[Tensor, Tensor]:
    """``[W C'; C 0] (u, w) = (g, 0)``: by ranks where a look is free, else by a fixed program."""
    if may_look(grad):
        return implicit_vjp(grad, linear.rows, linear.tight, hessian)
    return StiffSaddle(hessian, linear).solve(grad, torch.zeros_like(linear.delta))


def _number_grads(
    kinds: Sequence[type[Block]],
    fields: Sequence[Tensor],
    needed: Sequence[int],
    at: tuple[Tensor, Tensor, Tensor, Tensor],
    operator: bool,
) -> list[Tensor]:
    """The gradient of ``weight . G(y) - dual . DG(y) u`` to the needed numbers, in their own dtype."""
    if not needed:
        return []
    y, u, weight, dual = at

    def total(wanted: list[Tensor]) -> Tensor:
        leaves = [field.detach() for field in fields]
        for i, leaf in zip(needed, wanted, strict=True):
            leaves[i] = leaf
        stack = Stack(images(gather(kinds, leaves)), y.shape[-1])
        cuts = zip(stack.images, stack.split(weight), stack.split(dual), strict=True)
        return torch.stack([image.pairing(y, u, own, lean) for image, own, lean in cuts]).sum()

    wanted = [fields[i].detach() for i in needed]
    if operator:
        found = torch.func.grad(total)(wanted)
    else:
        with torch.enable_grad():
            found = torch.autograd.grad(total([leaf.requires_grad_() for leaf in wanted]), wanted)
    return [gradient.to(fields[i].dtype) for i, gradient in zip(needed, found, strict=True)]


def project_intersection(
    raw: Tensor,
    blocks: Sequence[Block],
    *,
    tolerance: float = 1e-9,
    on_infeasible: OnInfeasible = "auto",
    on_unsolved: OnUnsolved = "auto",
    on_invalid: OnInvalid = "raise",
    once: Once | None = None,
) -> Tensor:
    """``argmin |y - raw|`` subject to every block, differentiable in raw and in every number.

    Samples are independent. The solver works in float64 whatever the dtype of raw; a raw output inside the set (to
    rounding) is returned bit for bit. A point whose rows hold, but that is not proved to be the nearest to `tolerance`,
    is FEASIBLE: it is returned with a `NotConvergedWarning`.

    Args:
        raw: ``(*batch, n)``.
        blocks: `Intervals`, `SecondOrder`, `SemiDefinite`, `Quadratics`; each tensor with or without batch dimensions.
        tolerance: Scale-free KKT residual below which a sample counts as solved.
        on_infeasible: What an empty set gives: an `InfeasibleError`, or NaN for that sample alone; ``"auto"`` raises
            where a look is free (on a CPU), and gives NaN elsewhere.
        on_unsolved: What a sample gives that is neither solved nor shown to be empty: a `ConvergenceError`, NaN, or
            the ``"best"`` point found; ``"auto"`` as above.
        on_invalid: What NaN, lower > upper or a P that is not positive semidefinite give: an error, or NaN.
        once: Where a layer remembers that it has warned.

    Returns:
        y ``(*batch, n)``, in the dtype and on the device of raw. Samples answered by NaN have zero gradients.
    """
    refuse_transforms("the projection onto a convex set")
    policy = Policy(on_infeasible, on_unsolved, on_invalid, once=once).checked().resolved(may_look(raw))
    asks, best = policy.asks, policy.on_unsolved == "best"
    batch, flat, kinds = _flatten(raw, blocks)
    if mode() in GRAPHS:  # which raise nothing
        y = _operator(_spread(raw, batch), flat, _names(kinds), tolerance, best)[0]  # pyright: ignore[reportCallIssue]
        return y.reshape(*batch, raw.shape[-1])
    if asks and not may_wait():
        remedy = "use 'auto' or 'nan', and constraint.solve for the status"
        name = "on_infeasible" if on_infeasible == "raise" else "on_unsolved"
        raise OptionError(sentence(name, "no error inside a capture", "'raise'", remedy))

    def find(raw: Tensor, *fields: Tensor) -> Any:
        """The solution, with NaN for samples without an answer; only answers send a gradient."""
        found = _find(raw, kinds, fields, tolerance)
        return (_shown(found, best).to(raw.dtype), *found[1:]), (answered(found), found.dual)

    what = "a projection onto curved sets"
    y, *rest = attach(find, partial(_through, kinds), (_spread(raw, batch), *flat), what)
    if (may_look(raw) or asks) and bool((rest[1] != int(Status.SOLVED)).any()):
        found = Solution(*(part.detach().reshape(batch + part.shape[1:]) for part in (y, *rest)))
        report_curved(raw, blocks, found, gather(kinds, flat), policy)
    return y.reshape(*batch, raw.shape[-1])


def with_derivative(raw: Tensor, blocks: Sequence[Block], y: Tensor, dual: Tensor) -> Tensor:
    """The nearest point y ``(B, n)`` that was found, with its derivative, from its multipliers ``(B, R)``."""
    _, flat, kinds = _flatten(raw, blocks)
    return attach(lambda *_: ((y,), (y, dual)), partial(_through, kinds), (raw, *flat), "a projection onto curved sets")


def solve_intersection(raw: Tensor, blocks: Sequence[Block], *, tolerance: float = 1e-9) -> Solution:
    """The same projection with its `Solution` (status, residual, iterations and multipliers), without gradients."""
    refuse_transforms("the projection onto a convex set")
    batch, flat, kinds = _flatten(raw, blocks)
    if mode() in GRAPHS:
        y, _, *rest = _operator(_spread(raw, batch), flat, _names(kinds), tolerance, True)  # pyright: ignore[reportCallIssue]
        found = Solution(y, *rest)
    else:
        found = _find(_spread(raw, batch), kinds, flat, tolerance)
    return Solution(*(field.reshape(batch + field.shape[1:]) for field in found))


def _flatten(raw: Tensor, blocks: Sequence[Block]) -> tuple[torch.Size, list[Tensor], list[type[Block]]]:
    """Join the batch dimensions; every tensor then leads with B, or with 1 where it is constant."""
    require_float("raw", raw)
    if raw.dim() == 0:
        raise ShapeError(sentence("raw", "shape (*batch, n)", tuple(raw.shape), "give it an output dimension"))
    batch = raw.shape[:-1]
    named = [
        (name, field, core)
        for block in blocks
        for (name, field), core in zip(block._asdict().items(), block.cores, strict=True)
    ]
    for name, field, core in named:
        require_like(name, field, raw)
        batch = broadcast_batch(name, batch, field.shape[: field.dim() - core])
    flat = [lead(field, batch, core) for _, field, core in named]
    return batch, flat, [type(block) for block in blocks]


def _spread(raw: Tensor, batch: torch.Size) -> Tensor:
    """Raw with the joint batch as one dimension, ``(B, n)``."""
    return raw.expand(*batch, raw.shape[-1]).reshape(batch.numel(), raw.shape[-1])


def _find(raw: Tensor, kinds: Sequence[type[Block]], fields: Sequence[Tensor], tolerance: float) -> Solution:
    """The projection of a flat batch: by compiled code where it takes the blocks, and the rest by the solver."""
    if not (may_look(raw) and plain(raw, *fields) and takes(raw, kinds, fields)):
        return solve(raw, gather(kinds, fields), tolerance=tolerance, dtype=raw.dtype)
    y, dual, steps, residual, left = project(raw, kinds, fields, tolerance)
    found = Solution(y, dual, torch.full_like(steps, Status.SOLVED, dtype=torch.int8), steps, residual)
    if left is None:
        return found
    own = [field if field.shape[0] == 1 else field[left] for field in fields]
    return place(found, left, solve(raw[left], gather(kinds, own), tolerance=tolerance, dtype=raw.dtype))


def _through(kinds: list[type[Block]], grad: Tensor, saved: Any, inputs: Any, needed: Any) -> list[Tensor | None]:
    """``u = N g`` to raw, and the pairing's gradient to every number."""
    wanted = [i for i, need in enumerate(needed[1:]) if need]
    y, dual = saved
    u, found = cotangents(grad, y, dual, kinds, inputs[1:], wanted)
    grads: list[Tensor | None] = [u, *(None for _ in inputs[1:])]
    for i, gradient in zip(wanted, found, strict=True):
        grads[1 + i] = gradient
    return grads


def _shown(found: Solution, best: bool) -> Tensor:
    """Y, with NaN for samples without an answer, unless the best point is asked for."""
    return answered(found, QUIET._replace(on_unsolved="best" if best else "nan"))


KINDS: dict[str, type[Block]] = {kind.__name__: kind for kind in get_args(Block)}


def _names(kinds: Sequence[type[Block]]) -> str:
    """The blocks in words, which an operator takes."""
    return " ".join(kind.__name__ for kind in kinds)


def _kinds(names: str) -> list[type[Block]]:
    return [KINDS[name] for name in names.split()]


@torch.library.custom_op("hardnet::project_blocks", mutates_args=())
def _operator(
    raw: Tensor, fields: list[Tensor], kinds: str, tolerance: float, best: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    found = _find(raw, _kinds(kinds), fields, tolerance)
    return (
        _shown(found, best).to(raw.dtype, copy=True),
        answered(found),
        found.dual,
        found.status,
        found.iterations,
        found.residual,
    )


@_operator.register_fake  # pyright: ignore[reportFunctionMemberAccess]
def _(raw: Tensor, fields: list[Tensor], kinds: str, tolerance: float, best: bool) -> tuple[Tensor, ...]:
    rows = sum(block.rows for block in gather(_kinds(kinds), fields))
    wide = torch.empty_like(raw, dtype=torch.float64)
    status, iterations = (torch.empty_like(wide[:, 0], dtype=kind) for kind in (torch.int8, torch.int64))
    dual, residual = wide.new_empty(raw.shape[0], rows), torch.empty_like(wide[:, 0])
    return torch.empty_like(raw), wide, dual, status, iterations, residual


@torch.library.custom_op("hardnet::project_blocks_backward", mutates_args=())
def _backward(
    grad: Tensor, y: Tensor, dual: Tensor, fields: list[Tensor], kinds: str, needed: list[int]
) -> list[Tensor]:
    u, found = cotangents(grad, y, dual, _kinds(kinds), fields, needed, operator=True)
    return [u.to(grad.dtype, copy=True), *(gradient.clone() for gradient in found)]  # which may alias each other


@_backward.register_fake  # pyright: ignore[reportFunctionMemberAccess]
def _(grad: Tensor, y: Tensor, dual: Tensor, fields: list[Tensor], kinds: str, needed: list[int]) -> list[Tensor]:
    return [torch.empty_like(grad), *(torch.empty_like(fields[i]) for i in needed)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, fields, kinds, *_ = inputs
    ctx.save_for_backward(*output[1:3], *fields)
    ctx.kinds, ctx.needed = kinds, [i for i, field in enumerate(fields) if field.requires_grad]


def _derive(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    y, dual, *fields = ctx.saved_tensors
    u, *found = _backward(grad, y, dual, fields, ctx.kinds, ctx.needed)  # pyright: ignore[reportCallIssue]
    grads: list[Tensor | None] = [None] * len(fields)
    for i, gradient in zip(ctx.needed, found, strict=True):
        grads[i] = gradient
    return u, grads, None, None, None


_operator.register_autograd(_derive, setup_context=_keep)  # pyright: ignore[reportFunctionMemberAccess]
