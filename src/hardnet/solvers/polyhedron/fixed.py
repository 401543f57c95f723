"""The nearest point of any polyhedron by a fixed number of pivots: for compiled, exported and transformed code.

The active rows J come from the pivots, and y is ``raw - A_J' K^-1 (A_J raw - b_J)`` with ``K = A_J A_J'``. In compiled
code the pivots are one operator; in an exported program, which runs elsewhere, plain operations.

This is the dual active set method of `hardnet.solvers.polyhedron.pivoting`, with masks instead of indices, and without
reading values: every sample takes every step, and a finished one no longer changes. Equalities join first. A sample
that the steps do not finish can be recognized by its residual.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.products import times
from hardnet.rows import Batch, in_double, or_one, ordered
from hardnet.solvers.algebra.small import refined, solve_square
from hardnet.solvers.polyhedron.problem import EPS, FAR, GENERAL, harmless
from hardnet.solvers.solution import Found, Status
from hardnet.structure import bound_size, finite_size

PIVOT_DEPENDENT = 1e-11
"""The squared distance of a unit row to the span of the active rows below which the row counts as dependent."""


class Fixed(NamedTuple):
    """Where the pivots ended, for unit rows: any batch dimensions.

    Attributes:
        side: +1 active at the upper bound, -1 at the lower, 0 inactive: ``(*batch, m)``.
        inverse: ``(A_J A_J')^-1`` of the active rows, zero elsewhere: ``(*batch, m, m)``.
        ray: The combination of a violated row and the active rows it depends on, if none of these can leave; else zero:
            ``(*batch, m)``.
    """

    side: Tensor
    inverse: Tensor
    ray: Tensor


class _State(NamedTuple):
    """The basic variables `value` (the multiplier of an active row, the product of an inactive one), and the rest."""

    tableau: Tensor
    value: Tensor
    side: Tensor
    own: Tensor  # multiplier of the row that is joining, (*batch, 1)
    joining: Tensor  # that row as a mask
    wanted: Tensor  # equalities that have not been tried
    ray: Tensor


def steps_for(m: int, n: int) -> int:
    """The number of pivots that finishes nearly every sample.

    Every active row joins, and for a raw far away other rows join and leave again. Of 1000 samples of random slabs with
    raw up to 1e4 times outside, the slowest took 28 pivots for 10 rows of 10 outputs, 46 for 20 rows, 60 for 40 and 80
    for 100, so each doubling of the rows adds some.
    """
    return 2 * (1 + (m // n).bit_length()) * min(m, n) + 10


def fixed_pivots(
    gram: Tensor,
    product: Tensor,
    lower: Tensor,
    upper: Tensor,
    slack: Tensor,
    steps: int,
    *,
    exported: bool = False,
) -> Fixed:
    """The active rows of ``lower <= product - gram dual <= upper`` after `steps` pivots.

    Args:
        gram: ``A A'`` of unit rows, ``(*batch, m, m)``.
        product: ``A raw``, ``(*batch, m)``.
        lower: ``(*batch, m)``.
        upper: ``(*batch, m)``.
        slack: Violation that still counts as satisfied, ``(*batch, m)``.
        steps: How many pivots.
        exported: Whether the graph is exported; the pivots are then one loop operation.
    """
    nothing = torch.zeros_like(product)
    none = torch.zeros_like(product, dtype=torch.bool)
    state = _State(gram, product, nothing, nothing[..., :1], none, lower == upper, nothing)
    step = lambda *parts: _step(_State(*parts), lower, upper, slack)
    going = lambda *parts: _going(_State(*parts), lower, upper, slack)
    state = _State(*repeat(step, state, steps, going, exported=exported))
    active = (state.side != 0).to(gram)
    inverse = -state.tableau * active.unsqueeze(-1) * active.unsqueeze(-2)
    return Fixed(state.side, inverse, state.ray)


@torch.library.custom_op("hardnet::fixed_pivots", mutates_args=())
def _opaque(
    gram: Tensor, product: Tensor, lower: Tensor, upper: Tensor, slack: Tensor, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    side, inverse, ray = fixed_pivots(gram, product, lower, upper, slack, steps)
    return side.clone(), inverse.clone(), ray.clone()


@_opaque.register_fake  # pyright: ignore[reportFunctionMemberAccess]
def _(gram: Tensor, product: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(product), torch.empty_like(gram), torch.empty_like(product)


@_opaque.register_vmap  # pyright: ignore[reportFunctionMemberAccess]
def _(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    *tensors, steps = inputs
    front = [
        part.expand(info.batch_size, *part.shape) if dim is None else part.movedim(dim, 0)
        for part, dim in zip(tensors, in_dims, strict=False)
    ]
    return _opaque(*front, steps), (0, 0, 0)  # pyright: ignore[reportCallIssue]


def compiled_pivots(gram: Tensor, product: Tensor, lower: Tensor, upper: Tensor, slack: Tensor, steps: int) -> Fixed:
    """`fixed_pivots` as one operator of a compiled graph, which would have thousands of operations otherwise.

    It has no derivative, since active rows have none; what is computed from its result is differentiated as usual.
    """
    return Fixed(*_opaque(gram, product, lower, upper, slack, steps))


def _going(state: _State, lower: Tensor, upper: Tensor, slack: Tensor) -> Tensor:
    """Whether some sample still has a row that must join: a bool ``()``."""
    violated = torch.maximum(state.value - upper, lower - state.value) > slack
    stuck = (state.ray != 0).any(-1, keepdim=True)
    return ((state.joining | state.wanted | (violated & (state.side == 0))) & ~stuck).any()


class _Next(NamedTuple):
    """The row whose multiplier is raised.

    Attributes:
        row: As a mask, ``(*batch, m)``.
        working: Whether a sample has one, ``(*batch, 1)``.
        sign: +1 at its upper bound, -1 at its lower, ``(*batch, 1)``.
        missing: How far it is violated, ``(*batch, 1)``.
        room: The violation that still counts as satisfied, ``(*batch, 1)``.
    """

    row: Tensor
    working: Tensor
    sign: Tensor
    missing: Tensor
    room: Tensor


def _next(state: _State, lower: Tensor, upper: Tensor, slack: Tensor) -> _Next:
    """The row that is joining already, or the most violated one; equalities come first."""
    value = state.value
    excess = torch.where(state.side == 0, torch.maximum(value - upper, lower - value) - slack, -1.0)
    going = state.joining.any(-1, keepdim=True)
    urgent = torch.where(state.wanted, excess.abs() + 1e30, excess)
    row = _either(going, state.joining, _first_largest(urgent))
    stuck = (state.ray != 0).any(-1, keepdim=True)
    working = (going | (urgent > 0).any(-1, keepdim=True)) & ~stuck
    at = lambda part: torch.where(row, part, 0.0).sum(-1, keepdim=True)
    here, high, low, room = at(value), at(upper), at(lower), at(slack)
    above = here - high >= low - here
    sign = torch.where(above, 1.0, -1.0).to(value)
    return _Next(row, working, sign, torch.where(above, here - high, low - here).clamp_min(0.0), room)


def _step(state: _State, lower: Tensor, upper: Tensor, slack: Tensor) -> _State:
    """Raise one multiplier until its row is tight or another row must leave, and pivot on that row."""
    value, side = state.value, state.side
    row, working, sign, missing, room = _next(state, lower, upper, slack)
    column = (state.tableau * row.unsqueeze(-1)).sum(-2)
    slope = column * sign
    shrinks = (side * slope > 1e-13) & (lower != upper)
    lengths = torch.where(shrinks, value / torch.where(shrinks, slope, 1.0), torch.inf).clamp_min(0.0)
    until_leaving = lengths.amin(-1, keepdim=True)
    distance = torch.where(row, column, 0.0).sum(-1, keepdim=True)
    independent = distance > PIVOT_DEPENDENT
    until_tight = torch.where(independent, missing / torch.where(independent, distance, 1.0), torch.inf)
    blocked = torch.isinf(torch.minimum(until_tight, until_leaving))
    ray = torch.where(
        working & blocked & (missing > room), torch.where(row, 1.0, -column * (side != 0)) * sign, state.ray
    )
    wanted = state.wanted & ~(row & working)
    working = working & ~blocked
    joins = until_tight <= until_leaving
    length = torch.where(working, torch.minimum(until_tight, until_leaving), 0.0)
    moved, own = value - slope * length, state.own + sign * length
    turned = _either(joins, row, _first_largest(-lengths)) & working
    bound = torch.where(side > 0, upper, lower)
    value = torch.where(turned, torch.where(joins, own, bound), moved)
    side = torch.where(turned, torch.where(joins, sign, 0.0), side)
    own, joining = torch.where(joins | ~working, 0.0, own), row & working & ~joins
    return _State(_sweep(state.tableau, turned), value, side, own, joining, wanted, ray)


def _either(condition: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """``where`` for masks, which ONNX Runtime does not have."""
    return (condition & first) | (~condition & second)


def _first_largest(score: Tensor) -> Tensor:
    """The first largest entry as a mask."""
    place = torch.arange(score.shape[-1], device=score.device)
    return place == score.argmax(-1, keepdim=True)


def _sweep(tableau: Tensor, turned: Tensor) -> Tensor:
    """Pivot T on ``T_qq`` for the row q of the mask; T is unchanged if the mask is empty."""
    across, down = turned.unsqueeze(-1), turned.unsqueeze(-2)
    column = (tableau * across).sum(-2)
    pivot = torch.where(turned, column, 0.0).sum(-1, keepdim=True)
    any_ = turned.any(-1, keepdim=True)
    pivot = torch.where(any_, pivot, 1.0)
    swept = tableau - (column / pivot).unsqueeze(-1) * column.unsqueeze(-2)
    scaled = column / pivot.abs()
    swept = torch.where(across, scaled.unsqueeze(-2), torch.where(down, scaled.unsqueeze(-1), swept))
    swept = torch.where(across & down, -1 / pivot.unsqueeze(-1), swept)
    return torch.where(any_.unsqueeze(-1), swept, tableau)


# A step repeated a given number of times: plain operations, or one loop operation in an exported graph.
#
# An exported graph with every step written out has thousands of operations, takes minutes to make, and runs all of
# them; a loop is one operation (ONNX: Loop) that ends when the last sample is done.


State = tuple[Tensor, ...]


def repeat(
    step: Callable[..., State],
    state: State,
    count: int,
    going: Callable[..., Tensor] | None = None,
    *,
    exported: bool,
) -> State:
    """``step(*state)`` up to `count` times.

    The tensors of the state, and those that the step reads, should have no dimension of size 1: the ONNX exporter
    treats it as a dimension of any size, which does not broadcast.

    Args:
        step: Maps the state to tensors of the same number, shapes and dtypes.
        state: The tensors to start from.
        count: How many times.
        going: From the state, a bool ``()`` that says whether some sample is not done; an exported loop ends when none
            is left.
        exported: Whether the graph is exported.
    """
    if not exported:
        for _ in range(count):
            state = step(*state)
        return state
    return _loop(step, state, count, going)


def _loop(step: Callable[..., State], state: State, count: int, going: Callable[..., Tensor] | None) -> State:
    """The same as one loop operation of the graph."""
    from torch._higher_order_ops.while_loop import while_loop

    def more(done: Tensor, *parts: Tensor) -> Tensor:
        left = done < count
        return left if going is None else left & going(*parts)

    def once(done: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        return done + 1, *(part.clone(memory_format=torch.contiguous_format) for part in step(*parts))

    start: Any = tuple(part.detach().clone(memory_format=torch.contiguous_format) for part in state)
    done = torch.zeros((), dtype=torch.int64, device=state[0].device)
    return tuple(while_loop(more, once, (done, *start)))[1:]


# The nearest point on the rows that the pivots ended with, and its verdict ------------------------------------------


class _Scaled(NamedTuple):
    """The problem scaled to numbers of size one and unit rows, in float64."""

    raw: Tensor
    A: Tensor
    lower: Tensor
    upper: Tensor
    unit: Tensor  # (*batch, 1)
    length: Tensor  # what each row was divided by, (*batch, m)


def project_fixed(rows: Batch, steps: int | None = None) -> tuple[Found, Tensor]:
    """``argmin |y - raw|  subject to  lower <= A y <= upper`` after a fixed number of pivots, without a derivative.

    Also returns the inverse of the products of the active unit rows, zero elsewhere, ``(B, m, m)``.

    Args:
        rows: The record of the call; the answer is a flat batch, y in the dtype of its raw.
        steps: How many pivots; by default `steps_for`.
    """
    raw, (m, n), exported = rows.raw, rows.A.shape[-2:], rows.mode == "export"
    wide = tuple(part.detach() for part in _full(rows))
    valid = _valid(*wide)
    problem = _scale(*harmless(valid, *wide))
    raw_, A_, low, high = problem[:4]
    product = times(A_, raw_)
    nearest = finite_size(torch.minimum(low.abs(), high.abs()))
    slack = GENERAL.inside * (times(A_.abs(), raw_.abs()) + nearest)
    inside = (torch.maximum(product - high, low - product) <= slack).all(-1)
    pivots = compiled_pivots if rows.mode == "compile" else partial(fixed_pivots, exported=exported)
    steps = steps_for(m, n) if steps is None else steps
    found = pivots(A_ @ A_.mT, product, low, high, slack, steps)
    bare = exported or rows.mode == "eager"
    y, weight, inverse = _on_active(problem, found.side, found.inverse, bare)
    residual = torch.where(inside, 0.0, _residual(raw_, A_, low, high, y, weight))
    empty = _proved_empty(A_, low, high, found.ray, y)
    met = inside | _met(A_, low, high, y, torch.finfo(raw.dtype).eps)
    residual = torch.where(met, residual, torch.inf)
    status = _status(valid, residual, empty)
    dual = _multipliers(problem, weight, found.ray, inside, status)
    moved = within_unit_rows(y * problem.unit, *wide[1:]).to(raw.dtype)
    y = torch.where(valid.unsqueeze(-1), torch.where(inside.unsqueeze(-1), raw.detach(), moved), torch.nan)
    return Found(y, None, dual, found.side, status, residual, torch.where(inside, 0, steps)), inverse


def _multipliers(problem: _Scaled, dual: Tensor, ray: Tensor, inside: Tensor, status: Tensor) -> Tensor:
    """``raw - y = A'dual`` in the original units; for an empty set the weights of rows that contradict each other."""
    dual = torch.where(inside.unsqueeze(-1), 0.0, dual * problem.unit) / problem.length
    proof = ray / problem.length
    proof = proof / or_one(proof.abs().amax(-1, keepdim=True))
    kind = status.unsqueeze(-1)
    dual = torch.where(kind == int(Status.INFEASIBLE), proof, dual)
    return torch.where(kind == int(Status.INVALID), torch.nan, dual)


def within_unit_rows(y: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """Y clamped to the bounds of the rows that are ``y_j`` or ``-y_j``, which removes rounding; without derivatives."""
    A, y = A.detach(), y.detach()
    alone = ((A != 0).sum(-1) == 1) & (A.abs().amax(-1) == 1)
    plus, minus = (A == 1) & alone.unsqueeze(-1), (A == -1) & alone.unsqueeze(-1)
    for bound, sign in ((upper, 1.0), (lower, -1.0)):
        if bound is not None:
            level = bound.detach().unsqueeze(-1)
            most = torch.where(plus if sign > 0 else minus, sign * level, torch.inf).amin(-2)
            least = torch.where(minus if sign > 0 else plus, -sign * level, -torch.inf).amax(-2)
            y = torch.minimum(torch.maximum(y, least), most)
    return y


def _full(rows: Batch) -> tuple[Tensor, ...]:
    """Raw, A, lower and upper in float64, all with the full batch dimension; absent bounds are infinite."""
    wide = in_double(rows)
    raw, A, lower, upper = wide.numbers
    return raw, A.expand(raw.shape[0], *A.shape[-2:]), lower, upper  # pyright: ignore[reportReturnType]


def _valid(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Whether a sample's numbers are valid, as in `hardnet.solvers.polyhedron.projection`: ``(*batch)``."""
    numbers = raw.isfinite().all(-1) & A.isfinite().all(-1).all(-1)
    return numbers & ordered(lower, upper).all(-1)


def _scale(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> _Scaled:
    """Divide rows by their lengths and samples by their sizes."""
    size = or_one(A.abs().amax(-1))
    A = A / size.unsqueeze(-1)
    length = or_one(torch.linalg.vector_norm(A, dim=-1))
    A = A / length.unsqueeze(-1)
    low, high = (bound / size / length for bound in (lower, upper))
    asked = torch.maximum(low, -high)
    asked = torch.where((asked > 0) & asked.isfinite(), asked, 0.0)
    unit = or_one(torch.maximum(raw.abs().amax(-1, keepdim=True), asked.amax(-1, keepdim=True)))
    return _Scaled(raw / unit, A, low / unit, high / unit, unit, size * length)


def _on_active(problem: _Scaled, side: Tensor, inverse: Tensor, bare: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest point on the active rows, corrected once, its multipliers, and the inverse of their products.

    With `bare` nothing is factorized, which exported formats cannot and a device would wait for.
    """
    active = side != 0
    bound = torch.where(active, torch.where(side > 0, problem.upper, problem.lower), 0.0)
    rows = torch.where(active.unsqueeze(-1), problem.A, 0.0)
    K = rows @ rows.mT + torch.diag_embed((~active).to(rows))
    y, dual = problem.raw, torch.zeros_like(bound)
    for _ in range(2):
        right = times(rows, y) - bound
        step = refined(inverse, K, right) if bare else solve_square(K, right)
        y, dual = y - times(rows.mT, step), dual + step
    if bare:
        return y, dual, 2 * inverse - inverse @ K @ inverse
    both = active.unsqueeze(-1) & active.unsqueeze(-2)
    return y, dual, torch.where(both, torch.linalg.inv_ex(K).inverse, 0.0)


def _residual(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor, y: Tensor, dual: Tensor) -> Tensor:
    """The residual of `hardnet.solvers.polyhedron.problem.kkt_residual`, for unit rows."""
    stationarity = (y - raw + times(A.mT, dual)).abs().amax(-1)
    product = times(A, y)
    missed = (product - torch.minimum(torch.maximum(product + dual, lower), upper)).abs().amax(-1)
    return torch.maximum(stationarity, missed) / y.abs().amax(-1).clamp_min(1.0)


def _proved_empty(A: Tensor, lower: Tensor, upper: Tensor, ray: Tensor, y: Tensor) -> Tensor:
    """Farkas: ``A'ray = 0`` and ``sum(upper ray+) - sum(lower ray-) < 0`` prove that no y exists: ``(*batch)``."""
    bound = torch.where(ray > 0, upper, lower)
    value = torch.where(ray != 0, ray * torch.where(ray != 0, bound, 0.0), 0.0).sum(-1)
    leak = times(A.mT, ray).abs().sum(-1) + A.shape[-1] * EPS * ray.abs().sum(-1)
    return value < -FAR * leak * (1 + y.abs().amax(-1))


def _met(A: Tensor, lower: Tensor, upper: Tensor, y: Tensor, rounding: float) -> Tensor:
    """Whether the rows hold at y within what a certificate allows for this machine epsilon: ``(*batch)``."""
    weight = A.abs().sum(-1)
    size = weight * y.abs().amax(-1, keepdim=True) + bound_size(lower, upper, weight)
    product = times(A, y)
    return (torch.maximum(product - upper, lower - product) <= GENERAL.allowed * rounding * size).all(-1)


def _status(valid: Tensor, residual: Tensor, empty: Tensor) -> Tensor:
    """The status of each sample; the residual is infinite where a row is not met."""
    near = torch.where(residual < torch.inf, int(Status.FEASIBLE), int(Status.NOT_CONVERGED))
    status = torch.where(residual <= GENERAL.solved, int(Status.SOLVED), near)
    status = torch.where(empty & (residual > GENERAL.solved), int(Status.INFEASIBLE), status)
    return torch.where(valid, status, int(Status.INVALID)).to(torch.int8)
