"""The nearest point in relative entropy of a positive affine set: the limit of Sinkhorn's sweeps, exact."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import NOT_FINITE, ShapeError, sentence
from hardnet.functional.derivatives import attach
from hardnet.functional.nearest import solve_rows
from hardnet.functional.samples import reject
from hardnet.kernels.cpu.launch import HAS_NUMBA, launch
from hardnet.modes import full_precision, may_look, narrow, outside_compiler, plain, refuse_transforms
from hardnet.nearest.policy import OnInfeasible, OnInvalid, OnUnsolved, Policy, answer, answered
from hardnet.products import times
from hardnet.shapes import check_bound, check_matrix
from hardnet.solvers.entropic import cotangents, multipliers, outputs, solve_entropic
from hardnet.solvers.solution import Solution, Status
from hardnet.structure import BoxedRows

STEPS = "entropic points, whose steps end by a look at their values"
"""What a transform is refused for."""
MOST_NEWTON_STEPS = 200
"""The most Newton steps."""
HOLDS = 64
"""Roundings, relative to the terms of a row, by which the sums of a solved sample may be off."""


@full_precision
def project_entropic(
    raw: Tensor,
    A: Tensor,
    b: Tensor | float,
    *,
    on_infeasible: OnInfeasible = "auto",
    on_unsolved: OnUnsolved = "auto",
    on_invalid: OnInvalid = "raise",
    names: Any = None,
) -> Tensor:
    """``argmin sum_j y_j log(y_j / exp(raw_j)) - y_j  s.t.  A y = b,  y >= 0``: ``y = exp(raw + A'dual)``.

    raw are logits. For the sums of the rows and columns of a matrix this is what Sinkhorn's sweeps converge to. It
    works in float64 and in the log domain: small outputs and small derivatives have as many digits as large ones. An
    output is zero only below 1e-299, and where a row of entries >= 0 has the sum zero.

    Args:
        raw: ``(*batch, n)``.
        A: ``(k, n)`` or ``(*batch, k, n)``; rows may be dependent.
        b: ``(k,)``, ``(*batch, k)`` or a number for all rows.
        on_infeasible: What to do with an empty set, as in `project_affine`; there is no ``"nearest"``.
        on_unsolved: What to do with a sample that is not solved, such as one whose set has no positive point.
        on_invalid: What to do with a number that is not finite: raise an error, or NaN for that sample alone.
        names: The names of the rows for errors, as in `hardnet.nearest.policy.Policy`.
    """
    policy = Policy(on_infeasible, on_unsolved, on_invalid, names=names).checked()
    return _project(raw, A, b, policy)


@outside_compiler
def _project(raw: Tensor, A: Tensor, b: Tensor | float, policy: Policy) -> Tensor:
    """The same, with the options as one record."""
    refuse_transforms(STEPS)
    flat, rows, sums, batch = _flattened(raw, A, b)
    score, found = _solved(flat, rows, sums, batch)
    policy = policy.resolved(may_look(raw))
    if policy.on_invalid == "raise" and may_look(raw):
        reject(~raw.isfinite().all(-1), NOT_FINITE, "raw")
        reject(~A.isfinite().flatten(-2).all(-1), NOT_FINITE, "A")
        reject(~torch.as_tensor(b).isfinite().all(-1), NOT_FINITE, "b")
    known = lambda *_: ((outputs(score),), (score,))
    y = attach(known, _through, (flat, rows, sums), "an entropic nearest point")
    whole = Solution(*(part.reshape((*batch, *part.shape[1:])) for part in (y, *found[1:])))
    given = answer if policy.on_infeasible == "raise" or policy.on_unsolved == "raise" else answered
    return narrow(given(whole, policy), raw.dtype, policy.on_invalid)


@full_precision
@torch.no_grad()
def solve_entropic_rows(raw: Tensor, A: Tensor, b: Tensor | float) -> Solution:
    """`project_entropic` with its dual ``(*batch, k)``, ``log y = raw + A'dual``, status, steps and residual."""
    refuse_transforms(STEPS)
    flat, rows, sums, batch = _flattened(raw, A, b)
    score, found = _solved(flat, rows, sums, batch)
    done = (found.status == int(Status.SOLVED)).unsqueeze(-1)
    dual = torch.where(done, multipliers(score, flat, rows, sums), found.dual)
    dual = dual / _unit(A).squeeze(-1).expand(*batch, -1).reshape(dual.shape)
    y = answered(found).to(raw.dtype)
    whole = (y, dual.to(raw.dtype), *found[2:])
    return Solution(*(part.reshape((*batch, *part.shape[1:])) for part in whole))


def _flattened(raw: Tensor, A: Tensor, b: Tensor | float) -> tuple[Tensor, Tensor, Tensor, torch.Size]:
    """Raw ``(B, n)``, A ``(B, k, n)`` with largest entries one, and b ``(B, k)`` in float64, and the batch."""
    batch, k = check_matrix(raw, A), A.shape[-2]
    sums = check_bound("b", b, raw, k)
    assert sums is not None
    batch = torch.broadcast_shapes(batch, sums.shape[:-1])
    if k == 0:
        raise ShapeError(sentence("A", "at least one row", tuple(A.shape)))
    scale = _unit(A)
    rows, right = A.double() / scale, sums.double() / scale.squeeze(-1)
    flat = raw.double().expand(*batch, -1).reshape(-1, raw.shape[-1])
    B = len(flat)
    shared = lambda part, core: (
        part.unsqueeze(0)
        if part.dim() == core
        else part.expand(*batch, *part.shape[part.dim() - core :]).reshape(B, *part.shape[-core:])
    )
    return flat, shared(rows, 2), shared(right, 1), batch


def _unit(A: Tensor) -> Tensor:
    """The largest coefficient of each row, ``(*batch, k, 1)``; 1 for a row of zeros."""
    largest = A.detach().abs().amax(-1, keepdim=True).double()
    return torch.where((largest > 0) & largest.isfinite(), largest, 1.0)


def _solved(raw: Tensor, A: Tensor, b: Tensor, batch: torch.Size) -> tuple[Tensor, Solution]:
    """``log y``, and the solution with y, its status, steps and residual; the proof of an empty set as its dual."""
    with torch.no_grad():
        raw, A, b = raw.detach(), A.detach(), b.detach()
        parts = [(part, part.isfinite().flatten(1).all(-1)) for part in (raw, A, b)]
        sound = parts[0][1] & parts[1][1] & parts[2][1]
        clean = [torch.where(good.reshape(-1, *[1] * (part.dim() - 1)), part, 0.0) for part, good in parts]
        score, solved, steps = _newton(*clean)
        y = outputs(score)
        size = times(clean[1].abs(), y) + clean[2].abs()
        off = (times(clean[1], y) - clean[2]).abs() / torch.where(size > 0, size, 1.0)
        residual = off.amax(-1)
        solved = solved & (residual <= HOLDS * torch.finfo(y.dtype).eps)
        status = torch.where(solved, int(Status.SOLVED), int(Status.NOT_CONVERGED))
        status = torch.where(sound, status, int(Status.INVALID)).to(torch.int8)
        dual = raw.new_zeros(len(raw), b.shape[-1])
        left = (status == int(Status.NOT_CONVERGED)).nonzero().squeeze(-1)
        if len(left):  # the nearest point of the same rows knows whether there is any
            lower = raw.new_zeros(raw.shape[-1])
            own, sums = (part if len(part) == 1 else part[left] for part in (A, b))
            own, sums = own.expand(len(left), -1, -1), sums.expand(len(left), -1)
            proof = solve_rows(raw[left].clamp(-1, 1), BoxedRows(own, sums, sums, lower))
            empty = proof.status == int(Status.INFEASIBLE)
            status[left[empty]] = int(Status.INFEASIBLE)
            dual[left] = torch.where(empty.unsqueeze(-1), proof.dual[:, : b.shape[-1]], 0.0)
    return score, Solution(y, dual, status, steps, residual)


def _newton(raw: Tensor, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``log y``, which samples are solved, and their steps, by compiled code where there is some."""
    if not (HAS_NUMBA and raw.is_cpu and raw.numel() and plain(raw, A, b)):
        return solve_entropic(raw, A, b, MOST_NEWTON_STEPS)
    score, ended = torch.empty_like(raw), raw.new_empty(len(raw), 2)
    shape = torch.Size((len(raw), *A.shape[1:]))
    launch(_kernel(0), [score, ended], [raw, A, raw.new_tensor([MOST_NEWTON_STEPS])], (b,), shape, len(A))
    return score, ended[:, 0] > 0, ended[:, 1].long()


def _through(grad: Tensor, saved: Any, inputs: Any, needed: Any) -> tuple[Tensor | None, ...]:
    """``u`` to raw, ``dual u' - w y'`` to A, and ``w`` to b."""
    (score,), (raw, A, b) = saved, inputs
    gradient = torch.where(score.isnan() | ~grad.isfinite(), 0.0, grad)
    if HAS_NUMBA and raw.is_cpu and raw.numel() and plain(raw, gradient, A, b, score):
        u, w = torch.empty_like(raw), raw.new_empty(len(raw), b.shape[-1])
        launch(_kernel(1), [u, w], [gradient, score, A], (b,), torch.Size((len(raw), *A.shape[1:])), len(A))
    else:
        u, w = cotangents(gradient, score, A, b)
    if not needed[1]:
        return u, None, w
    dual = multipliers(score, raw, A, b)
    return u, dual.unsqueeze(-1) * u.unsqueeze(-2) - w.unsqueeze(-1) * outputs(score).unsqueeze(-2), w


@cache
def _kernel(direction: int) -> Any:
    """The kernel of one direction; the first call imports numba and compiles."""
    from hardnet.kernels.cpu import compiling, entropic

    return compiling.compile_addresses(entropic.ENTRIES[direction], torch.float64)
