"""Compile the CPU kernels ahead: every shape of problem that has a kernel of its own, solved once each way.

Called by `hardnet.cli.machine` and `hardnet.experiments.doctor`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from hardnet.functional import enforce_affine, project_affine, project_box_rows, project_nonlinear
from hardnet.functional.conic import project_intersection
from hardnet.kernels.cpu.launch import HAS_NUMBA
from hardnet.solvers import Intervals, SecondOrder


def _in_a_box(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The nearest point in the unit box that satisfies the rows."""
    return project_box_rows(raw, A, lower, upper, -torch.ones_like(raw[0]), torch.ones_like(raw[0]))


def _curved(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The nearest point that satisfies the rows of ``A y + |y|^2``."""
    rows = lambda y, x: y @ A.to(y).mT + y.square().sum(-1, keepdim=True)
    return project_nonlinear(raw, rows, lower=lower.double(), upper=upper.double())


def _in_a_ball(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The nearest point in the unit ball that satisfies the rows."""
    eye = torch.eye(raw.shape[-1], dtype=raw.dtype)
    ball = SecondOrder(eye, torch.zeros_like(eye[0]), torch.zeros_like(eye[0]), torch.ones_like(eye[0, 0]))
    return project_intersection(raw, [Intervals(A, lower, upper), ball])


PROBLEMS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "closed form, small shared A": (enforce_affine, (2, 3)),
    "closed form, large shared A": (enforce_affine, (40, 60)),
    "closed form, few rows per sample": (enforce_affine, (4, 2, 3)),
    "closed form, many rows per sample": (enforce_affine, (4, 12, 20)),
    "nearest point, shared A": (project_affine, (2, 3)),
    "nearest point, few rows per sample": (project_affine, (4, 2, 3)),
    "nearest point, many rows per sample": (project_affine, (4, 12, 8)),
    "nearest point, one row in a box": (_in_a_box, (1, 8)),
    "nearest point, few rows in a box per sample": (_in_a_box, (4, 2, 8)),
    "nearest point, one row in a ball": (_in_a_ball, (1, 3)),
    "nearest point, nonlinear rows": (_curved, (2, 3)),
}
"""What runs it, and the shape of A: one for each kernel."""


def warm() -> dict[str, float]:
    """Solve each problem once, forward and backward, in each dtype; the seconds that each took.

    Nothing where nothing is compiled on this machine.
    """
    if not HAS_NUMBA:
        return {}
    dtypes = {"float32": torch.float32, "float64": torch.float64}
    return {
        f"{name}, {spelled}": _seconds(solve, shape, dtype)
        for name, (solve, shape) in PROBLEMS.items()
        for spelled, dtype in dtypes.items()
    }


def _seconds(solve: Callable[..., Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> float:
    """Seconds of one forward and backward pass over random rows; 0 is inside, so that none contradict each other."""
    stream = torch.Generator().manual_seed(0)
    A = torch.randn(shape, generator=stream, dtype=dtype).requires_grad_()
    raw = torch.randn(4, shape[-1], generator=stream, dtype=dtype).requires_grad_()
    upper = torch.full(shape[-2:-1], 0.1, dtype=dtype, requires_grad=True)
    started = time.perf_counter()
    solve(raw, A, -upper, upper).sum().backward()
    with torch.no_grad():
        solve(raw, A, -upper, upper)
    return time.perf_counter() - started
