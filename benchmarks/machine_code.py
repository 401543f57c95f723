"""Whether two revisions give the same machine code: the PTX of the kernels of few rows, compared without a GPU.

``python -m benchmarks.machine_code REVISION`` compiles the closed form and the nearest point of this tree and of
another revision (a commit, or the folder of a checkout), each in a process of its own, for an H200. Where the code is
the same, figures measured at one hold at the other. All of it takes many minutes; ``--shapes 2x2,5x10`` takes some.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.processes import ROOT, archived

SHAPES = ((1, 1), (1, 2), (2, 2), (3, 3), (4, 4), (3, 6), (5, 10), (8, 8), (8, 16), (6, 17), (1, 64), (4, 64), (8, 256))
"""Rows and outputs of the closed form; of the nearest point those with at most `NEAREST` numbers, up to 4 rows."""
NEAREST = 18
BOUNDS = ((2, 2), (0, 1), (1, 0))
"""Lower and upper: absent 0, shared 1, per sample 2."""
SAMPLES = 4096


class Driver:
    """What Triton asks of a driver when it compiles: for which device."""

    def get_current_device(self) -> int:
        """The only one."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """None is launched on."""
        return device

    def get_current_target(self) -> Any:
        """An H200."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


def kernels(m: int, n: int) -> Iterator[tuple[str, Any, torch.dtype]]:
    """The name, the launcher and the dtype of every kernel that may serve a shape."""
    from hardnet.kernels.gpu import affine_kernels, nearest

    passes = {"forward": (False, False), "backward": (True, False), "backward with A": (True, True)}
    for dtype, each, bounds in itertools.product((torch.float32, torch.float64), (True, False), BOUNDS):
        named = f"{m}x{n}, {dtype}, {'A(x)' if each else 'shared A'}, bounds {bounds}"
        for name, (backward, matrix) in passes.items():
            launcher = affine_kernels.launcher(m, n, dtype, backward, each, *bounds, matrix)[0]
            yield f"closed form {name}, {named}", launcher, dtype
        for kernel in nearest.Kernel if m <= 4 and m * n <= NEAREST else ():
            yield f"nearest point {kernel.name}, {named}", nearest.launcher(kernel, m, n, each, *bounds)[0], dtype


def machine_code(launcher: Any, dtype: torch.dtype) -> str:
    """The PTX of a kernel for memory of this dtype, aligned, and `SAMPLES` samples; needs `Driver`."""
    names = launcher.kernel.arg_names
    tensors = [torch.int8 if name == "status" else dtype for name in names[: names.index("batch")]]
    number = 1 if "tangent" in names else 1e-7
    compiled = launcher.kernel.warmup(*tensors, SAMPLES, number, grid=(1,), **launcher.constants)
    return compiled.asm["ptx"]


def emit(shapes: Iterable[Iterable[int]]) -> dict[str, str]:
    """The PTX of every kernel of these shapes, by name."""
    from triton.runtime import driver

    active: Any = Driver()
    driver.set_active(active)
    return {name: machine_code(launcher, dtype) for m, n in shapes for name, launcher, dtype in kernels(m, n)}


def emitted(sources: Path, shapes: str) -> dict[str, str]:
    """`emit` in a process that imports the hardnet of these sources."""
    environment = {"PYTHONPATH": f"{sources}{os.pathsep}{ROOT}", "TRITON_DISABLE_LINE_INFO": "1"}
    command = [sys.executable, "-m", "benchmarks.machine_code", "--emit", "--shapes", shapes]
    found = subprocess.run(command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, check=True)
    return json.loads(found.stdout)


def differing(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """The kernels whose code differs, or that only one side has."""
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def main(arguments: list[str] | None = None) -> int:
    """Compare, print what differs, and say so by the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.machine_code", description=__doc__)
    parser.add_argument("revision", nargs="?", default="HEAD", help="commit or folder to compare this tree with")
    parser.add_argument("--shapes", default=",".join(f"{m}x{n}" for m, n in SHAPES), help="rows x outputs, ...")
    parser.add_argument("--emit", action="store_true", help="print the code of this tree as JSON")
    asked = parser.parse_args(arguments)
    if asked.emit:
        print(json.dumps(emit(map(int, shape.split("x")) for shape in asked.shapes.split(","))))
        return 0
    commit, sources = archived(asked.revision)
    ours, theirs = emitted(ROOT / "src", asked.shapes), emitted(sources, asked.shapes)
    found = differing(ours, theirs)
    print(*found, f"{len(ours)} kernels, {len(found)} differ from {commit}", sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
