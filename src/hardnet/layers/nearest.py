"""``y = argmin |y - raw|  s.t.  y in C(x)``: which solver takes which region. `projection`, `cvx` and unions call it.

alone: a box, a simplex, an order, bands over time, a ball, a quadratic, an L1 ball      formulas of their own
affine rows beside a box                        `functional.nearest` with a table of its own
rows that give way                              `functional.relaxed`
sparse rows                                     `functional.sparse_rows`
L1 balls beside rows and curved sets            `functional.l1_ball`
curved sets and rows                            `functional.conic`
a set of your own, alone or beside these        its own projection; in turns, `functional.alternating`
a program                                       cvxpylayers, `functional.program`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from operator import is_
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import DeviceError, InfeasibleError, UnsupportedSetError, sentence
from hardnet.functional.alternating import project_alternating, solve_alternating
from hardnet.functional.bands import project_bands
from hardnet.functional.conic import project_intersection, solve_intersection
from hardnet.functional.elementary import project_ball, project_simplex, solve_ball
from hardnet.functional.l1_ball import L1, project_l1_ball, project_with_balls, solve_l1_ball, solve_with_balls
from hardnet.functional.l1_ball import Region as Pieces
from hardnet.functional.monotone import project_monotone
from hardnet.functional.nearest import project_rows, solve_rows
from hardnet.functional.program import project_program
from hardnet.functional.quadratic import Spectrum, project_quadratic, solve_quadratic
from hardnet.functional.relaxed import project_relaxed, project_small
from hardnet.functional.sparse_rows import project_sparse_affine, solve_sparse_affine
from hardnet.modes import GRAPHS, look_or_nan, mode, outside_compiler, refuse_transforms
from hardnet.nearest.policy import Policy
from hardnet.region import Kind, Region, SparseNumbers
from hardnet.sets.arguments import to_double
from hardnet.sets.base import ConstraintSet
from hardnet.sets.cvxpy import Cvxpy
from hardnet.sets.horizon import Bands
from hardnet.sets.intersection import Intersection
from hardnet.sets.monotone import Pooled
from hardnet.sets.simplex import SimplexNumbers
from hardnet.solvers.conic.blocks import Balls, Quadratics
from hardnet.solvers.polyhedron.shared_rows import SharedRows
from hardnet.solvers.polyhedron.sparse_rows import SparseRows, prepare_sparse
from hardnet.solvers.solution import Solution


@dataclass
class Kept:
    """What a layer has computed from the constants of its set.

    Attributes:
        shared: Factors of many rows.
        spectrum: The eigendecomposition of a quadratic.
        sparse: Sparse rows with their factors, and the tensors they come from: a move or a load brings others.
    """

    shared: SharedRows | None = None
    spectrum: Spectrum | None = None
    sparse: tuple[list[Tensor], SparseRows] | None = field(default=None, repr=False)

    def sparse_rows(self, constraint: ConstraintSet, rows: SparseNumbers, raw: Tensor) -> SparseRows:
        """The factors of the sparse rows; on a CPU, outside of transforms."""
        refuse_transforms("the projection onto sparse rows")
        if raw.device.type != "cpu":
            raise DeviceError(sentence("raw", "a tensor on the CPU beside sparse rows", raw.device, "give A densely"))
        fixed = [part.fixed(name) for part in constraint.parts for name in ("values", "A")]
        source = [entries for entries in fixed if entries is not None]
        if self.sparse is None or len(source) != len(self.sparse[0]) or not all(map(is_, source, self.sparse[0])):
            self.sparse = source, prepare_sparse(rows.crow, rows.col, rows.values, raw.shape[-1])
        return self.sparse[1]


def refusal(constraint: ConstraintSet) -> str | None:
    """Why no solver takes a set, and what would work; None where one does."""
    kinds, several = constraint.kinds, len(constraint.parts) > 1
    if len(constraint.pieces) > 1:
        return "a union is not convex; use method='union'"
    if Kind.SPARSE in kinds and not _same_rows(constraint):
        return (
            "sparse rows may stand beside boxes, simplices and rows with a constant A alone; give them densely, "
            "hn.Affine(A.to_dense(), ...)"
        )
    exact = all(part.tolerance == 0 for part in constraint.parts)  # a promise to a tolerance joins no other
    together = {Kind.ROWS, Kind.CURVED, Kind.ABSOLUTE} | ({Kind.PROJECTION} if exact else set())
    alone = {Kind.PROJECTION, Kind.PROGRAM} if not several else set()
    if Kind.SPARSE in kinds or kinds <= {Kind.ROWS, Kind.SOFT} or kinds <= together or kinds <= alone:
        return None
    return (
        f"{type(constraint).__name__} has neither affine rows nor a projection of its own (a member of an "
        "intersection may lack one); write all constraints as one hn.Cvxpy"
    )


def _same_rows(constraint: ConstraintSet) -> bool:
    """Whether all rows of sets beside sparse ones have one constant matrix for all samples."""
    like = constraint.origin()
    dense = [part for part in constraint.parts if Kind.SPARSE not in part.kinds]
    return like is not None and all(part.fixed_matrix(like) is not None for part in dense)


def nearest(
    constraint: ConstraintSet, raw: Tensor, x: Any, policy: Policy, kept: Kept | None = None, *, formulas: bool = True
) -> Tensor:
    """The nearest point of C(x), differentiable in raw and in every number.

    Args:
        constraint: The set.
        raw: ``(*batch, n)``.
        x: The input.
        policy: What samples without an answer give, and the options of a polyhedron.
        kept: What was computed before.
        formulas: Whether a simplex alone takes its formula; else the solver of rows.
    """
    return nearest_of(constraint, constraint.numbers(x, raw), raw, policy, kept or Kept(), formulas=formulas)


def nearest_of(
    constraint: ConstraintSet, numbers: Any, raw: Tensor, policy: Policy, kept: Kept, *, formulas: bool = True
) -> Tensor:
    """The same from the numbers of C(x)."""
    kinds = constraint.kinds
    if Kind.SOFT in kinds or (kinds <= {Kind.ROWS} and not constraint.projectable):
        return _rows(constraint, numbers, raw, policy, kept, formulas)
    ends = {"on_infeasible": look_or_nan(policy.on_infeasible, raw), "on_invalid": policy.on_invalid}
    policies: Any = {**ends, "on_unsolved": look_or_nan(policy.on_unsolved, raw), "once": policy.once}
    if Kind.SPARSE in kinds:
        return _sparse(constraint, numbers, raw, policy, kept)
    if len(constraint.parts) > 1 and Kind.PROJECTION in kinds:
        known = _of_others(constraint, numbers, raw, policy._replace(**ends))
        return project_alternating(raw, _in_turns(constraint, numbers), Policy(**policies), known)
    if constraint.projectable:
        return _own(constraint, numbers, raw, policies)
    if isinstance(constraint, Cvxpy):
        return project_program(constraint.program, raw, numbers, **policies)
    form = constraint.alone(numbers, raw)
    if isinstance(form, L1):
        return project_l1_ball(raw, *form, on_invalid=policy.on_invalid)
    if isinstance(form, Balls):
        return project_ball(raw, *form, on_invalid=policy.on_invalid)
    if isinstance(form, Quadratics):
        return project_quadratic(raw, *form, factor=kept.spectrum, **policies)
    region = constraint.region_of(numbers, raw)
    if Kind.ABSOLUTE in kinds:
        return project_with_balls(raw, _pieces(region, raw), **policies)
    return project_intersection(raw, region.blocks(raw), **policies)


def _rows(constraint: ConstraintSet, numbers: Any, raw: Tensor, policy: Policy, kept: Kept, formulas: bool) -> Tensor:
    """The nearest point of affine rows, some of which may give way; errors speak of rows by their names."""
    plain = not policy.strict and policy.gradient == "exact" and policy.on_infeasible != "nearest"
    found = _by_formula(constraint, numbers, raw, policy, formulas) if plain else None
    if found is not None and (y := _completed(constraint, numbers, raw, policy, found)) is not None:
        return y
    if mode() == "export" and (y := _by_faces(constraint, numbers, raw, policy)) is not None:
        return y
    region = constraint.region_of(constraint.essential(numbers), raw)
    if Kind.SOFT in constraint.kinds:
        try:
            ends = {"on_infeasible": policy.on_infeasible, "on_unsolved": policy.on_unsolved}
            return project_relaxed(raw, region.rows(raw), **ends, on_invalid=policy.on_invalid, once=policy.once)
        except InfeasibleError as error:
            raise error.named([name for _, name in region.names(raw)]) from None
    as_rows = kept.shared is not None or policy.metric is not None  # neither supports a box
    rows = region.stacked() if as_rows else region.rows(raw)
    policy = policy._replace(shared=kept.shared if mode() not in GRAPHS else None)  # compiled code: a fixed program
    if mode() not in GRAPHS:  # which raise nothing
        policy = policy._replace(names=lambda: region.names(raw) if rows.boxed else list(enumerate(region.name_rows())))
    y = project_rows(raw, rows, policy)
    return y if found is None or found[1] is None else torch.where(found[1].unsqueeze(-1), y, found[0])


def _by_formula(
    constraint: ConstraintSet, numbers: Any, raw: Tensor, policy: Policy, formulas: bool
) -> tuple[Tensor, Tensor | None] | None:
    """The nearest point of a polyhedron with an algorithm of its own, and which samples it leaves open, if any."""
    form = constraint.alone(numbers, raw)
    if form is None:
        return None
    if isinstance(form, SimplexNumbers):
        plain = formulas and policy.metric is None
        return (project_simplex(raw, form.total, on_invalid=policy.on_invalid), None) if plain else None
    weights = raw.new_ones(raw.shape[-1]) if policy.metric is None else _diagonal(policy.metric, raw)
    if weights is None:
        return None
    if isinstance(form, Pooled):
        ends: Any = {"on_infeasible": look_or_nan(policy.on_infeasible, raw), "on_invalid": policy.on_invalid}
        y = project_monotone(raw, form.lower, form.upper, increasing=form.increasing, weights=weights, **ends)
        return y, None
    assert isinstance(form, Bands)
    shape = form.low.shape[-2:]
    apart = lambda part: part.unflatten(-1, shape).mT
    low, high = (side.movedim(-1, -3) for side in form)
    found = project_bands(apart(raw), low, high, apart(weights.expand_as(raw)))
    if found is None:
        return None
    return found[0].mT.flatten(-2), ~found[1].all(-1)


def _completed(
    constraint: ConstraintSet, numbers: Any, raw: Tensor, policy: Policy, found: tuple[Tensor, Tensor | None]
) -> Tensor | None:
    """Y with the samples that are left open solved by their rows; None where one of these has no answer."""
    y, left = found
    if left is None or not bool(left.any()):
        return y
    pick = lambda part, core: part if part.dim() == core else part.expand((*raw.shape[:-1], *part.shape[-core:]))[left]
    W = None if policy.metric is None else pick(policy.metric.expand(*raw.shape[:-1], 1, -1), 2)
    quiet = Policy("nan", "nan", "nan", metric=W)
    rest = project_rows(raw[left], constraint.structure(numbers, raw).map(pick), quiet)
    return y.masked_scatter(left.unsqueeze(-1), rest) if bool(rest.isfinite().all()) else None


def _diagonal(W: Tensor, raw: Tensor) -> Tensor | None:
    """The diagonal of a metric ``(n,)`` or ``(*batch, 1, n)``; None for a matrix."""
    if W.dim() == 1:
        return W
    return W.squeeze(-2) if W.shape[-2] == 1 and raw.shape[-1] > 1 else None


def _by_faces(constraint: ConstraintSet, numbers: Any, raw: Tensor, policy: Policy) -> Tensor | None:
    """The nearest point of few rows beside a box, or of rows that may give way, where their faces are few."""
    if "raise" in (policy.on_infeasible, policy.on_unsolved) or policy.strict or policy.metric is not None:
        return None  # refused elsewhere, or solved by a program of its own
    region = constraint.region_of(numbers, raw)
    general = [count for _, count in region.counts(raw)]
    soft = [part.kind is Kind.SOFT for part, count in zip(region.parts, general, strict=True) for _ in range(count)]
    rows = region.rows(raw)
    if not soft or not (any(soft) or policy.on_infeasible == "nearest" or rows.boxed):
        return None
    return project_small(raw, rows, soft, policy.on_infeasible)


@outside_compiler
def _sparse(constraint: ConstraintSet, numbers: Any, raw: Tensor, policy: Policy, kept: Kept) -> Tensor:
    """The nearest point by sparse factors; all answers are proved, so that there is nothing to warn of."""
    region = constraint.region_of(numbers, raw)
    rows = _compressed(region, raw)
    ends = {"on_unsolved": look_or_nan(policy.on_unsolved, raw), "on_invalid": policy.on_invalid}
    ends["on_infeasible"] = look_or_nan(policy.on_infeasible, raw)
    try:
        factors = kept.sparse_rows(constraint, rows, raw)
        return project_sparse_affine(raw, factors, rows.lower, rows.upper, **ends)  # pyright: ignore[reportArgumentType]
    except InfeasibleError as error:
        raise error.named(region.name_rows()) from None


def _compressed(region: Region, raw: Tensor) -> SparseNumbers:
    """All rows of a region in compressed form."""
    parts = [SparseNumbers.of(part.data, raw) for part in region.parts]  # pyright: ignore[reportArgumentType]
    return parts[0] if len(parts) == 1 else SparseNumbers.joined(parts)


def _pieces(region: Region, raw: Tensor) -> Pieces:
    """The parts by kind: rows beside a box, curved blocks, and L1 balls."""
    return Pieces(region.rows(raw), region.curved(), [part.data for part in region.parts if isinstance(part.data, L1)])


def _own(constraint: ConstraintSet, numbers: Any, raw: Tensor, policies: dict[str, Any]) -> Tensor:
    """A projection that a set brings, which need not know every policy."""
    taken = signature(constraint.project).parameters.values()
    known = None if any(one.kind is one.VAR_KEYWORD for one in taken) else {one.name for one in taken}
    chosen = {name: policy for name, policy in policies.items() if known is None or name in known}
    return constraint.project(numbers, raw, **chosen)


def _in_turns(constraint: ConstraintSet, numbers: Any) -> list[Callable[[Tensor], Tensor]]:
    """In float64: the projections that members bring, then that of all others together, where there are some."""
    exact = to_double(numbers)
    own = [(part, given) for part, given in constraint.pairs(exact) if Kind.PROJECTION in part.kinds]
    projections: list[Callable[[Tensor], Tensor]] = [partial(part.project, given) for part, given in own]
    quiet = Policy("nan", "nan", "nan")
    others = lambda raw: _of_others(constraint, exact, raw, quiet)
    return projections if len(own) == len(constraint.parts) else [*projections, others]


def _of_others(constraint: ConstraintSet, numbers: Any, raw: Tensor, policy: Policy) -> Tensor:
    """The nearest point of the members that bring more than a projection."""
    own = [pair for pair in constraint.pairs(numbers) if Kind.PROJECTION not in pair[0].kinds]
    if not own:
        return raw
    several = len(own) > 1
    joined = Intersection([part for part, _ in own]) if several else own[0][0]
    given = tuple(number for _, number in own) if several else own[0][1]
    return nearest_of(joined, given, raw, policy._replace(on_unsolved="nan"), Kept())


def solution(constraint: ConstraintSet, raw: Tensor, x: Any, policy: Policy, kept: Kept | None = None) -> Solution:
    """The full solution behind `nearest`, without derivatives; multipliers of rows first, then those of the box."""
    return solution_of(constraint, constraint.numbers(x, raw), raw, policy, kept or Kept())


def solution_of(constraint: ConstraintSet, numbers: Any, raw: Tensor, policy: Policy, kept: Kept) -> Solution:
    """The same from the numbers of C(x)."""
    kinds = constraint.kinds
    if not tells_status(constraint):
        remedy, expected = "call the layer", "a set whose solver tells the status of a sample"
        expected = "rows that do not give way" if Kind.SOFT in kinds else expected
        raise UnsupportedSetError(sentence("constraint", expected, type(constraint).__name__, remedy))
    if kinds <= {Kind.ROWS}:
        region = constraint.region_of(constraint.essential(numbers), raw)
        own: Any = {"metric": policy.metric, "strict": policy.strict, "best": policy.on_unsolved == "best"}
        rows, shared = region.rows(raw), kept.shared if mode() not in GRAPHS else None
        if shared is None or not rows.boxed:
            return solve_rows(raw, rows, shared=shared, **own)
        found = solve_rows(raw, region.stacked(), shared=shared, **own)
        return found._replace(dual=region.box_last(found.dual, raw))
    if Kind.SPARSE in kinds:
        return _solve_sparse(constraint, numbers, raw, kept)
    if Kind.PROJECTION in kinds:
        return solve_alternating(raw, _in_turns(constraint, numbers))
    form = constraint.alone(numbers, raw)
    if isinstance(form, L1):
        return solve_l1_ball(raw, *form)
    if isinstance(form, Balls):
        return solve_ball(raw, *form)
    if isinstance(form, Quadratics):
        return solve_quadratic(raw, *form)
    region = constraint.region_of(numbers, raw)
    if Kind.ABSOLUTE in kinds:
        return solve_with_balls(raw, _pieces(region, raw))
    return solve_intersection(raw, region.blocks(raw))


def tells_status(constraint: ConstraintSet) -> bool:
    """Whether the solver of a set tells what became of each sample."""
    alone = len(constraint.parts) == 1 and Kind.PROJECTION in constraint.kinds
    return not (alone or constraint.kinds & {Kind.SOFT, Kind.PROGRAM})


@outside_compiler
def _solve_sparse(constraint: ConstraintSet, numbers: Any, raw: Tensor, kept: Kept) -> Solution:
    """The solution of sparse rows; multipliers in the order of the members' rows."""
    rows = _compressed(constraint.region_of(numbers, raw), raw)
    return solve_sparse_affine(raw, kept.sparse_rows(constraint, rows, raw), rows.lower, rows.upper)


def project(constraint: ConstraintSet, numbers: Any, raw: Tensor, **policies: Any) -> Tensor:
    """What ``constraint.project`` was in version 0.2."""
    given = {name: policies[name] for name in Policy._fields if name in policies}
    return nearest_of(constraint, numbers, raw, Policy(**given), Kept(spectrum=policies.get("factor")))


def solve(constraint: ConstraintSet, numbers: Any, raw: Tensor, tolerance: float | None = None) -> Solution:
    """What ``constraint.solve`` was in version 0.2."""
    if tolerance is not None and constraint.kinds <= {Kind.ROWS, Kind.CURVED}:
        return solve_intersection(raw, constraint.region_of(numbers, raw).blocks(raw), tolerance=tolerance)
    return solution_of(constraint, numbers, raw, Policy(), Kept())
