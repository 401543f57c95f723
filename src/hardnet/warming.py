"""Compile the CPU kernels ahead of time by solving every kind of problem that has its own kernel.

Kernels are compiled in parallel, one process per core; all problems of a kernel go to the same process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import NamedTuple

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


class Problem(NamedTuple):
    """The solving function, the shape of A, and the module of `hardnet.kernels.cpu` compiled; "" for plain torch."""

    solve: Callable[..., Tensor]
    shape: tuple[int, ...]
    kernel: str


PROBLEMS: dict[str, Problem] = {
    "closed form, small shared A": Problem(enforce_affine, (2, 3), "affine_few"),
    "closed form, large shared A": Problem(enforce_affine, (40, 60), "affine_shared"),
    "closed form, few rows per sample": Problem(enforce_affine, (4, 2, 3), "affine_few"),
    "closed form, many rows per sample": Problem(enforce_affine, (4, 12, 20), ""),
    "nearest point, shared A": Problem(project_affine, (2, 3), "nearest_few"),
    "nearest point, few rows per sample": Problem(project_affine, (4, 2, 3), "nearest_few"),
    "nearest point, many rows per sample": Problem(project_affine, (4, 12, 8), "projection"),
    "nearest point, one row in a box": Problem(_in_a_box, (1, 8), "nearest_box"),
    "nearest point, few rows in a box per sample": Problem(_in_a_box, (4, 2, 8), "polyhedron"),
    "nearest point, one row in a ball": Problem(_in_a_ball, (1, 3), "conic"),
    "nearest point, nonlinear rows": Problem(_curved, (2, 3), "active_set"),
}
SLOWEST_FIRST = (
    "conic",
    "nearest_few",
    "affine_few",
    "polyhedron",
    "affine_shared",
    "active_set",
    "projection",
    "nearest_box",
    "",
)
"""The kernels by decreasing compile time, so that no core is left with a long one at the end."""


def warm() -> Iterator[tuple[str, float]]:
    """Solve each problem forward and backward in each dtype; yield its name and seconds as it finishes.

    Yields nothing on a machine without numba.
    """
    if not HAS_NUMBA:
        return
    kernels = {problem.kernel for problem in PROBLEMS.values()}
    groups = [
        {name: problem for name, problem in PROBLEMS.items() if problem.kernel == kernel}
        for kernel in sorted(kernels, key=SLOWEST_FIRST.index)
    ]
    fresh = get_context("spawn")  # a fork would inherit torch's threads
    with ProcessPoolExecutor(min(_cores(), len(groups)), fresh, _work_alone) as pool:
        for done in as_completed([pool.submit(_compile, group) for group in groups]):
            yield from done.result().items()


def _cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work_alone() -> None:
    """Use one thread in this process, and do not announce compilation, since the user asked for it."""
    from hardnet.kernels.cpu import compiling

    compiling.announces = False
    torch.set_num_threads(1)


def _compile(group: dict[str, Problem]) -> dict[str, float]:
    """Seconds of each problem, in each dtype."""
    dtypes = {"float32": torch.float32, "float64": torch.float64}
    return {
        f"{name}, {spelled}": _seconds(problem.solve, problem.shape, dtype)
        for name, problem in group.items()
        for spelled, dtype in dtypes.items()
    }


def _seconds(solve: Callable[..., Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> float:
    """Seconds of a forward and backward and a forward pass on random rows; feasible, since 0 satisfies them."""
    stream = torch.Generator().manual_seed(0)
    A = torch.randn(shape, generator=stream, dtype=dtype).requires_grad_()
    raw = torch.randn(4, shape[-1], generator=stream, dtype=dtype).requires_grad_()
    upper = torch.full(shape[-2:-1], 0.1, dtype=dtype, requires_grad=True)
    started = time.perf_counter()
    solve(raw, A, -upper, upper).sum().backward()
    with torch.no_grad():
        solve(raw, A, -upper, upper)
    return time.perf_counter() - started
