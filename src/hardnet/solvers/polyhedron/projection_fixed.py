"""The projection onto ``lower <= A y <= upper`` without reading values: all samples run the same program.

Prepared rows are solved in batches, `hardnet.solvers.polyhedron.shared_rows`, others by a fixed number of pivots.
Samples that are not solved by that are NOT_CONVERGED.
"""

from __future__ import annotations

import torch
from torch import Tensor

import hardnet.kernels.gpu.affine as gpu
from hardnet.kernels.limits import CLOSE
from hardnet.products import times_aligned
from hardnet.rows import Batch
from hardnet.solvers.polyhedron.fixed import fixed_pivots, steps_for
from hardnet.solvers.polyhedron.pivoting import KERNEL_ROWS, by_pivoting
from hardnet.solvers.polyhedron.problem import INSIDE, SOLVED, Problem, kkt_residual, standard_form
from hardnet.solvers.polyhedron.projection_steps import side_of
from hardnet.solvers.polyhedron.shared_factor import SharedRows
from hardnet.solvers.polyhedron.shared_rows import answer as shared_answer
from hardnet.solvers.solution import Outcome, Status


def fixed_program(rows: Batch, shared: SharedRows | None, rounding: float | None = None) -> Outcome:
    """Solve all samples by the same program: shared factors, a GPU kernel if the rows fit, or a fixed number of pivots.

    If a row is violated by more than a certificate allows for this machine epsilon, `rounding`, the sample's residual
    is infinite, however small the violation is relative to a raw far away.
    """
    inside, problem = _split(standard_form(*rows[:4]))  # pyright: ignore[reportArgumentType]
    m, n = problem.size
    y, dual, steps = _answer(problem, shared)
    product = times_aligned(problem.A, y)
    residual = kkt_residual(problem, y, dual, product)
    if rounding is not None:
        residual = torch.where(problem.certified(y, rounding, product), residual, torch.inf)
    status = torch.where(inside | (residual <= SOLVED), int(Status.SOLVED), int(Status.NOT_CONVERGED)).to(torch.int8)
    keep = inside.unsqueeze(-1)
    dual = torch.where(keep, 0.0, dual)
    side = side_of(problem, dual)
    return Outcome(y[:, :n], dual[:, :m], side[:, :m], status, torch.where(inside, 0, steps.clamp_min(1)), residual)


def _split(problem: Problem) -> tuple[Tensor, Problem]:
    """Which samples are inside ``(B,)``, and the problem, whose slack for samples near the set is that of `INSIDE`."""
    excess, slack = problem.violation(problem.product), INSIDE * problem.size_at(problem.raw)
    close = (excess <= CLOSE * problem.slack).all(-1, keepdim=True)
    return (excess <= slack).all(-1), problem._replace(slack=torch.where(close, slack, problem.slack))


def _answer(problem: Problem, shared: SharedRows | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Y, dual and steps of every sample; after pivots in plain operations y is corrected twice on its active rows."""
    m, n = problem.size
    if shared is not None:
        y, dual, _ = shared_answer(problem, shared, look=False)
        return y, dual, torch.ones_like(y[:, 0], dtype=torch.long)
    if problem.raw.device.type == "cuda" and m <= KERNEL_ROWS and gpu.HAS_TRITON:
        return by_pivoting(problem)[:3]
    unit = problem.of_unit_rows()
    steps = steps_for(m, n)
    found = fixed_pivots(torch.bmm(unit.A, unit.A.mT), unit.product, unit.lower, unit.upper, unit.slack, steps)
    bound = torch.where(found.side > 0, unit.upper, unit.lower)
    y, dual = unit.raw, torch.zeros_like(unit.lower)
    for _ in range(3):
        step = times_aligned(found.inverse, torch.where(found.side != 0, times_aligned(unit.A, y) - bound, 0.0))
        y, dual = y - times_aligned(unit.A.mT, step), dual + step
    return y, dual / problem.norm, torch.full_like(y[:, 0], steps, dtype=torch.long)
