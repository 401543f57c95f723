"""Convex programs solved by Clarabel, one instance at a time; only for ``--references``."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import MissingExtraError
from hardnet_lab.experiments.optimal import Optimum
from hardnet_lab.problems.suites import SuitePrograms

TOLERANCE = 1e-11
"""The solver's tolerance for the gap and the rows."""


def solve_convex(problem: SuitePrograms, x: Tensor) -> Optimum:
    """``min 1/2 y'Qy + p'y  s.t.  C y = x, A y <= b`` for every row of x."""
    clarabel, sparse = _packages()
    problem, x, began = problem.to("cpu"), x.cpu(), time.process_time()
    rows = sparse.csc_matrix(torch.cat([problem.C, problem.A]).numpy())
    Q, p = sparse.csc_matrix(sparse.diags_array(problem.Q.numpy())), problem.p.numpy()
    cones = [clarabel.ZeroConeT(problem.input_dim), clarabel.NonnegativeConeT(len(problem.b))]
    bounds = torch.cat([x, problem.b.expand(len(x), -1)], 1).numpy()
    found = [clarabel.DefaultSolver(Q, p, rows, bound, cones, _settings(clarabel)).solve() for bound in bounds]
    points = torch.tensor([answer.x for answer in found], dtype=x.dtype)
    solved = torch.tensor([answer.status == clarabel.SolverStatus.Solved for answer in found])
    value = problem.value(points, x).where(solved, torch.inf)
    return Optimum(value, points, 1e3 * (time.process_time() - began) / len(x), "Clarabel")


def _packages() -> tuple[Any, Any]:
    """Clarabel, and scipy's sparse matrices, which it takes."""
    try:
        import clarabel
        from scipy import sparse
    except ImportError as error:
        raise MissingExtraError("clarabel", "offline") from error
    return clarabel, sparse


def _settings(clarabel: Any) -> Any:
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = TOLERANCE
    return settings
