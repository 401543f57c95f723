"""The projection onto any set that CVXPY can express, by one compiled cone program; errors name the failed samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import (
    NOT_FINITE,
    InfeasibleError,
    MissingExtraError,
    UnsupportedSetError,
    sentence,
)
from hardnet.functional.samples import refuse, reject
from hardnet.nearest.policy import Once, OnInfeasible, OnInvalid, OnUnsolved, Policy, refuse_unsolved
from hardnet.solvers.solution import Solution, Status
from hardnet.tolerances import PROGRAMS

SOLVER = {"solve_method": "Clarabel", "tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}
"""The cone solver behind cvxpylayers, at the tightest tolerances that it accepts without a warning."""
MATRICES = {"solve_method": "SCS", "eps_abs": 1e-11, "eps_rel": 1e-11, "eps_infeas": 1e-9, "max_iters": 100_000}
"""For semidefinite constraints of order 4 and more, where diffcp returns the duals of Clarabel in the wrong order."""


class Program:
    """``argmin |y - raw|  s.t.  build(y, **parameters)``, compiled once.

    Args:
        build: Takes the CVXPY variable y and the CVXPY parameters by name; returns a list of constraints.
        dim: n.
        shapes: The shape of each parameter, by name.
    """

    y: Any
    raw: Any
    options: dict[str, Any]

    def __init__(self, build: Callable[..., Any], dim: int, shapes: dict[str, tuple[int, ...]]) -> None:
        cp, layer = _import()
        self.y, self.raw = cp.Variable(dim), cp.Parameter(dim)
        self.parameters: dict[str, Any] = {name: cp.Parameter(shape) for name, shape in shapes.items()}
        self.constraints: list[Any] = _constraints(build, self.y, self.parameters)
        problem = cp.Problem(cp.Minimize(cp.norm(self.y - self.raw)), self.constraints)
        if not problem.is_dcp(dpp=True):
            got = "a problem that is not convex" if not problem.is_dcp() else "a problem that is convex but not DPP"
            remedy = "each parameter must enter affinely: see cvxpy.org/tutorial/dpp"
            raise UnsupportedSetError(sentence("build", "constraints that follow the DPP rules", got, remedy))
        used = {parameter.id for parameter in problem.parameters()}
        unused = [name for name, parameter in self.parameters.items() if parameter.id not in used]
        if unused:
            got = f"{', '.join(unused)} in no constraint"
            raise UnsupportedSetError(sentence("parameters", "each in some constraint", got, "leave it out"))
        self.layer: Any = layer(problem, parameters=[self.raw, *self.parameters.values()], variables=[self.y])
        self.options = MATRICES if max(self.layer.ctx.cone_dims.psd, default=0) >= 4 else SOLVER

    def violations(self, numbers: Sequence[Tensor], y: Tensor) -> Tensor:
        """The violation of each scalar row of each constraint at y ``(B, n)``, in float64: ``(B, rows)``."""
        import numpy as np

        rows = []
        for i in range(y.shape[0]):
            self.y.value = y[i].double().cpu().numpy()
            for parameter, value in zip(self.parameters.values(), numbers, strict=True):
                parameter.value = value[i].double().cpu().numpy()
            found = [np.ravel(constraint.violation()) for constraint in self.constraints]
            rows.append(torch.as_tensor(np.concatenate(found), dtype=torch.float64))
        return torch.stack(rows) if rows else y.new_zeros(0, 1, dtype=torch.float64)

    def project(self, raw: Tensor, numbers: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The projection of ``raw (B, n)`` in float64 on a CPU, differentiable, and which samples failed ``(B,)``.

        The solver's result is checked by its violation, since it may report an infeasible sample as solved.
        """
        import diffcp

        try:
            (y,) = self.layer(raw, *numbers, solver_args=self.options)
        except diffcp.SolverError:
            return torch.full_like(raw, torch.nan), self._failures(raw, numbers)
        rows = self.violations([number.detach() for number in numbers], y.detach())
        return y, ~(rows.amax(-1) <= PROGRAMS * _size(raw, y.detach()))

    def _failures(self, raw: Tensor, numbers: Sequence[Tensor]) -> Tensor:
        """Which samples fail when each is solved separately: ``(B,)``."""
        if raw.shape[0] == 1:
            return torch.ones(1, dtype=torch.bool)
        with torch.no_grad():
            each = range(raw.shape[0])
            alone = [self.project(raw[i : i + 1], [value[i : i + 1] for value in numbers])[1] for i in each]
        return torch.cat(alone)


