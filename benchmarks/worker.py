"""One process of a comparison: builds tools and times their calls, as requested by lines of JSON.

The PYTHONPATH with which `compare` starts it determines which hardnet it imports; the clock, the problems and the
checks are those of this tree, whatever the revision.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.peers import Run
from benchmarks.problems import Case, Size, errors, problem
from benchmarks.tools import TASKS

CLOCK = runpy.run_path(str(Path(__file__).parents[1] / "lab" / "src" / "hardnet_lab" / "experiments" / "timing.py"))
FAILURES = (ArithmeticError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions of a tool that are recorded as its result and do not end the run."""


class Worker:
    """The tools that were built in this process."""

    def __init__(self) -> None:
        self.runs: dict[str, tuple[Case, Run, Callable[..., Any]]] = {}

    def build(self, task: str, tool: str, size: list[Any], count: int, device: str, dtype: str, seed: int) -> dict:
        """Prepare a tool for the first samples of a problem; return the time of the second call of each pass."""
        case = problem(Size(*size), device, getattr(torch, dtype), seed).take(count)
        run = TASKS[task].tools[tool].peer.build(case)
        measure = CLOCK["measure_cuda" if device.startswith("cuda") else "measure_cpu"]
        self.runs[tool] = case, run, measure
        passes = ["forward", *(["both"] if run.both else [])]
        return {"ms": {key: self.time(tool, key, 2)["ms"][-1] for key in passes}}

    def time(self, tool: str, key: str, calls: int) -> dict:
        """Milliseconds of some calls in a row; the first one warms the caches."""
        _, run, measure = self.runs[tool]
        work = run.forward if key == "forward" else run.both
        return {"ms": [measure(work)[0] for _ in range(calls)]}

    def reference(self, task: str, size: list[Any], count: int, device: str, seed: int, path: str) -> dict:
        """Write y and the gradients of a task's reference in float64, with which the tools are compared."""
        case = problem(Size(*size), device, torch.float64, seed).take(count)
        y, grads = found(TASKS[task].tools[TASKS[task].reference].peer.build(case))
        save_file({"y": y, **grads}, path)
        return {}

    def judge(self, tool: str, path: str) -> dict:
        """Violation, distance and gradient error of a tool relative to the reference."""
        case = self.runs[tool][0]
        right = {name: part.to(case.raw.device) for name, part in load_file(path).items()}
        return errors(case, found(self.runs[tool][1]), (right.pop("y"), right))

    def drop(self) -> dict:
        """Forget the tools of a size."""
        self.runs.clear()
        return {}


def found(run: Run) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The output y of a tool, and its gradients if it has any."""
    y, grads = run.both() if run.both else (run.forward(), {})
    return y.detach().contiguous(), {name: grad.contiguous() for name, grad in grads.items()}


def answer(worker: Worker, do: str, **arguments: Any) -> dict[str, Any]:
    """The result of a request, or the error that stopped it."""
    try:
        return getattr(worker, do)(**arguments)
    except FAILURES as error:
        return {"error": f"{type(error).__name__}: {str(error)[:200]}"}


def main() -> None:
    """Answer until the input ends; what tools print goes to stderr, so that it does not mix with the answers."""
    with os.fdopen(os.dup(1), "w") as channel:
        os.dup2(2, 1)
        worker = Worker()
        for line in sys.stdin:
            channel.write(json.dumps(answer(worker, **json.loads(line))) + "\n")
            channel.flush()


if __name__ == "__main__":
    main()
