"""Positive linear constraints in the unit cube: LinSATNet (Wang et al., 2023), solved to rounding."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from hardnet.errors import (
    NOT_FINITE,
    ConvergenceError,
    InfeasibleError,
    UnsupportedSetError,
    name_samples,
    sample_indices,
    sentence,
)
from hardnet.modes import may_look
from hardnet.nearest.policy import OnInfeasible, OnInvalid, OnUnsolved, Policy
from hardnet.shapes import check_affine
from hardnet.solvers.algebra.small import solve_square
from hardnet.solvers.solution import Solution, Status

# Multipliers that balance weighted sums of sigmoids: LinSATNet (Wang et al., 2023) written as equations.
#
# For each sample, with one multiplier per row,
#
# weights x + dummy beta = target,   x = link(scores + slope' dual),   beta = sigmoid(dummy_slope dual),
#
# where ``link`` is the sigmoid, or for the first published variant the solution of ``log x - crowd log(1 - x) =
# score``.
# With ``slope = weights`` the equations are the optimality conditions of a convex problem, the Fermi-Dirac entropy on a
# polyhedron in the unit cube, and have a solution whenever its interior is not empty.


SOLVER = "linsat, whose iterations end by a look at their values"
"""Its name in error messages."""

ROUGH = 1e-2
"""Residual at which a sample moves on to larger scores; the tolerance applies only at the full scores."""

FIRST_SCORE = 4.0
"""Largest score to start from: sigmoids of larger scores are flat, and Newton steps are useless there."""

LINK_STEPS = 16
"""Newton steps for the link of the first variant; they converge quadratically from above, in about ten."""

LONGEST_STEP = 20.0
"""Largest change of a score in one step, for the same reason."""

ARMIJO = 1e-4
"""Part of the first-order decrease that a step must achieve."""

REGULARIZATION = 1e-12
"""Added to the unit diagonal of the scaled Jacobian, so that it can be solved even with dependent rows."""

SMALLEST_DIAGONAL = 1e-200
"""Least diagonal entry of the Jacobian, for rows where every sigmoid is flat: steps stay finite and are then cut."""


class Balance(NamedTuple):
    """The equations above, in float64, for B samples.

    Attributes:
        weights: ``(k, n)``, each row summing to 1.
        slope: ``(k, n)``: the weights, or the pattern of their non-zeros.
        dummy: Weight of each row's own slack variable, ``(B, k)``; 0 for an equality.
        dummy_slope: ``(B, k)``: the same, or the pattern of its non-zeros.
        target: ``(B, k)``.
        active: ``(B, k)`` bool: rows that constrain this sample.
        crowd: The number of rows that each variable appears in, ``(B, n)``; None for the sigmoid.
        row_scale: ``weights = row_scale * slope`` for each row, ``(k,)``, if such a scale exists: then the equations
            are the gradient of a convex function of the multipliers; else None.
    """

    weights: Tensor
    slope: Tensor
    dummy: Tensor
    dummy_slope: Tensor
    target: Tensor
    active: Tensor
    crowd: Tensor | None
    row_scale: Tensor | None

    def detach(self) -> Balance:
        """The same numbers, detached from the autograd graph."""
        crowd = None if self.crowd is None else self.crowd.detach()
        shared, own = (self.weights.detach(), self.slope.detach()), (self.dummy.detach(), self.dummy_slope.detach())
        return Balance(*shared, *own, self.target.detach(), self.active, crowd, self.row_scale)


class Point(NamedTuple):
    """The state at given multipliers.

    Attributes:
        x: ``(B, n)``.
        x_slope: Derivative of each x by its score, ``(B, n)``.
        dummy: The slack variables, ``(B, k)``.
        residual: ``weights x + dummy beta - target``, ``(B, k)``; 0 for rows that are not active.
    """

    x: Tensor
    x_slope: Tensor
    dummy: Tensor
    residual: Tensor


def evaluate(balance: Balance, scores: Tensor, dual: Tensor) -> Point:
    """The state at multipliers `dual` ``(B, k)`` and scores ``(B, n)``."""
    logits = _link(scores + dual @ balance.slope, balance.crowd)
    x, beta = logits.sigmoid(), (balance.dummy_slope * dual).sigmoid()
    slope = x * (-logits).sigmoid() / (1 if balance.crowd is None else 1 + (balance.crowd - 1) * x)
    residual = x @ balance.weights.mT + balance.dummy * beta - balance.target
    return Point(x, slope, beta, torch.where(balance.active, residual, 0))


def newton_step(balance: Balance, point: Point, residual: Tensor) -> Tensor:
    """``-J⁻¹ residual`` with the Jacobian ``J = weights diag(x') slope' + diag(dummy beta' dummy_slope)``.

    The Jacobian is scaled to a unit diagonal; rows that are not active keep their multiplier.
    """
    own = balance.dummy * balance.dummy_slope * point.dummy * (1 - point.dummy)
    J = (balance.weights * point.x_slope.unsqueeze(-2)) @ balance.slope.mT + torch.diag_embed(own)
    both = balance.active.unsqueeze(-1) & balance.active.unsqueeze(-2)
    size = J.diagonal(dim1=-2, dim2=-1).clamp_min(SMALLEST_DIAGONAL).sqrt()
    identity = torch.eye(J.shape[-1], dtype=J.dtype, device=J.device)
    scaled = torch.where(both, J / size.unsqueeze(-1) / size.unsqueeze(-2), identity) + REGULARIZATION * identity
    return -solve_square(scaled, residual / size) / size


def balance_by_newton(balance: Balance, scores: Tensor, *, tolerance: float, max_iterations: int) -> Solution:
    """Damped Newton steps on growing scores: each sample starts where sigmoids are not flat and doubles its scores."""
    fraction = (FIRST_SCORE / scores.abs().amax(dim=-1, keepdim=True)).clamp(max=1)
    dual = torch.zeros_like(balance.target)
    done = ~scores.isfinite().all(dim=-1)
    iterations = torch.zeros_like(done, dtype=torch.long)
    for _ in range(max_iterations):
        point = evaluate(balance, fraction * scores, dual)
        error = point.residual.abs().amax(dim=-1)
        done = done | ((error <= tolerance) & (fraction[:, 0] == 1))
        if _all_hold(done):
            break
        grow = (error.unsqueeze(-1) <= ROUGH) & (fraction < 1)
        larger = torch.where(grow, (2 * fraction).clamp(max=1), fraction)
        dual, fraction = torch.where(grow, dual * larger / fraction, dual), larger
        dual = torch.where(done.unsqueeze(-1), dual, _damped_step(balance, fraction * scores, dual, done))
        iterations = iterations + ~done
    return _solution(balance, scores, dual, iterations, tolerance)


def balance_by_sweeps(balance: Balance, scores: Tensor, *, tolerance: float, max_iterations: int) -> Solution:
    """The published sweeps: one row after another, rescale the weighted sums of x and of 1 - x to their targets.

    Every sweep keeps a complement of x: one shared by all rows where `crowd` is None (the second published variant),
    else a separate one for each row (the first). A multiplier sums up the logarithms of the scalings.
    """
    shared = balance.crowd is None
    dual = torch.zeros_like(balance.target)
    top, bottom = scores, torch.zeros_like(scores).unsqueeze(-2).expand(*dual.shape, -1)
    done = ~scores.isfinite().all(dim=-1)
    iterations = torch.zeros_like(done, dtype=torch.long)
    for _ in range(max_iterations):
        before = dual
        for row in range(dual.shape[-1]):
            dual = _rescale_shared(balance, scores, dual, row) if shared else dual
            if not shared:
                dual, top, bottom = _rescale_own(balance, dual, top, bottom, row)
        dual = torch.where(done.unsqueeze(-1), before, dual)
        error = evaluate(balance, scores, dual).residual.abs().amax(dim=-1)
        iterations = iterations + ~done
        done = done | (error <= tolerance)
        if _all_hold(done):
            break
    return _solution(balance, scores, dual, iterations, tolerance)


def proves_infeasible(balance: Balance, direction: Tensor) -> Tensor:
    """Whether ``direction . target > max over the cube of direction . (weights x + dummy beta)``, ``(B,)``.

    Then no x in the unit cube satisfies the rows (Farkas). Diverging multipliers are such a direction, and so is the
    negative of the smallest residual.
    """
    direction = torch.where(balance.active, direction, 0)
    reach = (direction @ balance.weights).clamp_min(0).sum(dim=-1)
    reach = reach + (direction * balance.dummy).clamp_min(0).sum(dim=-1)
    size = direction.abs().sum(dim=-1)
    return (direction * balance.target).sum(dim=-1) > reach + 1e-9 * size


def _link(score: Tensor, crowd: Tensor | None) -> Tensor:
    """The logit q of x with ``q + (crowd - 1) softplus(q) = score``: convex and increasing, so Newton from above."""
    if crowd is None:
        return score
    q = score.detach()
    for _ in range(LINK_STEPS):
        # Each step detaches q, so that only the last one carries the implicit derivative.
        q = q.detach()
        q = q - (q + (crowd - 1) * softplus(q) - score) / (1 + (crowd - 1) * q.sigmoid())
    return q


def _damped_step(balance: Balance, scores: Tensor, dual: Tensor, done: Tensor) -> Tensor:
    """The multipliers after one Newton step, halved for each sample until its `_value` or residual decreases."""
    point = evaluate(balance, scores, dual)
    step = newton_step(balance, point, point.residual)
    change = torch.cat([step @ balance.slope, step * balance.dummy_slope], dim=-1).abs().amax(dim=-1, keepdim=True)
    step = step * (LONGEST_STEP / change).clamp(max=1)
    error = torch.linalg.vector_norm(point.residual, dim=-1)
    value, fall = _value(balance, scores, dual), error
    if balance.row_scale is not None:
        fall = -(point.residual / balance.row_scale * step).sum(dim=-1)
    length = torch.ones_like(error)
    for _ in range(30):
        trial = dual + length.unsqueeze(-1) * step
        shorter = _residual_length(balance, scores, trial) <= (1 - ARMIJO * length) * error
        lower = _value(balance, scores, trial) <= value - ARMIJO * length * fall
        good = done | lower | (shorter & (error <= ROUGH))
        if _all_hold(good):
            break
        length = torch.where(good, length, length / 2)
    return dual + length.unsqueeze(-1) * step


def _residual_length(balance: Balance, scores: Tensor, dual: Tensor) -> Tensor:
    """``|residual|``, ``(B,)``."""
    return torch.linalg.vector_norm(evaluate(balance, scores, dual).residual, dim=-1)


def _value(balance: Balance, scores: Tensor, dual: Tensor) -> Tensor:
    """The function that a step must decrease, ``(B,)``.

    Where the equations are the gradient of a convex function it is this function, which leads out of regions where all
    sigmoids are flat and the residual does not change; else the length of the residual. (Close to the solution the
    decrease of the convex function is lost in rounding, and a shorter residual is enough.)
    """
    if balance.row_scale is None:
        return _residual_length(balance, scores, dual)
    return _potential(balance, balance.row_scale, scores, dual)


def _potential(balance: Balance, row_scale: Tensor, scores: Tensor, dual: Tensor) -> Tensor:
    """The convex function with gradient ``residual / row_scale``: the sum of the integrals of x over the scores."""
    logits = _link(scores + dual @ balance.slope, balance.crowd)
    extra = 0 if balance.crowd is None else (balance.crowd - 1) * (softplus(logits) - logits.sigmoid())
    slack = balance.dummy / torch.where(balance.dummy_slope > 0, balance.dummy_slope, 1)
    own = slack * softplus(balance.dummy_slope * dual) - balance.target * dual
    return (softplus(logits) + extra).sum(dim=-1) + (own / row_scale).sum(dim=-1)


def _rescale_shared(balance: Balance, scores: Tensor, dual: Tensor, row: int) -> Tensor:
    """One row of a sweep with a shared complement: add ``log(target / sum) - log(co-target / co-sum)``."""
    logits = torch.cat([scores + dual @ balance.slope, dual[:, row, None]], dim=-1)
    up = _log_scale(balance, row, -softplus(-logits), top=True)
    down = _log_scale(balance, row, -softplus(logits), top=False)
    return _moved(balance, dual, row, up - down)


def _rescale_own(
    balance: Balance, dual: Tensor, top: Tensor, bottom: Tensor, row: int
) -> tuple[Tensor, Tensor, Tensor]:
    """One row of a sweep with its own complement; `top` and `bottom` hold logarithms."""
    slack = dual[:, row, None]
    up = _log_scale(balance, row, torch.cat([top, -softplus(-slack)], dim=-1), top=True)
    down = _log_scale(balance, row, torch.cat([bottom[:, row], -softplus(slack)], dim=-1), top=False)
    total = torch.logaddexp(top + up.unsqueeze(-1), bottom[:, row] + down.unsqueeze(-1))
    inside = (balance.slope[row] > 0) & balance.active[:, row, None]
    lowered = torch.where(inside, bottom[:, row] + down.unsqueeze(-1) - total, bottom[:, row])
    top = torch.where(inside, top + up.unsqueeze(-1) - total, top)
    bottom = torch.cat([bottom[:, :row], lowered.unsqueeze(1), bottom[:, row + 1 :]], dim=1)
    return _moved(balance, dual, row, up - down), top, bottom


def _log_scale(balance: Balance, row: int, logs: Tensor, *, top: bool) -> Tensor:
    """``log(goal / weighted sum)`` of one row over the variables and its slack, whose logarithms are ``(B, n + 1)``."""
    dummy, target = balance.dummy[:, row], balance.target[:, row]
    weights = torch.cat([balance.weights[row].expand(len(dummy), -1), dummy[:, None]], dim=-1)
    goal = target if top else 1 + dummy - target
    return goal.clamp_min(REGULARIZATION).log() - torch.logsumexp(logs + weights.log(), dim=-1)


def _moved(balance: Balance, dual: Tensor, row: int, move: Tensor) -> Tensor:
    """The multipliers with `move` added to one of them, where its row is active."""
    chosen = balance.active & (torch.arange(dual.shape[-1], device=dual.device) == row)
    return dual + torch.where(chosen, move.unsqueeze(-1), 0)


def _solution(balance: Balance, scores: Tensor, dual: Tensor, iterations: Tensor, tolerance: float) -> Solution:
    """The last point with its status; failed samples are INFEASIBLE where their residual or multipliers prove it."""
    point = evaluate(balance, scores, dual)
    error = point.residual.abs().amax(dim=-1)
    solved = error <= tolerance
    empty = ~solved & (proves_infeasible(balance, -point.residual) | proves_infeasible(balance, dual))
    status = torch.full_like(solved, Status.NOT_CONVERGED, dtype=torch.int8)
    status = status.masked_fill(solved, Status.SOLVED).masked_fill(empty, Status.INFEASIBLE)
    status = status.masked_fill(~scores.isfinite().all(dim=-1), Status.INVALID)
    return Solution(point.x, dual, status, iterations, error)


def _all_hold(mask: Tensor) -> bool:
    """Whether a loop has ended for all samples; this reads values, which works under transforms other than vmap."""
    try:
        return bool(mask.all())
    except RuntimeError:  # values cannot be read under vmap
        remedy = "batch dimensions need no vmap: call it with all samples"
        raise UnsupportedSetError(sentence("torch.func", f"no vmap around {SOLVER}", "one", remedy)) from None


Variant = Literal["entropic", "v2", "v1"]
Solver = Literal["newton", "sweeps"]

UNMET = 1e-6
"""Error above which an error message lists a row as unsatisfied."""


class Encoding(NamedTuple):
    """The bounds that are encoded, as upper bounds, lower bounds or equalities.

    Attributes:
        above: Indices of the rows with an upper bound.
        below: Indices of the rows with a lower bound.
        equal: Indices of the rows whose two bounds are equal.
    """

    above: Tensor
    below: Tensor
    equal: Tensor

    @property
    def rows(self) -> Tensor:
        """All encoded rows: above, below, equal."""
        return torch.cat(self)


def linsat(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    *,
    encoding: Encoding | None = None,
    temperature: float = 0.05,
    variant: Variant = "entropic",
    solver: Solver = "newton",
    tolerance: float = 1e-10,
    max_iterations: int = 100,
    on_infeasible: OnInfeasible = "auto",
    on_unsolved: OnUnsolved = "auto",
    on_invalid: OnInvalid = "raise",
) -> Tensor:
    """``y = sigmoid(raw / temperature + A' dual)`` with the multipliers that make ``lower <= A y <= upper`` hold.

    Each bound becomes an equality with its own slack: ``a y = upper (1 - s)`` and ``a y = lower (1 + c (1 - s))``
    with ``0 < s < 1`` and the smallest whole c for which the implied upper bound is redundant.

    Args:
        raw: Scores, ``(*batch, n)``; outputs with larger scores become larger.
        A: ``(m, n)``, non-negative, without zero rows.
        lower: ``(m,)`` or ``(*batch, m)``; a bound of 0 or less has no effect.
        upper: Like `lower`, not negative.
        encoding: Which bounds are used; by default the finite ones that the unit cube does not imply, with equalities
            where both bounds are shared by all samples and equal.
        temperature: Small values push y to a vertex of the polyhedron.
        variant: ``"entropic"`` minimizes the Fermi-Dirac entropy and always has a solution. ``"v2"`` and ``"v1"`` are
            the fixed points of the two published sweeps, which agree with it where all weights of a row, including its
            slack, are equal (and, for v1, no variable is in two rows), and may not exist elsewhere.
        solver: ``"newton"``, or the published ``"sweeps"`` (not for the entropic variant).
        tolerance: Largest error of a row, relative to the sum of its coefficients.
        max_iterations: Newton steps or sweeps.
        on_infeasible: For samples without a point in the unit cube: ``"raise"`` an error that names them and their
            rows, or ``"nan"``; ``"auto"`` raises where values may be read, unless ``on_invalid="nan"``.
        on_unsolved: The same for samples that need more iterations; ``"best"`` is the last point.
        on_invalid: For bad numbers: ``"raise"`` an error that names the samples, or ``"nan"`` for these alone.

    Returns:
        y ``(*batch, n)`` in the open unit cube, differentiable in raw and the bounds by the implicit derivative.
    """
    batch, lower, upper = check_affine(raw, A, lower, upper)
    policy = Policy(on_infeasible, on_unsolved, on_invalid).checked()
    policy = policy.resolved(may_look(raw) and on_invalid == "raise")
    check_options(temperature, variant, solver)
    encoding = find_encoding(A, _shared(lower), _shared(upper)) if encoding is None else encoding
    scores = (raw.double() / temperature).expand(*batch, -1).reshape(-1, raw.shape[-1])
    if len(encoding.rows) == 0:
        return scores.sigmoid().reshape(*batch, raw.shape[-1]).to(raw.dtype)
    balance = _encode(A.double(), lower, upper, encoding, variant, batch)
    with torch.no_grad():
        solve = balance_by_newton if solver == "newton" else balance_by_sweeps
        solution = solve(balance, scores, tolerance=tolerance, max_iterations=max_iterations)
    y = _with_derivative(balance, scores, solution)
    if may_look(y) or policy.asks:
        _raise_failures(balance, scores, solution._replace(y=y.detach()), encoding.rows, batch, policy)
    if on_unsolved == "best":
        last = evaluate(balance.detach(), scores.detach(), solution.dual).x
        y = torch.where((solution.status == int(Status.NOT_CONVERGED)).unsqueeze(-1), last, y)
    return y.reshape(*batch, raw.shape[-1]).to(raw.dtype)


def find_encoding(A: Tensor, lower: Tensor | None, upper: Tensor | None, equality: Tensor | None = None) -> Encoding:
    """Which bounds ``(m,)`` are used: not the absent ones, and not those that the unit cube implies.

    Upper bounds are only checked against the cube for rows of a single variable. NaN stands for a bound that is not
    known yet, which is used. Rows are equalities where both bounds are equal, or where `equality` ``(m,)`` is set.
    """
    lower = A.new_full((len(A),), -torch.inf) if lower is None else lower
    upper = A.new_full((len(A),), torch.inf) if upper is None else upper
    equal = (lower == upper) if equality is None else (lower == upper) | equality
    implied = ((A > 0).sum(dim=-1) == 1) & (upper >= A.sum(dim=-1))
    sides = (~equal & (upper != torch.inf) & ~implied, ~equal & ~(lower <= 0), equal)
    return Encoding(*(side.nonzero().flatten() for side in sides))


def _shared(bound: Tensor | None) -> Tensor | None:
    """A bound shared by all samples; NaN where each sample has its own, so that no single sample decides."""
    if bound is None or bound.dim() == 1:
        return bound
    return bound.new_full(bound.shape[-1:], torch.nan)


def check_positive(A: Tensor) -> str | None:
    """Why a matrix is not accepted, naming the row; None where it is."""
    for row, entries in enumerate(A):
        if not bool((entries >= 0).all()):
            return f"row {row} of A has a negative or NaN coefficient"
        if not bool(entries.any()):
            return f"row {row} of A is all zero"
    return None


def check_options(temperature: float, variant: str, solver: str) -> None:
    """Refuse options and combinations that no solver supports."""
    if not temperature > 0:
        raise UnsupportedSetError(sentence("temperature", "a positive number", temperature))
    if variant not in ("entropic", "v2", "v1"):
        raise UnsupportedSetError(sentence("variant", "'entropic', 'v2' or 'v1'", repr(variant)))
    if solver not in ("newton", "sweeps"):
        raise UnsupportedSetError(sentence("solver", "'newton' or 'sweeps'", repr(solver)))
    if solver == "sweeps" and variant == "entropic":
        raise UnsupportedSetError(
            sentence("solver", "'newton' for the entropic variant", "'sweeps'", "use variant='v2'")
        )


def _encode(
    A: Tensor, lower: Tensor | None, upper: Tensor | None, encoding: Encoding, variant: Variant, batch: torch.Size
) -> Balance:
    """Every encoded bound as an equality with a slack, divided by the sum of its coefficients.

    ``a y + c b s = (c + fixed) b`` with ``(c, fixed) = (1, 0)`` for an upper bound b, ``(c, 1)`` for a lower bound and
    ``(0, 1)`` for an equality.
    """
    total = A[encoding.rows].sum(dim=-1)
    weights = A[encoding.rows] / total.unsqueeze(-1)
    bound = _bounds(lower, upper, encoding, batch) / total
    up, down = len(encoding.above), len(encoding.below)
    place = torch.arange(len(total), device=A.device)
    lowest = bound.detach().clamp(1e-12, 1)
    multiple = torch.where(place < up, 1, torch.where(place < up + down, (1 / lowest - 1e-9).ceil() - 1, 0))
    # NaN counts as a bound, so that its sample fails
    says = torch.where(place < up, ~(bound >= torch.inf), ~(bound <= 0) | (place >= up + down))
    bound = torch.where(says, bound, 0)
    dummy, target = multiple * bound, (multiple + (place >= up)) * bound
    if variant == "entropic":
        return Balance(weights, weights, dummy, dummy, target, says, None, torch.ones_like(total))
    pattern = (weights > 0).double()
    crowd = (says.double() @ pattern).clamp_min(1) if variant == "v1" else None
    largest = weights.amax(dim=-1)
    scale = largest if torch.equal(largest.unsqueeze(-1) * pattern, weights) else None
    return Balance(weights, pattern, dummy, (dummy > 0).double(), target, says, crowd, scale)


def _bounds(lower: Tensor | None, upper: Tensor | None, encoding: Encoding, batch: torch.Size) -> Tensor:
    """The bound of every encoded row in float64: ``(B, k)``."""
    pieces = [(upper, encoding.above), (lower, encoding.below), (lower, encoding.equal)]
    parts = [side.double().index_select(-1, index) for side, index in pieces if side is not None]
    return torch.cat([part.expand(*batch, -1).reshape(batch.numel(), part.shape[-1]) for part in parts], dim=-1)


def _with_derivative(balance: Balance, scores: Tensor, solution: Solution) -> Tensor:
    """The solution with its derivatives: one Newton step of value zero adds the first, another one the second."""
    solved = (solution.status == int(Status.SOLVED)).unsqueeze(-1)
    scores, dual = torch.where(solved, scores, 0), torch.where(solved, solution.dual, 0)
    fixed = balance.detach()
    start = evaluate(fixed, scores.detach(), dual)
    for _ in range(2):
        residual = evaluate(balance, scores, dual).residual
        dual = dual + newton_step(fixed, start, residual - residual.detach())
    return torch.where(solved, evaluate(balance, scores, dual).x, torch.nan)


def _raise_failures(
    balance: Balance, scores: Tensor, solution: Solution, rows: Tensor, batch: torch.Size, policy: Policy
) -> None:
    """Raise the error for the samples without a solution, naming the rows that do not hold."""
    given = {
        Status.INVALID: policy.on_invalid,
        Status.INFEASIBLE: policy.on_infeasible,
        Status.NOT_CONVERGED: policy.on_unsolved,
    }
    asked = [kind for kind, choice in given.items() if choice == "raise"]
    kind = next((kind for kind in asked if bool((solution.status == int(kind)).any())), None)
    if kind is None:
        return
    bad = solution.status == int(kind)
    samples = sample_indices(bad.reshape(batch)) if batch else []
    where = f" in samples {name_samples(samples)}" if batch else ""
    if kind is Status.INVALID:
        raise NOT_FINITE.of("raw", None, samples)
    residual = evaluate(balance, scores, solution.dual).residual.detach()
    unmet = [sorted(set(rows[error.abs() > UNMET].tolist())) for error in residual[bad]]
    if kind is Status.INFEASIBLE:
        text = f"no y in the unit cube satisfies the rows{where}; unsatisfied: {name_samples(unmet)}"
        raise InfeasibleError(text, samples, unmet)
    worst = solution.residual[bad].max().item()
    remedy = "raise max_iterations or temperature, or use variant='entropic', which always has an answer"
    text = f"rows are met to {worst:.1e} only{where}; unsatisfied: {name_samples(unmet)}; {remedy}"
    whole = Solution(*(part.reshape(batch + part.shape[1:]) for part in solution))
    raise ConvergenceError(text, samples, whole)
