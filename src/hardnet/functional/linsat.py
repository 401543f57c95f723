"""Positive linear constraints in the unit cube: LinSATNet (Wang et al., 2023), solved to rounding."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

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
from hardnet.solvers.fermi_dirac import Balance, balance_by_newton, balance_by_sweeps, evaluate, newton_step
from hardnet.solvers.solution import Solution, Status

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