def project_program(
    program: Program,
    raw: Tensor,
    numbers: Sequence[Tensor],
    *,
    on_infeasible: OnInfeasible = "auto",
    on_unsolved: OnUnsolved = "auto",
    on_invalid: OnInvalid = "raise",
    once: Once | None = None,
) -> Tensor:
    """``argmin |y - raw|`` over a compiled program, in the dtype and on the device of raw.

    Args:
        program: The compiled constraints.
        raw: ``(*batch, n)``.
        numbers: The parameters in order, each ``(*batch, *shape)``.
        on_infeasible: What to do with samples that the solver cannot solve even from near the origin: raise an
            `InfeasibleError`, or return NaN; ``"auto"`` raises on a CPU.
        on_unsolved: What to do with samples that fail because raw is too far away: a `ConvergenceError`, NaN, or the
            ``"best"``, the last point of the solver, NaN where it has none.
        on_invalid: What to do with NaN or infinity in raw or in a parameter: raise an error, or return NaN for that
            sample alone.
        once: For the layers; the solver tells of no point in the set that it is not the nearest.
    """
    policy = Policy(on_infeasible, on_unsolved, on_invalid, once=once).checked().resolved(raw.is_cpu)
    batch, n = raw.shape[:-1], raw.shape[-1]
    flat = raw.reshape(batch.numel(), n).double().cpu()
    values = [number.reshape(flat.shape[0], *number.shape[len(batch) :]).double().cpu() for number in numbers]
    finite = flat.isfinite().all(-1)
    for value in values:
        finite = finite & value.isfinite().reshape(flat.shape[0], prod(value.shape[1:])).all(-1)
    if on_invalid == "raise":
        reject(~finite.reshape(batch), NOT_FINITE, "raw, parameters")
    outside = finite & ~_inside(program, flat, values, finite)
    y = torch.where(finite.unsqueeze(-1), flat, torch.nan)
    index = outside.nonzero().squeeze(-1)
    if index.numel():
        y = _solve(program, y, values, index, batch, policy)
    return y.to(raw).reshape(raw.shape)


def _inside(program: Program, raw: Tensor, values: list[Tensor], finite: Tensor) -> Tensor:
    """Samples that violate nothing, and so are their own projection."""
    inside = torch.zeros_like(finite)
    index = finite.nonzero().squeeze(-1)
    with torch.no_grad():
        rows = program.violations([value[index] for value in values], raw[index])
    inside[index] = (rows == 0).all(-1)
    return inside


def _solve(
    program: Program, y: Tensor, values: list[Tensor], index: Tensor, batch: torch.Size, policy: Policy
) -> Tensor:
    """Project the samples `index`; failed samples are named in an error, NaN, or the last point."""
    found, failed = program.project(y[index], [value[index] for value in values])
    if not bool(failed.any()):
        return y.index_copy(0, index, found)
    bad = torch.zeros(y.shape[0], dtype=torch.bool).index_copy(0, index, failed)
    empty = bad.clone()
    if (policy.on_infeasible, policy.on_unsolved) != ("nan", "nan"):
        empty[bad] = _empty(program, y[bad], [value[bad] for value in values])
    if policy.on_infeasible == "raise":
        text = "the cone solver found no point: expected constraints that some y satisfies, got none"
        refuse(empty.reshape(batch), InfeasibleError, text)
    y, good = torch.where(bad.unsqueeze(-1), torch.nan, y), index[~failed]
    if good.numel():
        y = y.index_copy(0, good, program.project(y[good], [value[good] for value in values])[0])
    far = bad & ~empty
    if policy.on_unsolved == "raise" and bool(far.any()):
        text = "the cone solver did not converge: expected a raw output near the set, got one too far for float64"
        refuse_unsolved(_solution(y, empty, far, batch), text)
    last = torch.full_like(y, torch.nan).index_copy(0, index, found.detach())
    return torch.where(far.unsqueeze(-1), last, y) if policy.on_unsolved == "best" else y


def _solution(y: Tensor, empty: Tensor, far: Tensor, batch: torch.Size) -> Solution:
    """What is known of the whole batch: NaN for samples without an answer, and no multipliers."""
    status = torch.where(y.isnan().any(-1), int(Status.INVALID), int(Status.SOLVED))
    status = torch.where(far, int(Status.NOT_CONVERGED), torch.where(empty, int(Status.INFEASIBLE), status))
    residual = torch.where(status == int(Status.SOLVED), 0.0, torch.inf).reshape(batch)
    status = status.to(torch.int8).reshape(batch)
    found = y.detach().reshape(*batch, y.shape[-1])
    return Solution(found, found[..., :0], status, torch.zeros_like(status, dtype=torch.long), residual)


def _empty(program: Program, raw: Tensor, values: list[Tensor]) -> Tensor:
    """Samples that fail also from a raw output scaled down to entries of at most one, ``(B,)``."""
    with torch.no_grad():
        near = raw / raw.abs().amax(-1, keepdim=True).clamp_min(1)
        found, failed = program.project(near, [value.detach() for value in values])
        return failed | found.isnan().any(-1)


def _size(raw: Tensor, y: Tensor) -> Tensor:
    """The size that violations are relative to, ``(B,)``: ``min(1 + |y|, max(|raw|, |y|))``."""
    long = y.abs().amax(-1)
    return torch.minimum(1 + long, torch.maximum(raw.detach().abs().amax(-1), long))


def _constraints(build: Callable[..., Any], y: Any, parameters: dict[str, Any]) -> list[Any]:
    """Call `build` and check that it returned a list of CVXPY constraints."""
    import cvxpy as cp

    found = build(y, **parameters)
    found = [found] if isinstance(found, cp.Constraint) else found
    if not isinstance(found, (list, tuple)) or not found or not all(isinstance(one, cp.Constraint) for one in found):
        raise UnsupportedSetError(sentence("build", "a function that returns CVXPY constraints", type(found).__name__))
    return list(found)


def _import() -> tuple[Any, Any]:
    """Import CVXPY and the layer of cvxpylayers; the error names the extra that installs them."""
    try:
        import cvxpy as cp
    except ImportError:
        raise MissingExtraError("cvxpy", "cvx") from None
    try:
        from cvxpylayers.torch import CvxpyLayer
    except ImportError:
        raise MissingExtraError("cvxpylayers", "cvx") from None
    return cp, CvxpyLayer
