"""Fourier-Motzkin elimination: bounds of each variable in terms of the ones before it.

From ``G y <= c`` and ``E y = d`` the variables are eliminated one at a time, last first. Every derived row is a fixed
combination of the original ones, so it is kept as a pair ``body . y <= mix . constants``: the elimination is done once,
although the constants may depend on the input and differ between samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import (
    InfeasibleError,
    MissingExtraError,
    NonFiniteError,
    UnsupportedSetError,
    name_samples,
    sentence,
)
from hardnet.solvers.conic.blocks import Block, Intervals, Quadratics, SecondOrder, SemiDefinite

# Offline analysis of a constant convex set: its affine hull and a point well inside it, relative to the hull.
#
# Linear rows alone need linear programs (HiGHS, through scipy); curved blocks need a cone solver (clarabel). Both come
# with the extra ``offline`` and run once, on the CPU in float64.


# The point with the most slack in a set with curved blocks, as one cone program for clarabel.
#
# Variables ``(z, slack)`` with ``y = point + basis z``; each block requires an affine function of them to be in a cone.


class Demand(NamedTuple):
    """``offset + y_rows y - slack_column slack`` in a cone: ``(r,)``, ``(r, n)``, ``(r,)`` and the type of cone."""

    offset: Tensor
    y_rows: Tensor
    slack_column: Tensor
    cone: str


def most_slack_conic(hull: Hull, curved: Sequence[Block], cap: float | None) -> tuple[Tensor, float] | None:
    """Maximize the slack common to all blocks; None where it is unbounded or the solver fails."""
    lengths = torch.linalg.vector_norm(hull.rows.A @ hull.basis, dim=-1)
    demands = [Demand(hull.rows.b, -hull.rows.A, lengths, "orthant"), *(_demand(block) for block in curved)]
    if cap is not None:
        nothing = torch.zeros(1, len(hull.point), dtype=torch.float64)
        demands.append(Demand(cap * _one(), nothing, _one(), "orthant"))
    matrix = torch.cat([torch.cat([-own.y_rows @ hull.basis, own.slack_column.unsqueeze(-1)], 1) for own in demands])
    right = torch.cat([own.offset + own.y_rows @ hull.point for own in demands])
    found = _maximize_last(matrix, right, [(own.cone, len(own.offset)) for own in demands])
    return None if found is None else (found[:-1], found[-1].item())


def _maximize_last(matrix: Tensor, right: Tensor, cones: list[tuple[str, int]]) -> Tensor | None:
    """``max u_last`` subject to ``right - matrix u`` in the product of the cones."""
    try:
        import clarabel
        from scipy import sparse
    except ImportError:
        raise MissingExtraError("clarabel", "offline") from None
    solver: Any = clarabel  # its names come from a compiled module
    cost = torch.zeros(matrix.shape[1], dtype=torch.float64)
    cost[-1] = -1
    settings = solver.DefaultSettings()
    settings.verbose = False
    quadratic, rows = sparse.csc_matrix((len(cost), len(cost))), sparse.csc_matrix(matrix.numpy())
    kinds = [_cone(solver, kind, size) for kind, size in cones]
    solution = solver.DefaultSolver(quadratic, cost.numpy(), rows, right.numpy(), kinds, settings).solve()
    if solution.status not in (solver.SolverStatus.Solved, solver.SolverStatus.AlmostSolved):
        return None
    return torch.tensor(solution.x, dtype=torch.float64)


def _demand(block: Block) -> Demand:
    """The condition of a curved block on y and the slack."""
    if isinstance(block, SecondOrder):  # (c'y + d - slack, A y + b)
        offset = torch.cat([block.d.reshape(1), block.b])
        y_rows = torch.cat([block.c.unsqueeze(0), block.A])
        return Demand(offset, y_rows, torch.cat([_one(), torch.zeros_like(block.b)]), "second-order")
    if isinstance(block, SemiDefinite):  # F0 + sum y F - slack I
        eye = torch.eye(block.F0.shape[-1], dtype=torch.float64)
        return Demand(_triangle(block.F0), _triangle(block.F).mT, _triangle(eye), "semidefinite")
    if isinstance(block, Quadratics):
        return _quadratic_demand(block)
    raise TypeError(f"a curved block was expected, got {type(block).__name__}")


def _quadratic_demand(block: Quadratics) -> Demand:
    """``1/2 |R y|^2 <= h`` with ``h = -(q'y + r + slack)`` as ``|(2 R y, 1 - 2 h)| <= 1 + 2 h``."""
    values, vectors = torch.linalg.eigh(block.P)
    R = values.clamp_min(0).sqrt().unsqueeze(-1) * vectors.mT
    zeros = torch.zeros(len(R), dtype=torch.float64)
    offset = torch.cat([(1 - 2 * block.r).reshape(1), zeros, (1 + 2 * block.r).reshape(1)])
    y_rows = torch.cat([-2 * block.q.unsqueeze(0), 2 * R, 2 * block.q.unsqueeze(0)])
    return Demand(offset, y_rows, torch.cat([2 * _one(), zeros, -2 * _one()]), "second-order")


def _triangle(matrix: Tensor) -> Tensor:
    """The upper triangle column by column, off-diagonal entries times sqrt 2, as clarabel expects it."""
    k = matrix.shape[-1]
    column, row = torch.tril_indices(k, k)
    weight = torch.where(row == column, 1.0, 2.0**0.5).double()
    return (matrix + matrix.mT)[..., row, column] / 2 * weight


def _cone(clarabel: Any, kind: str, size: int) -> Any:
    """The clarabel object for a cone."""
    if kind == "orthant":
        return clarabel.NonnegativeConeT(size)
    if kind == "second-order":
        return clarabel.SecondOrderConeT(size)
    return clarabel.PSDTriangleConeT(round((2 * size + 0.25) ** 0.5 - 0.5))


def _one() -> Tensor:
    """A vector with the single entry 1."""
    return torch.ones(1, dtype=torch.float64)


THIN = 1e-8
"""A set whose interior point has at most this slack counts as having no interior; of its size, if that is below 1."""


class Halfspaces(NamedTuple):
    """``A y <= b`` with rows of norm one, and ``C y = d``."""

    A: Tensor
    b: Tensor
    C: Tensor
    d: Tensor


class Hull(NamedTuple):
    """The affine hull ``{point + basis z}`` and the inequality rows that are not implicit equalities.

    Attributes:
        point: A point of the hull, ``(n,)``.
        basis: Orthonormal columns, ``(n, k)``; the identity where there is no equality.
        rows: The inequality rows that cut the hull.
        implicit: Indices of the inequality rows that are implicit equalities.
    """

    point: Tensor
    basis: Tensor
    rows: Halfspaces
    implicit: list[int]


def halfspaces(blocks: Sequence[Intervals], n: int) -> Halfspaces:
    """Stack the rows of intervals: finite bounds as ``A y <= b``, pairs of equal bounds as ``C y = d``."""
    A = torch.cat([torch.zeros(0, n, dtype=torch.float64), *(block.A for block in blocks)])
    none = torch.zeros(0, dtype=torch.float64)
    lower = torch.cat([none, *(block.lower.expand(len(block.A)) for block in blocks)])
    upper = torch.cat([none, *(block.upper.expand(len(block.A)) for block in blocks)])
    norm = torch.linalg.vector_norm(A, dim=-1)
    norm = torch.where(norm > 0, norm, 1)
    A, lower, upper = A / norm.unsqueeze(-1), lower / norm, upper / norm
    equal = lower == upper
    above, below = upper.isfinite() & ~equal, lower.isfinite() & ~equal
    return Halfspaces(
        torch.cat([A[above], -A[below]]), torch.cat([upper[above], -lower[below]]), A[equal], lower[equal]
    )


def affine_hull(rows: Halfspaces) -> Hull:
    """Find the rows that hold with equality on the whole set, by one linear program, and move them to C.

    ``max sum t`` subject to ``A z + t <= a b``, ``C z = a d``, ``0 <= t <= 1``, ``a >= 1``: scaling the set up by a
    gives ``t = 1`` to every row that can have slack, and ``t = 0`` to every implicit equality.

    Raises:
        InfeasibleError: No point satisfies all rows.
    """
    m, n = rows.A.shape
    A = torch.cat([rows.A, torch.eye(m, dtype=torch.float64), -rows.b.unsqueeze(-1)], dim=1)
    C = torch.cat([rows.C, rows.C.new_zeros(len(rows.C), m), -rows.d.unsqueeze(-1)], dim=1)
    cost = torch.cat([torch.zeros(n), -torch.ones(m), torch.zeros(1)]).double()
    bounds = [(None, None)] * n + [(0, 1)] * m + [(1, None)]
    result = _linear_program(cost, A, torch.zeros(m).double(), C, torch.zeros(len(C)).double(), bounds)
    if result.status != 0:
        raise InfeasibleError("constraint: expected a set that holds some point, got affine rows that contradict")
    tight = torch.as_tensor(result.x[n : n + m]) < 0.5
    moved = Halfspaces(
        rows.A[~tight], rows.b[~tight], torch.cat([rows.C, rows.A[tight]]), torch.cat([rows.d, rows.b[tight]])
    )
    return hull_of(moved, tight.nonzero().flatten().tolist())


def hull_of(rows: Halfspaces, implicit: list[int] | None = None) -> Hull:
    """The solutions of ``C y = d`` as ``point + basis z``, and the inequalities that cut them."""
    n = rows.C.shape[-1]
    point = torch.linalg.pinv(rows.C) @ rows.d if len(rows.C) else torch.zeros(n, dtype=torch.float64)
    basis = torch.eye(n, dtype=torch.float64)
    if len(rows.C):
        _, values, directions = torch.linalg.svd(rows.C)
        rank = int((values > max(rows.C.shape) * 1e-13 * values.max()).sum())
        basis = directions[rank:].mT.contiguous()
    return Hull(point, basis, cutting(rows, basis, 1e-13), implicit or [])


def cutting(rows: Halfspaces, basis: Tensor, eps: float) -> Halfspaces:
    """The inequality rows that vary along the hull; each of the others holds either everywhere on it or nowhere."""
    cuts = torch.linalg.vector_norm(rows.A @ basis, dim=-1) > 1000 * eps
    return rows._replace(A=rows.A[cuts], b=rows.b[cuts])


def interior_point(hull: Hull, curved: Sequence[Block], most: float = 1.0) -> Tensor:
    """A point well inside: the analytic center of a bounded set of linear rows, else the point with the most slack.

    The largest ball may be near one end of a long set; the analytic center, which minimizes ``-sum log slack``, does
    not depend on the units of the coordinates. It exists where the set is bounded.

    Where the slack is unbounded, the point has `most` of it.

    Raises:
        InfeasibleError: The linear and the curved parts have no common point.
        UnsupportedSetError: The set has no interior relative to the affine hull of its linear part.
    """
    if not hull.basis.shape[-1]:
        return hull.point
    found, slack = most_slack(hull, curved, None) or most_slack(hull, curved, most) or (None, 0.0)
    if found is None or slack < -THIN:
        raise InfeasibleError("constraint: expected a set that holds some point, got parts that do not meet")
    if slack <= THIN:
        text = f"it has no interior (slack {slack:.1e}; implicit equalities found: rows {hull.implicit})"
        raise UnsupportedSetError(f"method 'rayen' cannot enforce this set: {text}; use method='cvx' or 'projection'")
    if not curved:
        found = _analytic_center(hull.rows.A @ hull.basis, hull.rows.b - hull.rows.A @ hull.point, found)
    return hull.point + hull.basis @ found


def center_of(rows: Halfspaces, curved: Sequence[Block]) -> tuple[Tensor, Tensor]:
    """The interior point of these rows and blocks, ``(n,)``, and the basis of their affine hull ``(n, k)``.

    Rows alone are looked at in the unit of their largest bound, where that is less than 1: the programs have absolute
    tolerances.
    """
    size = 1.0 if curved else largest_bound(rows)
    unit = min(size, 1.0)
    hull = affine_hull(rows._replace(b=rows.b / unit, d=rows.d / unit))
    return unit * interior_point(hull, curved, size / unit), hull.basis


def largest_bound(rows: Halfspaces) -> float:
    """The size of the largest bound; 1 where all are 0."""
    return torch.cat([rows.b, rows.d, rows.b.new_zeros(1)]).abs().max().item() or 1.0


def least_slack(rows: Halfspaces, curved: Sequence[Block], y: Tensor) -> float:
    """The least slack of the inequalities at y: negative outside, positive strictly inside, inf if there are none."""
    slacks = [rows.b - rows.A @ y]
    for block in curved:
        if isinstance(block, SecondOrder):
            slacks.append(block.c @ y + block.d - torch.linalg.vector_norm(block.A @ y + block.b))
        elif isinstance(block, SemiDefinite):
            slacks.append(torch.linalg.eigvalsh(block.F0 + torch.einsum("k,kij->ij", y, block.F))[0])
        elif isinstance(block, Quadratics):
            slacks.append(-(0.5 * y @ block.P @ y + block.q @ y + block.r))
    joined = torch.cat([slack.reshape(-1) for slack in slacks])
    return joined.min().item() if joined.numel() else torch.inf


def most_slack(hull: Hull, curved: Sequence[Block], cap: float | None) -> tuple[Tensor, float] | None:
    """The z with the most slack (up to `cap`), for linear rows the center of the largest ball; None if unbounded."""
    if curved:
        return most_slack_conic(hull, curved, cap)
    A, k = hull.rows.A @ hull.basis, hull.basis.shape[-1]
    lengths = torch.linalg.vector_norm(A, dim=-1, keepdim=True)
    cost = torch.zeros(k + 1).double()
    cost[-1] = -1
    free = torch.zeros(0, k + 1).double()
    bounds = [(None, None)] * k + [(None, cap)]
    result = _linear_program(
        cost, torch.cat([A, lengths], dim=1), hull.rows.b - hull.rows.A @ hull.point, free, free[:, 0], bounds
    )
    if result.status != 0:
        return None
    return torch.as_tensor(result.x[:k]), float(result.x[-1])


def _analytic_center(A: Tensor, b: Tensor, start: Tensor, iterations: int = 100) -> Tensor:
    """``argmin -sum log(b - A z)`` by damped Newton from an interior `start`; `start` where there is no minimum."""
    z = start
    for _ in range(iterations):
        inverse_slack = 1 / (b - A @ z)
        scaled = A * inverse_slack.unsqueeze(-1)
        factor, singular = torch.linalg.cholesky_ex(scaled.mT @ scaled)
        if singular:
            return start
        step = torch.cholesky_solve((scaled.mT @ torch.ones_like(b)).unsqueeze(-1), factor).squeeze(-1)
        decrement = torch.linalg.vector_norm(scaled @ step)
        z = z - step / (1 + decrement)
        if decrement < 1e-9:
            return z
    return start


def _linear_program(cost: Tensor, A: Tensor, b: Tensor, C: Tensor, d: Tensor, bounds: list[Any]) -> Any:
    """``min cost z`` subject to ``A z <= b``, ``C z = d`` and bounds, by HiGHS."""
    try:
        from scipy.optimize import linprog
    except ImportError:
        raise MissingExtraError("scipy", "offline") from None
    return linprog(cost.numpy(), A.numpy(), b.numpy(), C.numpy(), d.numpy(), bounds, method="highs")


CANCELED = 1e-12
"""A sum smaller than this times its terms is treated as zero."""

CANDIDATES_PER_ROW = 200
"""How many pairs may be formed before pruning, as a multiple of the row limit: this bounds the memory of one step."""


class Rows(NamedTuple):
    """``body y <= mix constants``, or ``=`` where `equality` is set.

    Attributes:
        body: ``(r, n)``.
        mix: ``(r, k)``; non-negative on the constants of inequalities.
        equality: ``(r,)`` bool.
        ancestors: ``(r, s)`` bool: which rows at the last restart an inequality was combined from.
    """

    body: Tensor
    mix: Tensor
    equality: Tensor
    ancestors: Tensor

    def take(self, index: Tensor) -> Rows:
        """Some of the rows."""
        return Rows(*(field[index] for field in self))


class Stage(NamedTuple):
    """The bounds of one variable once the variables before it are fixed.

    Attributes:
        variable: Its index.
        upper: Rows with coefficient +1 on it.
        lower: Rows with coefficient -1 on it.
        fixed: The equality with coefficient +1 on it (one row), or no row; then `upper` and `lower` are empty.
    """

    variable: int
    upper: Rows
    lower: Rows
    fixed: Rows


class Elimination(NamedTuple):
    """The result: one stage per variable, in the order in which they are to be fixed.

    Attributes:
        stages: One per variable.
        conditions: The rows without variables: the set is non-empty exactly where they hold.
    """

    stages: list[Stage]
    conditions: Rows


def eliminate(
    body: Tensor, constants: Tensor, equality: Tensor, order: Sequence[int], *, limit: int = 10_000
) -> Elimination:
    """Eliminate ``order[-1], ..., order[0]`` from ``body y <= constants`` (``=`` where `equality`).

    A variable with an equality is substituted; for any other, each of its upper bounds is combined with each of its
    lower bounds. Each step drops duplicate rows, parallel rows with a larger known constant, and rows with more
    ancestors than one plus the variables eliminated or with all ancestors of another row among theirs (Kohler,
    Chernikov).

    Args:
        body: ``(k, n)``, float64 on the CPU.
        constants: ``(k,)``; NaN where the value is not known yet.
        equality: ``(k,)`` bool.
        order: A permutation of the n variables; the first is moved least.
        limit: Largest number of rows to accept after a step.
    """
    rows = Rows(body, torch.eye(len(body), dtype=body.dtype), equality, ~equality[None] & torch.eye(len(body)).bool())
    rows, conditions = _split_off_conditions(_scale(rows))
    rows, eliminated = _drop_dominated(rows, constants)[0], 0
    stages, found = [], [conditions]
    for variable in reversed(order):
        stage, rows, combined = _eliminate_one(rows, variable, eliminated, limit)
        rows, conditions = _split_off_conditions(rows)
        rows, restart = _drop_dominated(rows, constants)
        eliminated = 0 if restart else eliminated + combined
        if len(rows.body) > limit:
            raise _too_many(len(rows.body), limit, order)
        stages.append(stage)
        found.append(conditions)
    return Elimination(stages[::-1], _join(found))


def unmet_conditions(mix: Tensor, equality: Tensor, constants: Tensor, tolerance: float) -> Tensor:
    """Which of ``0 <= mix constants`` fail, ``(*batch, r)``, by more than `tolerance` times the size of their terms."""
    right, size = right_hand_sides(constants, mix), right_hand_sides(constants.abs(), mix.abs())
    return torch.where(equality, right.abs(), -right) > tolerance * size


def require_consistent(conditions: Rows, constants: Tensor, labels: Sequence[int], tolerance: float) -> None:
    """Raise if a row without variables fails for known constants; `labels` are the numbers of the original rows."""
    known = (conditions.mix[:, constants.isnan()] == 0).all(dim=1)
    unmet = unmet_conditions(conditions.mix, conditions.equality, constants.nan_to_num(nan=0.0), tolerance)
    for row in (unmet & known).nonzero().flatten().tolist():
        contradicting = sorted({labels[i] for i in conditions.mix[row].nonzero().flatten().tolist()})
        message = f"constraints are inconsistent: no y satisfies rows {name_samples(contradicting)} together"
        raise InfeasibleError(message, rows=[contradicting])


def right_hand_sides(constants: Tensor, mix: Tensor) -> Tensor:
    """``mix constants`` ``(*batch, r)``, where an infinite constant (an absent bound) makes its rows infinite."""
    finite = constants.isfinite()
    right = torch.where(finite, constants, 0) @ mix.mT
    absent = (~finite).to(constants.dtype) @ mix.abs().mT > 0
    return torch.where(absent, torch.inf, right)


def _eliminate_one(rows: Rows, variable: int, eliminated: int, limit: int) -> tuple[Stage, Rows, bool]:
    """The stage of a variable, the rows without it, and whether inequalities were combined to eliminate it."""
    coefficient = rows.body[:, variable]
    pivots = rows.equality & (coefficient != 0)
    if pivots.any():
        stage, rest = _substitute(rows, variable, int((coefficient.abs() * pivots).argmax()))
        return stage, rest, False
    upper, lower = (_normalize(rows.take(side), variable) for side in (coefficient > 0, coefficient < 0))
    derived = _combine(upper, lower, eliminated, limit)
    stage = Stage(variable, upper, lower, rows.take(pivots))
    return stage, _join([rows.take(coefficient == 0), derived]), bool((coefficient != 0).any())


def _substitute(rows: Rows, variable: int, pivot: int) -> tuple[Stage, Rows]:
    """Solve the pivot equality for the variable and substitute the result into every other row."""
    own = _normalize(rows.take(torch.tensor([pivot])), variable)
    rest = rows.take(torch.arange(len(rows.body)) != pivot)
    coefficient = rest.body[:, variable, None]
    body = _add(rest.body, -coefficient * own.body)
    body[:, variable] = 0
    none = own.take(torch.tensor([], dtype=torch.long))
    return Stage(variable, none, none, own), _scale(
        rest._replace(body=body, mix=_add(rest.mix, -coefficient * own.mix))
    )


def _combine(upper: Rows, lower: Rows, eliminated: int, limit: int) -> Rows:
    """Every upper bound combined with every lower one, without those that their ancestors prove redundant."""
    count = len(upper.body) * len(lower.body)
    if count > CANDIDATES_PER_ROW * limit:
        raise _too_many(count, limit)
    pairs = torch.cartesian_prod(torch.arange(len(upper.body)), torch.arange(len(lower.body))).reshape(-1, 2)
    ancestors = upper.ancestors[pairs[:, 0]] | lower.ancestors[pairs[:, 1]]
    few = ancestors.sum(dim=1) <= eliminated + 2
    pairs, ancestors = pairs[few], ancestors[few]
    minimal = _minimal(ancestors)
    first, second = upper.take(pairs[minimal, 0]), lower.take(pairs[minimal, 1])
    body, mix = _add(first.body, second.body), first.mix + second.mix
    return _scale(Rows(body, mix, first.equality, ancestors[minimal]))


def _minimal(ancestors: Tensor) -> Tensor:
    """Which sets of ancestors contain no other set; of several equal sets, all."""
    sets = ancestors.to(torch.float32)
    size = sets.sum(dim=1)
    keep = [
        ((block @ sets.mT == size) & (size < block.sum(dim=1, keepdim=True))).sum(dim=1) == 0
        for block in sets.split(2048)
    ]
    return torch.cat(keep) if keep else ancestors.new_zeros(0)


def _drop_dominated(rows: Rows, constants: Tensor) -> tuple[Rows, bool]:
    """Keep the tightest of parallel inequalities, as far as their constants are known.

    A row dropped because of the value of its constant is not redundant by its ancestors alone, so the remaining rows
    then count as original ones: also returns whether the ancestors were restarted in this way.
    """
    known = (rows.mix[:, constants.isnan()] == 0).all(dim=1)
    value = torch.where(known, rows.mix @ constants.nan_to_num(nan=0.0), torch.nan)
    best: dict[tuple[object, ...], int] = {}
    dropped = False
    for row, key in enumerate(_parallel_keys(rows, known)):
        rival = best.setdefault(key, row)
        if rival != row and known[row]:
            dropped |= not torch.equal(rows.mix[row], rows.mix[rival])
            best[key] = row if value[row] < value[rival] else rival
    kept = rows.take(torch.tensor(sorted(best.values()), dtype=torch.long))
    if not dropped:
        return kept, False
    return kept._replace(ancestors=~kept.equality[:, None] & torch.eye(len(kept.body)).bool()), True


def _parallel_keys(rows: Rows, known: Tensor) -> list[tuple[object, ...]]:
    """Keys that are equal for rows that agree up to a known constant: the direction, and the mix if not known."""
    bodies = (rows.body / CANCELED).round().mul(CANCELED).add(0.0).tolist()
    kinds, mixes = rows.equality.tolist(), rows.mix.tolist()
    return [
        (kind, tuple(body), None if is_known and not kind else tuple(mix))
        for kind, body, mix, is_known in zip(kinds, bodies, mixes, known.tolist(), strict=True)
    ]


def _split_off_conditions(rows: Rows) -> tuple[Rows, Rows]:
    """The rows with variables, and those without."""
    free = (rows.body == 0).all(dim=1)
    return rows.take(~free), rows.take(free)


def _normalize(rows: Rows, variable: int) -> Rows:
    """Divide each row so that its coefficient on the variable is +1 or -1 (+1 for an equality)."""
    coefficient = rows.body[:, variable, None]
    size = torch.where(rows.equality[:, None], coefficient, coefficient.abs())
    return rows._replace(body=rows.body / size, mix=rows.mix / size)


def _scale(rows: Rows) -> Rows:
    """Divide each row by its largest coefficient."""
    largest = rows.body.abs().amax(dim=1, keepdim=True)
    size = torch.where(largest > 0, largest, 1)
    return rows._replace(body=rows.body / size, mix=rows.mix / size)


def _add(first: Tensor, second: Tensor) -> Tensor:
    """The sum, with coefficients that cancel to rounding set to exactly zero."""
    total = first + second
    return torch.where(total.abs() <= CANCELED * (first.abs() + second.abs()), 0, total)


def _join(pieces: list[Rows]) -> Rows:
    """Stack rows; ancestors are padded to the same width, since a restart changes their number."""
    width = max(piece.ancestors.shape[1] for piece in pieces)
    padded = [
        piece._replace(ancestors=torch.nn.functional.pad(piece.ancestors, (0, width - piece.ancestors.shape[1])))
        for piece in pieces
    ]
    return Rows(*(torch.cat(fields) for fields in zip(*padded, strict=True)))


def _too_many(count: int, limit: int, order: Sequence[int] | None = None) -> UnsupportedSetError:
    """The error for an elimination that produces too many rows."""
    got = f"{count} rows" if order is None else f"{count} rows in the order [{name_samples(order)}]"
    remedy = "try another order of the variables, raise the limit, or use method 'projection'"
    return UnsupportedSetError(sentence("A", f"at most {limit} rows while eliminating", got, remedy))


# Generators of a polyhedral cone: ``{y : A y <= 0, E y = 0} = {rays' beta + lineality' gamma : beta >= 0}``.


RELATIVE_ZERO = 1e-10
"""Largest number that counts as zero in float64 once every vector has unit length."""

PAIRS_AT_ONCE = 4096
"""How many pairs of rays are tested for adjacency in one matrix product, to bound memory."""


class Generators(NamedTuple):
    """The rays and lines that span a cone.

    Attributes:
        rays: Unit vectors orthogonal to the lines, ``(r, n)``; used with non-negative coefficients.
        lineality: Orthonormal lines, ``(l, n)``; used with coefficients of any sign.
    """

    rays: Tensor
    lineality: Tensor


def cone_generators(A: Tensor, E: Tensor | None = None, *, limit: int = 10_000) -> Generators:
    """Rays and lines of ``{y : A y <= 0, E y = 0}`` (Minkowski-Weyl).

    Equalities are removed first, by changing to coordinates of null(E). Independent rows need no enumeration: their
    rays are the columns of ``-A⁺`` and their lines span null(A). All other cases use `double_description`.

    Args:
        A: Inequality rows, ``(m, n)``; zero rows are dropped.
        E: Equality rows, ``(p, n)``.
        limit: Largest number of generators to accept; their number can grow exponentially with the number of rows.

    Returns:
        The generators in float64.
    """
    A = _clean_rows("A", A)
    if E is None or E.shape[-2] == 0:
        return _inequality_generators(A, limit)
    basis = _null_space(_clean_rows("E", E))
    inner = _inequality_generators(_clean_rows("A", A @ basis.mT, RELATIVE_ZERO), limit)
    return Generators(inner.rays @ basis, inner.lineality @ basis)


def double_description(A: Tensor, *, limit: int = 10_000) -> Generators:
    """Rays and lines of ``{y : A y <= 0}``, starting from the whole space and adding one row at a time.

    A row that cuts a line turns it into a ray and shears the other generators onto its hyperplane. A row that cuts no
    line keeps the rays on its side and replaces each adjacent pair from opposite sides by a ray on its hyperplane.
    """
    A = _small_cones_first(_clean_rows("A", A))
    m, n = A.shape
    lines, rays = torch.eye(n, dtype=A.dtype), A.new_zeros(0, n)
    tight = torch.zeros(0, m, dtype=torch.bool)
    for row, normal in enumerate(A):
        slope = lines @ normal
        if slope.numel() and slope.abs().max() > RELATIVE_ZERO:
            lines, rays, tight = _cut_line(normal, row, slope, lines, rays, tight)
        else:
            rays, tight = _cut_rays(normal, row, rays, tight)
        if len(rays) + len(lines) > limit:
            raise _too_many_rays(len(rays) + len(lines), limit)
    lines = torch.linalg.qr(lines.mT).Q.mT
    return Generators(_unit(rays - rays @ lines.mT @ lines), lines)


def _inequality_generators(A: Tensor, limit: int) -> Generators:
    """The closed form for independent rows, else the double description."""
    m, n = A.shape
    if m <= n and (m == 0 or torch.linalg.svdvals(A)[-1] > RELATIVE_ZERO):
        if n > limit:
            raise _too_many_rays(n, limit)
        return Generators(_unit(-torch.linalg.pinv(A).mT), _null_space(A))
    return double_description(A, limit=limit)


def _cut_line(
    normal: Tensor, row: int, slope: Tensor, lines: Tensor, rays: Tensor, tight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Turn the line with the steepest slope into a ray; shear every other generator onto the hyperplane."""
    pick = int(slope.abs().argmax())
    line = -slope[pick].sign() * lines[pick]
    steepest = -slope[pick].abs()
    others = torch.arange(len(lines)) != pick
    kept = _unit(lines[others] - (slope[others] / steepest)[:, None] * line)
    sheared = _unit(rays - (rays @ normal / steepest)[:, None] * line)
    own = torch.arange(tight.shape[1])[None] < row  # a line is tight on every row before this one
    tight = tight.clone()
    tight[:, row] = True
    return kept, torch.cat([sheared, line[None]]), torch.cat([tight, own])


def _cut_rays(normal: Tensor, row: int, rays: Tensor, tight: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the rays on the feasible side of the hyperplane and combine the adjacent pairs that it separates."""
    slope = rays @ normal
    above, below = slope > RELATIVE_ZERO, slope < -RELATIVE_ZERO
    tight = tight.clone()
    tight[~above & ~below, row] = True
    first, second = _adjacent_pairs(tight, above.nonzero().flatten(), below.nonzero().flatten())
    joined = _unit(slope[first, None] * rays[second] - slope[second, None] * rays[first])
    shared = tight[first] & tight[second]
    shared[:, row] = True
    return torch.cat([rays[~above], joined]), torch.cat([tight[~above], shared])


def _adjacent_pairs(tight: Tensor, above: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs for which no third ray is tight on all their common tight rows: exactly the pairs that span a face."""
    pairs = torch.cartesian_prod(above, below).reshape(-1, 2)
    loose = (~tight).to(torch.float32).mT
    found = [_span_face(tight, loose, chunk) for chunk in pairs.split(PAIRS_AT_ONCE)]
    pairs = pairs[torch.cat(found)] if found else pairs
    return pairs[:, 0], pairs[:, 1]


def _span_face(tight: Tensor, loose: Tensor, pairs: Tensor) -> Tensor:
    """For each pair, whether its two rays are the only ones tight on all rows where both are."""
    common = (tight[pairs[:, 0]] & tight[pairs[:, 1]]).to(torch.float32)
    return (common @ loose == 0).sum(dim=1) == 2


def _small_cones_first(A: Tensor) -> Tensor:
    """Sparse rows first, then lexicographic: the order that keeps intermediate cones small in practice."""
    rows = A.tolist()
    order = sorted(range(len(rows)), key=lambda i: (sum(entry != 0 for entry in rows[i]), rows[i]))
    return A[order]


def _clean_rows(name: str, A: Tensor, zero: float = 0.0) -> Tensor:
    """The rows longer than `zero`, on the CPU in float64 and scaled to unit length."""
    A = A.detach().to(device="cpu", dtype=torch.float64)
    if not bool(A.isfinite().all()):
        raise NonFiniteError(sentence(name, "finite entries", "NaN or infinity"))
    norm = torch.linalg.vector_norm(A, dim=-1)
    return A[norm > zero] / norm[norm > zero, None]


def _null_space(A: Tensor) -> Tensor:
    """An orthonormal basis of null(A) as rows, ``(n - rank, n)``."""
    if A.shape[0] == 0:
        return torch.eye(A.shape[1], dtype=A.dtype)
    _, values, right = torch.linalg.svd(A, full_matrices=True)
    return right[int((values > RELATIVE_ZERO).sum()) :]


def _unit(vectors: Tensor) -> Tensor:
    """Each row divided by its length."""
    return vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)


def _too_many_rays(count: int, limit: int) -> UnsupportedSetError:
    """The error for an enumeration with too many generators."""
    remedy = "use method 'projection', which needs no generators, or raise the limit"
    return UnsupportedSetError(sentence("A", f"a cone of at most {limit} generators", f"{count} or more", remedy))
