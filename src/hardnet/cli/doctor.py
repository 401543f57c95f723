"""``hardnet doctor``: versions, extras, active kernels, and the time that one call of each takes."""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any, NamedTuple

import torch
from torch import Tensor

import hardnet
from hardnet.functional import enforce_affine, project_affine, project_box_rows, project_nonlinear
from hardnet.functional.conic import project_intersection
from hardnet.kernels.cpu.launch import HAS_NUMBA
from hardnet.kernels.gpu.affine import HAS_TRITON
from hardnet.solvers import Intervals, SecondOrder
from hardnet.warming import compiled


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
    """The solving function, the shape of A, and its kernel for a CPU; "" for plain torch."""

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
    "nearest point, one row in a ball": Problem(_in_a_ball, (1, 3), "conic_entry"),
    "nearest point, nonlinear rows": Problem(_curved, (2, 3), "nonlinear_step"),
}

SAMPLES = 1000
"""Samples in a timed call."""
CALLS, SECONDS = 11, 0.3
"""The most timed calls, and the time after which no further one begins."""


def examine(timing: bool = True) -> dict[str, Any]:
    """All findings as plain data; where a kernel is not compiled yet, the time is torch's."""
    found: dict[str, Any] = {"versions": _versions(), "machine": _machine(), "extras": _extras(), "kernels": _kernels()}
    if timing:
        found["milliseconds"] = _milliseconds()
    return found


def in_words(found: dict[str, Any]) -> str:
    """The findings as a page of at most 80 columns."""
    lines = ["  ".join(f"{name} {value}" for name, value in found["versions"].items())]
    lines += [f"{name}: {value}" for name, value in found["machine"].items()] + ["", "extras"]
    for extra, packages in found["extras"].items():
        missing = [name for name, version in packages.items() if version is None]
        state = f"missing {', '.join(missing)}: pip install 'hardnet[{extra}]'" if missing else "installed"
        lines.append(f"  {extra:12} {state}")
    lines += ["", "kernels", *(f"  {name:12} {state}" for name, state in found["kernels"].items())]
    if "milliseconds" in found:
        lines += ["", f"{'one call on ' + str(SAMPLES) + ' samples, float32':48} forward  + backward (ms)"]
        lines += [
            f"  {name:46} {times['forward']:7.3f}  {times['backward']:7.3f}"
            for name, times in found["milliseconds"].items()
        ]
    return "\n".join(lines)


def _versions() -> dict[str, str]:
    return {"hardnet": hardnet.__version__, "torch": torch.__version__, "Python": platform.python_version()}


def _machine() -> dict[str, str]:
    """The CPU and the GPUs that torch sees."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    cores = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads of torch"
    return {"CPU": f"{platform.machine()}, {cores}", "GPU": ", ".join(gpus) or "none"}


def _extras() -> dict[str, dict[str, str | None]]:
    """The packages of each extra, as declared by the installed package, with their versions; None where missing."""
    extras: dict[str, dict[str, str | None]] = {}
    for line in metadata.requires("hardnet") or []:
        match = re.match(r"([\w.-]+).*;.*extra == ['\"]([\w-]+)['\"]", line)
        if match is not None and match[1] != "hardnet":
            extras.setdefault(match[2], {})[match[1]] = _version(match[1])
    return extras


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _kernels() -> dict[str, str]:
    """Which compiled code is active here, and why the rest is not."""
    if HAS_NUMBA:
        done = compiled()
        done = compiled().values()
        cpu = f"active: numba {_version('numba')}; {sum(done)} of {len(done)} compiled"
        cpu += "" if all(done) else ", torch computes for the rest: hardnet warmup"
    else:
        off = _version("numba") is not None
        cpu = "off by HARDNET_NUMBA=0; torch computes" if off else "off: torch computes; pip install 'hardnet[cpu]'"
    if not torch.cuda.is_available():
        gpu = "off: torch sees no CUDA device"
    else:
        gpu = f"active: triton {_version('triton')}" if HAS_TRITON else "off: triton is not installed; torch computes"
    daqp = _version("daqp")
    dense = f"active: daqp {daqp}" if daqp else "off: torch computes; pip install 'hardnet[qp]'"
    return {"CPU": cpu, "GPU": gpu, "many rows": dense}


def _milliseconds() -> dict[str, dict[str, float]]:
    """Times of one forward pass, and of one forward and backward pass, for every problem."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {name: _time(problem.solve, problem.shape, device) for name, problem in PROBLEMS.items()}


def _time(solve: Callable[..., Tensor], shape: tuple[int, ...], device: str) -> dict[str, float]:
    """Median milliseconds on random rows for which 0 is feasible."""
    stream = torch.Generator().manual_seed(0)
    batch = shape[:-2] and (SAMPLES,)
    A = torch.randn(*batch, *shape[-2:], generator=stream).to(device).requires_grad_()
    raw = torch.randn(SAMPLES, shape[-1], generator=stream).to(device).requires_grad_()
    upper = torch.full(shape[-2:-1], 0.1, device=device)

    def forward() -> Tensor:
        with torch.no_grad():
            return solve(raw, A, -upper, upper)

    def backward() -> None:
        torch.autograd.grad(solve(raw, A, -upper, upper).sum(), (raw, A))

    return {"forward": _median(forward), "backward": _median(backward)}


def _median(work: Callable[[], object]) -> float:
    """Median milliseconds of some calls after one that warms up, fewer where they are slow."""
    times, end = [], time.perf_counter() + SECONDS
    while len(times) < 3 or (len(times) <= CALLS and time.perf_counter() < end):
        began = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times[1:])
