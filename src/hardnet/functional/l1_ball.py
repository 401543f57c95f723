"""The weighted L1 ball ``sum_i weights_i |y_i - center_i| <= radius``: its nearest point alone, by sorting.

Beside other sets it is worked on in `hardnet.functional.l1_ball`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import NEGATIVE, NOT_FINITE, InfeasibleError
from hardnet.functional.conic import solve_intersection, with_derivative
from hardnet.functional.derivatives import keep_value
from hardnet.functional.nearest import project_rows, solve_rows
from hardnet.functional.quadratic import diagonalize
from hardnet.functional.samples import refuse, reject
from hardnet.functional.tangents import by_tangents, smooth
from hardnet.kernels.limits import MOST_CONIC_NUMBERS
from hardnet.modes import may_look, outside_compiler, refuse_transforms
from hardnet.nearest.policy import (
    QUIET,
    Once,
    OnInfeasible,
    OnInvalid,
    OnUnsolved,
    Policy,
    answered,
    refuse_unsolved,
    warn_unproved,
)
from hardnet.shapes import broadcast_batch, check_bound, check_number, require_float, require_like
from hardnet.solvers.conic.blocks import Balls, Block, Intervals, Quadratics, SecondOrder, SemiDefinite, convex, valid
from hardnet.solvers.solution import Solution, Status, place
from hardnet.structure import BoxedRows, join_rows


class L1(NamedTuple):
    """The numbers of one ball.

    Attributes:
        center: ``(n,)`` or ``(*batch, n)``.
        radius: ``()`` or ``(*batch)``.
        weights: Like `center`; None for ones.
    """

    center: Tensor
    radius: Tensor
    weights: Tensor | None

    def excess(self, y: Tensor) -> Tensor:
        """``sum_i weights_i |y_i - center_i| - radius``, ``(*batch, 1)``."""
        off = (y - self.center).abs()
        off = off if self.weights is None else off * self.weights
        return off.sum(-1, keepdim=True) - self.radius.unsqueeze(-1)

    def residual(self, y: Tensor) -> Tensor:
        """``relu`` of the same."""
        return self.excess(y).clamp_min(0)

    def scale(self, y: Tensor) -> Tensor:
        """``sum_i weights_i (|y_i| + |center_i|) + |radius|``, ``(*batch, 1)``."""
        off = y.abs() + self.center.abs()
        off = off if self.weights is None else off * self.weights
        return off.sum(-1, keepdim=True) + self.radius.abs().unsqueeze(-1)

    def sound(self) -> Tensor:
        """Which samples have numbers that mean something, in the batch of these numbers."""
        sound = self.center.isfinite().all(-1) & self.radius.isfinite() & (self.radius >= 0)
        return sound if self.weights is None else sound & (self.weights.isfinite() & (self.weights >= 0)).all(-1)

    def refuse(self, raw: Tensor) -> None:
        """Raise the error that says what is wrong with the numbers of some sample, if something is."""
        reject(~raw.isfinite().all(-1), NOT_FINITE, "raw")
        reject(~self.center.isfinite().all(-1), NOT_FINITE, "center")
        reject(~(self.radius.isfinite() & (self.radius >= 0)), NEGATIVE, "radius")
        if self.weights is not None:
            reject(~(self.weights.isfinite() & (self.weights >= 0)).all(-1), NEGATIVE, "weights")


def project_l1_ball(
    raw: Tensor,
    center: Tensor,
    radius: Tensor | float,
    weights: Tensor | None = None,
    *,
    on_invalid: OnInvalid = "raise",
) -> Tensor:
    """``argmin |y - raw|  s.t.  sum_i weights_i |y_i - center_i| <= radius``: soft thresholding.

    ``y = center + sign(v) relu(|v| - price weights)`` with ``v = raw - center``. With ``|v| / weights`` sorted in
    descending order, ``price = max_k (sum_{i<=k} weights_i |v_i| - radius) / sum_{i<=k} weights_i^2``: O(n log n). Sums
    are in float64, and the derivative is that of the formula on its support.

    Args:
        raw: ``(*batch, n)``.
        center: ``(n,)`` or ``(*batch, n)``.
        radius: A number, or ``(*batch)``; not negative. A radius of zero gives `center` itself.
        weights: ``(n,)`` or ``(*batch, n)``, not negative; None for ones. An output with weight zero stays as it is.
        on_invalid: On NaN or a negative number on a CPU in eager mode, raise an error or return NaN for that sample.
    """
    numbers = _checked(raw, center, radius, weights)
    y = _soft_threshold(raw, numbers)[0]
    sound = numbers.sound() & raw.isfinite().all(-1)
    if on_invalid == "raise" and may_look(y) and not bool(sound.all()):
        numbers.refuse(raw)
    return torch.where(sound.unsqueeze(-1), y, torch.nan)


@torch.no_grad()
def solve_l1_ball(raw: Tensor, center: Tensor, radius: Tensor, weights: Tensor | None = None) -> Solution:
    """`project_l1_ball` with its multiplier, the price of the radius ``(*batch, 1)``, status and residual."""
    numbers = _checked(raw, center, radius, weights)
    y, price = _soft_threshold(raw, numbers)
    sound = numbers.sound() & raw.isfinite().all(-1)
    y = torch.where(sound.unsqueeze(-1), y, torch.nan)
    size = numbers.scale(y)
    residual = (numbers.excess(y) / torch.where(size > 0, size, 1.0)).clamp_min(0.0).squeeze(-1)
    status = torch.where(sound, int(Status.SOLVED), int(Status.INVALID)).to(torch.int8)
    return Solution(y, price.to(y.dtype), status, torch.zeros_like(status, dtype=torch.long), residual)


def _checked(raw: Tensor, center: Tensor, radius: Tensor | float, weights: Tensor | None) -> L1:
    """The numbers as a record, of shapes that fit raw."""
    require_float("raw", raw)
    n = raw.shape[-1] if raw.dim() else 0
    for name, vector in (("center", center), ("weights", weights)):
        if vector is not None:
            require_like(name, vector, raw)
            check_bound(name, vector, raw, n)
            broadcast_batch(name, raw.shape[:-1], vector.shape[:-1])
    return L1(center, check_number("radius", radius, raw), weights)


def _soft_threshold(raw: Tensor, numbers: L1) -> tuple[Tensor, Tensor]:
    """The nearest point in the dtype of raw, and the price ``(*batch, 1)`` float64."""
    exact, center, reach = raw.double(), numbers.center.double(), numbers.radius.double().unsqueeze(-1)
    offset = exact - center
    weights = torch.ones_like(offset) if numbers.weights is None else numbers.weights.double().expand_as(offset)
    size = weights * offset.abs()
    free = (weights == 0).detach()  # outputs that the ball does not see
    with torch.no_grad():
        order = torch.where(free, -1.0, offset.abs() / torch.where(free, 1.0, weights))
        order = order.argsort(dim=-1, descending=True)
        squares = weights.square().gather(-1, order).cumsum(-1)
        prices = (size.gather(-1, order).cumsum(-1) - reach) / torch.where(squares > 0, squares, 1.0)
        price = torch.where(squares > 0, prices, -torch.inf).amax(-1, keepdim=True)
        outside = price > 0
        support = outside & ~free & (offset.abs() > price * weights)
    total = torch.where(support, weights.square(), 0.0).sum(-1, keepdim=True)
    rest = (torch.where(support, size, 0.0).sum(-1, keepdim=True) - reach) / torch.where(total > 0, total, 1.0)
    price = torch.where(total > 0, rest, price.clamp_min(0.0))
    held = outside & ~free & ~support
    y = torch.where(support, exact - offset.detach().sign() * price * weights, exact)
    y = torch.where(held, center.expand_as(offset), y)
    pull = torch.where(support, offset.sign() * weights / torch.where(total > 0, total, 1.0), 0.0).detach()
    return keep_value(y, _on_the_face(y.detach(), numbers, pull)).to(raw.dtype), price


POLISHING_FACES = 2
"""Steps onto the face that undo the rounding of ``raw - price weights`` where raw is much farther away than y."""


@torch.no_grad()
def _on_the_face(y: Tensor, numbers: L1, pull: Tensor) -> Tensor:
    """Y moved against `pull` ``(*batch, n)``, along which the sum falls by one, until it is the radius to rounding."""
    exact = L1(*(None if part is None else part.detach().double() for part in numbers))  # pyright: ignore[reportArgumentType]
    for _ in range(POLISHING_FACES):
        y = y - exact.excess(y) * pull
    return y


# The nearest point of L1 balls beside any convex set, exact, without a row for each of the 2^n faces of a ball.
#
# Where the signs s of ``y - center`` are known, a ball is a box and one row: ``s (y - center) >= 0`` and
# ``sum_i s_i weights_i (y_i - center_i) <= radius``. The nearest point of such a piece is the answer unless some output
# that its signs hold at the center wants to cross it by more than the ball charges for a crossing: its multiplier
# exceeds ``2 price weights_i``. These signs are turned, and the point, which lies in the next piece too, comes strictly
# nearer, so that the search ends at the optimality conditions of the whole. The derivative is that of the last piece.


SMALL = MOST_CONIC_NUMBERS
"""Outputs times rows up to which curved sets are solved as they are, without tangents."""
MOST_TURNS = 100
"""The most times that signs are turned."""
MOST_STEPS = 60
"""The most proximal steps of the lifted problem, for the few samples that signs alone do not settle."""
PRICE = 1e-10
"""What a multiplier may exceed the price of a crossing by, in parts of the distance from raw to y."""

NEAR = 1e-9
"""How far a curved solver may leave a held output from its center, relative to the size of y."""


PIECES: dict[str, Any] = {"on_infeasible": "nan", "on_unsolved": "nan", "on_invalid": "nan", "once": QUIET.once}
"""A piece is solved without a word: what it gives is judged for the whole set."""


class Region(NamedTuple):
    """What L1 balls stand beside, and the balls; every tensor float64, led by B or shared by all samples.

    Attributes:
        rows: General rows beside a box.
        blocks: Curved blocks.
        balls: The L1 balls.
    """

    rows: BoxedRows
    blocks: Sequence[Block]
    balls: Sequence[L1]

    def map(self, function: Any) -> Region:
        """Apply ``function(number, core)`` to every tensor, where core counts its dimensions after the batch."""
        blocks = [
            type(block)(*(function(field, core) for field, core in zip(block, block.cores, strict=True)))
            for block in self.blocks
        ]
        balls = [L1(function(c, 1), function(r, 0), None if w is None else function(w, 1)) for c, r, w in self.balls]
        return Region(self.rows.map(function), blocks, balls)

    def take(self, index: Tensor) -> Region:
        """Some samples, with gradients."""
        return self.map(lambda number, core: number[index] if number.dim() > core else number)

    def weights(self) -> list[Tensor]:
        """Those of each ball, written out."""
        return [torch.ones_like(ball.center) if ball.weights is None else ball.weights for ball in self.balls]

    def piece(self, signs: Tensor) -> BoxedRows:
        """The rows with those of the balls where ``y - center`` has these signs, ``(B, balls, n)``."""
        parts = [self.rows]
        for sign, ball, weights in zip(signs.unbind(-2), self.balls, self.weights(), strict=True):
            seen, slope = weights > 0, sign * weights
            aim = ball.radius + (slope * ball.center).sum(-1)
            lower = torch.where(seen & (sign > 0), ball.center, -torch.inf)
            upper = torch.where(seen & (sign < 0), ball.center, torch.inf)
            parts.append(BoxedRows(slope.unsqueeze(-2), None, aim.unsqueeze(-1), lower, upper, (False,)))
        return join_rows(parts)


def project_with_balls(
    raw: Tensor,
    region: Region,
    *,
    on_infeasible: OnInfeasible = "auto",
    on_unsolved: OnUnsolved = "auto",
    on_invalid: OnInvalid = "raise",
    once: Once | None = None,
) -> Tensor:
    """``argmin |y - raw|`` over the region, differentiable in raw and in every number.

    Args:
        raw: ``(*batch, n)``.
        region: The sets; tensors with the batch of raw in front, or shared.
        on_infeasible: What an empty set gives: an error that names the samples, or NaN for these alone.
        on_unsolved: What a sample gives that is neither solved nor proved empty, likewise, or the ``"best"`` point.
        on_invalid: What bad numbers give, likewise.
        once: Where a layer remembers that it has warned.
    """
    refuse_transforms("the projection onto an L1 ball beside other sets")
    policy = Policy(on_infeasible, on_unsolved, on_invalid, once=once).checked()
    return _project(raw, region, policy.resolved(may_look(raw)))


@outside_compiler
def _project(raw: Tensor, region: Region, policy: Policy) -> Tensor:
    """Find the signs of each sample, then the point of its piece with its derivative."""
    looks = may_look(raw)
    if policy.on_invalid == "raise" and looks:
        for ball in region.balls:
            ball.refuse(raw)
    exact, flat, sound = _flat(raw, region)
    signs, found = _search(exact.detach(), flat.map(lambda number, _: number.detach()))
    known = (sound & _answered(found.status)).unsqueeze(-1)
    if looks:
        _report(found, sound, raw.shape[:-1], policy)
    rows = flat.piece(signs)
    y = _point(torch.where(known, exact, 0.0), rows, flat.blocks, found)
    instead = found.y if policy.on_unsolved == "best" else torch.full_like(found.y, torch.nan)
    instead = torch.where((found.status == int(Status.NOT_CONVERGED)).unsqueeze(-1), instead, torch.nan)
    y = torch.where(known, _at_centers(y, found, flat, signs), instead)
    return y.to(raw.dtype).reshape(raw.shape)


@torch.no_grad()
def solve_with_balls(raw: Tensor, region: Region) -> Solution:
    """The same with multipliers: of the general rows, of each ball (its price), of the curved rows, of the box."""
    exact, flat, _ = _flat(raw, region)
    signs, found = _search(exact, flat)
    m, k, n = flat.rows.A.shape[-2], len(flat.balls), exact.shape[-1]
    own, price, curved, box = found.dual.split([m, k, found.dual.shape[-1] - m - k - n, n], -1)
    held = _held(box, flat, signs)
    dual = torch.cat([own, price, curved, torch.where(held.any(-2), 0.0, box)], -1)
    found = found._replace(dual=dual, y=found.y.to(raw.dtype))
    return Solution(*(field.reshape((*raw.shape[:-1], *field.shape[1:])) for field in found))


def _flat(raw: Tensor, region: Region) -> tuple[Tensor, Region, Tensor]:
    """Raw ``(B, n)`` and the region in float64, NaN in raw where a ball is none; which samples are sound ``(B,)``."""
    batch, n = raw.shape[:-1], raw.shape[-1]

    def spread(number: Tensor, core: int) -> Tensor:
        exact = number.double()
        return (
            exact
            if exact.dim() <= core
            else exact.expand(*batch, *exact.shape[exact.dim() - core :]).reshape(
                batch.numel(), *exact.shape[exact.dim() - core :]
            )
        )

    flat = region.map(spread)
    flat = flat._replace(blocks=[_convex(own, to) for own, to in zip(region.blocks, flat.blocks, strict=True)])
    sound = raw.detach().isfinite().all(-1).reshape(-1)
    for ball in flat.balls:
        sound = sound & ball.sound()
    finite = lambda part: torch.nan_to_num(part, 0.0, 0.0, 0.0)
    clean = [
        L1(
            finite(ball.center),
            finite(ball.radius.clamp_min(0.0)),
            None if ball.weights is None else finite(ball.weights.clamp_min(0.0)),
        )
        for ball in flat.balls
    ]
    exact = torch.where(sound.unsqueeze(-1), raw.reshape(-1, n).double(), torch.nan)
    return exact, flat._replace(balls=clean), sound


def _convex(given: Block, wide: Block) -> Block:
    """The block in float64, where a P that was semidefinite to the rounding of its own dtype has to be so again."""
    if not (isinstance(given, Quadratics) and isinstance(wide, Quadratics)) or given.P.dtype == torch.float64:
        return wide
    values, V = diagonalize(wide.P)
    lift = torch.where(convex(values, given.P.dtype).unsqueeze(-1), (-values).clamp_min(0), 0.0)
    return wide._replace(P=wide.P + (V * lift.unsqueeze(-2)) @ V.mT)


def _report(found: Solution, sound: Tensor, batch: torch.Size, policy: Policy) -> None:
    """Raise for samples without an answer, as far as the policy asks."""
    status = found.status.reshape(batch)
    if policy.on_invalid == "raise":
        text = "the numbers of the set: expected finite numbers with lower <= upper, got others"
        refuse((status == int(Status.INVALID)) & sound.reshape(batch), InfeasibleError, text)
    if policy.on_infeasible == "raise":
        text = "the set is empty: expected a point that satisfies every constraint, got none"
        refuse(status == int(Status.INFEASIBLE), InfeasibleError, text)
    whole = Solution(*(part.reshape(batch + part.shape[1:]) for part in found))
    if policy.on_unsolved == "raise":
        refuse_unsolved(whole)
    warn_unproved(whole, policy.once)


def _at_centers(y: Tensor, found: Solution, region: Region, signs: Tensor) -> Tensor:
    """Y with the outputs that do not move exactly at their centers, where a curved solver rounds them."""
    for held, ball in zip(_held(found.dual[:, -y.shape[-1] :], region, signs).unbind(-2), region.balls, strict=True):
        near = (y - ball.center).abs() <= NEAR * (y.abs() + ball.center.abs()).amax(-1, keepdim=True)
        y = torch.where(held & near, keep_value(y, ball.center.expand_as(y)), y)
    return y


def _point(raw: Tensor, rows: BoxedRows, blocks: Sequence[Block], found: Solution) -> Tensor:
    """The nearest point of rows and blocks with its derivative; NaN without an answer."""
    if not blocks:
        return project_rows(raw, rows, **PIECES)
    n, m = raw.shape[-1], rows.A.shape[-2]
    general, curved, box = found.dual.split([m, found.dual.shape[-1] - m - n, n], -1)
    dual = torch.cat([general, box, curved] if rows.boxed else [general, curved], -1)
    return with_derivative(raw, _blocks(rows, blocks), answered(found), dual)


def _solve(raw: Tensor, rows: BoxedRows, blocks: Sequence[Block]) -> Solution:
    """The same with multipliers: of the rows, of the blocks, and of the n coordinates."""
    n = raw.shape[-1]
    if not blocks:
        found = solve_rows(raw, rows)
        return found if rows.boxed else found._replace(dual=torch.cat([found.dual, torch.zeros_like(raw)], -1))
    found = solve_intersection(raw, _blocks(rows, blocks))
    m = rows.A.shape[-2]
    general, rest = found.dual.split([m, found.dual.shape[-1] - m], -1)
    box, curved = (rest[..., :n], rest[..., n:]) if rows.boxed else (torch.zeros_like(raw), rest)
    return found._replace(dual=torch.cat([general, curved, box], -1))


def _blocks(rows: BoxedRows, blocks: Sequence[Block]) -> list[Block]:
    """The rows, if there are any, as one more block; absent bounds are infinite."""
    A, lower, upper = rows.dense()
    if A.shape[-2] == 0:
        return list(blocks)
    absent = A.new_full(A.shape[-2:-1], torch.inf)
    return [Intervals(A, -absent if lower is None else lower, absent if upper is None else upper), *blocks]


def _search(raw: Tensor, region: Region) -> tuple[Tensor, Solution]:
    """The signs of the piece that holds the nearest point, ``(B, balls, n)``, and the solution there.

    The dual has the general rows, the prices of the balls, the rows of curved blocks and the n coordinates.
    """
    if region.blocks:
        return _search_curved(raw, region)
    k = len(region.balls)
    first = _solve(raw, region.rows, ())
    m = region.rows.A.shape[-2]
    none = torch.zeros_like(raw[:, :1]).expand(-1, k)
    found = first._replace(dual=torch.cat([first.dual[:, :m], none, first.dual[:, m:]], -1))
    outside = torch.stack([_outside(ball, first.y) for ball in region.balls], -1).any(-1)
    index = (_answered(first.status) & outside).nonzero().squeeze(-1)
    return _settled(raw, region, _signs(first.y, raw, region), found, index)


def _search_curved(raw: Tensor, region: Region) -> tuple[Tensor, Solution]:
    """`_search` from the point without the curved blocks, which is the answer where it satisfies them."""
    signs, found = _search(raw, region._replace(blocks=[]))
    m, n = region.rows.A.shape[-2], raw.shape[-1]
    head, box = found.dual.split([found.dual.shape[-1] - n, n], -1)
    unpriced = torch.zeros_like(raw[:, :1]).expand(-1, sum(block.rows for block in region.blocks))
    found = found._replace(dual=torch.cat([head, unpriced, box], -1))
    inside = [(block.excess(found.y) <= 0).all(-1) for block in region.blocks]
    good = valid(region.blocks)
    there = good & torch.stack(inside, -1).all(-1) & _answered(found.status)
    left = ~there & (found.status != int(Status.INFEASIBLE)) & (found.status != int(Status.INVALID))
    index = (left & good).nonzero().squeeze(-1)
    small = n * (m + n + unpriced.shape[-1]) <= SMALL  # where a step costs more than the whole of a conic solver
    if smooth(region.blocks) and not small and index.numel():
        turned, part = _cut(raw[index], region.take(index), signs[index], found.y[index])
        signs, found = signs.index_copy(0, index, turned), place(found, index, part)
        left = left.index_copy(0, index, part.status == int(Status.NOT_CONVERGED))
    return _settled(raw, region, signs, found, left.nonzero().squeeze(-1))


def _cut(raw: Tensor, region: Region, signs: Tensor, near: Tensor) -> tuple[Tensor, Solution]:
    """The same by tangents of smooth blocks, from the signs and the point without them."""
    known = signs.clone()

    def beside(aim: Tensor, tangents: BoxedRows, index: Tensor) -> tuple[Tensor, Solution]:
        own = region.take(index)
        known[index], found = _settle(aim, Region(join_rows([tangents, own.rows]), [], own.balls), known[index])
        return known[index], found

    signs, found = by_tangents(raw, region.blocks, near, beside)
    m, n = region.rows.A.shape[-2] + len(region.balls), raw.shape[-1]
    curved, head, box = found.dual.split([found.dual.shape[-1] - m - n, m, n], -1)
    return signs, found._replace(dual=torch.cat([head, curved, box], -1))


def _settled(raw: Tensor, region: Region, signs: Tensor, found: Solution, index: Tensor) -> tuple[Tensor, Solution]:
    """The signs and solutions, with those of the samples `index` found from these signs."""
    if index.numel() == 0:
        return signs, found
    turned, part = _settle(raw[index], region.take(index), signs[index])
    return signs.index_copy(0, index, turned), place(found, index, part)


def _settle(raw: Tensor, region: Region, signs: Tensor) -> tuple[Tensor, Solution]:
    """The signs of the nearest point by turning these, or by proximal steps where that ends; and the solution."""
    signs, found, left = _turn(raw, region, signs)
    index = left.nonzero().squeeze(-1)
    if index.numel() == 0:
        return signs, found
    turned, part = _rescue(raw[index], region.take(index), found.y[index])
    return signs.index_copy(0, index, turned), place(found, index, part)


def _answered(status: Tensor) -> Tensor:
    return (status == int(Status.SOLVED)) | (status == int(Status.FEASIBLE))


def _outside(ball: L1, y: Tensor) -> Tensor:
    """Whether y is outside of the ball by more than rounding, ``(B,)``."""
    return (ball.excess(y) > 4 * torch.finfo(y.dtype).eps * ball.scale(y)).squeeze(-1)


def _signs(y: Tensor, raw: Tensor, region: Region) -> Tensor:
    """The signs of ``y - center``, those of ``raw - center`` where that is zero, and 1 where both are."""
    both = [((y - ball.center).sign(), (raw - ball.center).sign()) for ball in region.balls]
    signs = torch.stack([torch.where(near != 0, near, far) for near, far in both], -2)
    return torch.where(signs < 0, -1.0, 1.0)


def _turn(raw: Tensor, region: Region, signs: Tensor) -> tuple[Tensor, Solution, Tensor]:
    """Turn signs until the conditions hold; the signs, the solutions, and which samples are not settled ``(B,)``."""
    index = torch.arange(len(raw), device=raw.device)
    found, signs = None, signs.clone()
    left = torch.zeros(len(raw), dtype=torch.bool, device=raw.device)
    last = torch.full_like(raw, torch.nan)
    for _ in range(MOST_TURNS):
        own = region.take(index)
        part = _solve(raw[index], own.piece(signs[index]), own.blocks)
        found = part if found is None else place(found, index, part)
        crossing = _crossings(raw[index], part, own, signs[index])
        still = (part.y - last[index]).abs().amax(-1) <= 4 * torch.finfo(raw.dtype).eps * part.y.abs().amax(-1)
        answered, wants = _answered(part.status), crossing.flatten(-2).any(-1)
        stuck = ~answered | (wants & still)
        left[index] = stuck
        last[index] = part.y
        go = wants & ~stuck
        signs[index[go]] = torch.where(crossing[go], -signs[index[go]], signs[index[go]])
        index = index[go]
        if index.numel() == 0:
            break
    left[index] = True
    assert found is not None
    return signs, found, left


def _held(pull: Tensor, region: Region, signs: Tensor) -> Tensor:
    """The outputs that a ball's signs alone hold at its center, ``(B, balls, n)``: no other bound is as tight.

    Args:
        pull: Multipliers of the coordinates of the piece, ``(B, n)``.
        region: The balls and what they stand beside.
        signs: Those of the piece.
    """
    piece = region.piece(signs)
    bounds = (piece.box_lower, region.rows.box_lower), (piece.box_upper, region.rows.box_upper)
    held = []
    for sign, ball, weights in zip(signs.unbind(-2), region.balls, region.weights(), strict=True):
        at = torch.zeros_like(pull, dtype=torch.bool)
        for side, (tight, own) in zip((1.0, -1.0), bounds, strict=True):
            assert tight is not None
            here = (sign == side) & (side * pull < 0) & (ball.center == tight)
            at = at | (here if own is None else here & (own != tight))
        held.append(at & (weights > 0))
    return torch.stack(held, -2)


def _crossings(raw: Tensor, found: Solution, region: Region, signs: Tensor) -> Tensor:
    """Where the multiplier of a held output exceeds what its balls charge for a crossing, ``(B, balls, n)``."""
    m, k, n = region.rows.A.shape[-2], len(region.balls), raw.shape[-1]
    price, pull = found.dual[:, m : m + k].clamp_min(0.0), found.dual[:, -n:].unsqueeze(-2)
    held = _held(found.dual[:, -n:], region, signs)
    weights = torch.stack([part.expand_as(raw) for part in region.weights()], -2)
    charge = torch.where(held, 2 * price.unsqueeze(-1) * weights, 0.0).sum(-2, keepdim=True)
    noise = PRICE * (raw - found.y).abs().amax(-1)[:, None, None]
    return held & (pull.abs() > charge * (1 + PRICE) + noise)


def _rescue(raw: Tensor, region: Region, start: Tensor) -> tuple[Tensor, Solution]:
    """Proximal steps in ``(y, t)`` with ``|y - center| <= t, sum weights t <= radius``: only y pays its distance.

    The first step finds a point or proves that there is none; a step that leaves t where it was proves the answer.
    """
    n, count = raw.shape[-1], len(region.balls)
    rows, blocks = _lifted(region, n), [_padded(block, count * n) for block in region.blocks]
    first = torch.where(start.isfinite(), start, raw)
    t = torch.cat([(first - ball.center).abs().expand_as(raw) for ball in region.balls], -1)
    found = _solve(torch.cat([raw, t], -1), rows, blocks)
    fixed = torch.zeros(len(raw), dtype=torch.bool, device=raw.device)
    for _ in range(MOST_STEPS):
        moved = torch.where(_answered(found.status).unsqueeze(-1), found.y[:, n:], t)
        off, t = (moved - t).abs().amax(-1), moved
        fixed = off <= 64 * torch.finfo(raw.dtype).eps * torch.maximum(t.amax(-1), raw.abs().amax(-1))
        if bool((fixed | ~_answered(found.status)).all()):
            break
        found = _solve(torch.cat([raw, t], -1), rows, blocks)
    y = torch.where(_answered(found.status).unsqueeze(-1), found.y[:, :n], raw)
    signs, turned, left = _turn(raw, region, _signs(y, raw, region))
    kept = torch.where(_answered(turned.status) & (~left | fixed), turned.status, int(Status.NOT_CONVERGED))
    status = torch.where(found.status == int(Status.INFEASIBLE), found.status, kept.to(found.status.dtype))
    return signs, turned._replace(status=status)


def _lifted(region: Region, n: int) -> BoxedRows:
    """The rows in ``(y, t)``, one t for each ball."""
    extra, own = len(region.balls) * n, region.rows
    eye, none = torch.eye(n, dtype=own.A.dtype, device=own.A.device), own.A.new_zeros(n, extra)

    def pad(part: Tensor | None, fill: float) -> Tensor | None:
        return None if part is None else torch.nn.functional.pad(part, (0, extra), value=fill)

    A = torch.nn.functional.pad(own.A, (0, extra))
    parts = [BoxedRows(A, own.lower, own.upper, pad(own.box_lower, -torch.inf), pad(own.box_upper, torch.inf))]
    for number, (ball, weights) in enumerate(zip(region.balls, region.weights(), strict=True)):
        at = slice(number * n, number * n + n)
        below = none.clone()
        below[:, at] = -eye
        parts += [BoxedRows(torch.cat([sign * eye, below], -1), None, sign * ball.center) for sign in (1.0, -1.0)]
        spent = weights.new_zeros(*weights.shape[:-1], 1, n + extra)
        spent[..., 0, n + at.start : n + at.stop] = weights
        parts.append(BoxedRows(spent, None, ball.radius.unsqueeze(-1)))
    return join_rows(parts)


def _padded(block: Block, extra: int) -> Block:
    """The block with `extra` outputs that it does not see."""
    wide = lambda part: torch.nn.functional.pad(part, (0, extra))
    if isinstance(block, Balls):
        block = block.cone()
    if isinstance(block, SecondOrder):
        return SecondOrder(wide(block.A), block.b, wide(block.c), block.d)
    if isinstance(block, SemiDefinite):
        return SemiDefinite(block.F0, torch.nn.functional.pad(block.F, (0, 0, 0, 0, 0, extra)))
    if isinstance(block, Quadratics):
        return Quadratics(torch.nn.functional.pad(block.P, (0, extra, 0, extra)), wide(block.q), block.r)
    return Intervals(wide(block.A), block.lower, block.upper)
