"""Compile the CPU kernels ahead of time, each in a process of its own: ``python -m hardnet.warming KERNEL DTYPE``.

`kernels.cpu.ready` starts such a process too, for a kernel that a call asks for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import torch

from hardnet.errors import HardNetError
from hardnet.files import claimed
from hardnet.kernels.cpu.launch import HAS_NUMBA
from hardnet.kernels.cpu.ready import Kernel, cached, lock_of, start

BOTH = ("float32", "float64")
KERNELS: dict[str, tuple[str, ...]] = {
    "conic_entry": ("float64",),
    "nearest_few": BOTH,
    "projection": ("float64",),
    "polyhedron": ("float64",),
    "affine_few": BOTH,
    "nonlinear_step": ("float64",),
    "affine_shared": BOTH,
    "nearest_box": ("float64",),
    "bands": ("float64",),
    "entropic": ("float64",),
    "pooling": ("float64",),
}
"""The dtypes of every kernel; those that take longest first, so that no core is left with one at the end."""
NOTHING = "nothing to compile: torch computes, for numba is not installed or HARDNET_NUMBA=0"


def warmup(*, quiet: bool = False) -> dict[str, float]:
    """Compile all CPU kernels ahead of time, on all cores, so that no call computes without them or waits for them.

    Args:
        quiet: Whether to print nothing.

    Returns:
        Seconds of each kernel and dtype, 0 for those in the cache; nothing where numba is missing or turned off.
    """
    found = {}
    for name, seconds in warm():
        found[name] = seconds
        if not quiet:
            print(f"{seconds:6.1f} s  {name}", flush=True)
    if not quiet:
        print("ready" if found else NOTHING)
    return found


def warm() -> Iterator[tuple[str, float]]:
    """Yield each kernel and dtype with its seconds as it becomes ready, each compiled by a process of its own.

    Yields nothing on a machine without numba.
    """
    todo = _keys()
    working: dict[Kernel, tuple[subprocess.Popen[bytes], float]] = {}
    try:
        while todo or working:
            for key in todo[:] if len(working) < _cores() else ():
                if cached(key):
                    todo.remove(key)
                    yield _name(key), 0.0
                elif len(working) < _cores():
                    with claimed(lock_of(key)) as descriptor:
                        if descriptor is not None:
                            todo.remove(key)
                            working[key] = start(key, descriptor, subprocess.PIPE), time.perf_counter()
            time.sleep(0.1)
            for key, (process, began) in list(working.items()):
                if process.poll() is not None:
                    del working[key]
                    _refuse_failure(key, process)
                    yield _name(key), time.perf_counter() - began
    except OSError as error:
        raise HardNetError(f"kernels cannot be compiled ahead: {error}") from error
    finally:
        for process, _ in working.values():
            process.terminate()


def compiled() -> dict[str, bool]:
    """Which kernels and dtypes are in numba's cache; nothing where numba is missing or turned off."""
    return {_name(key): bool(cached(key)) for key in _keys()}


def _keys() -> list[Kernel]:
    return [(kernel, _dtype(spelled)) for kernel, dtypes in KERNELS.items() for spelled in dtypes if HAS_NUMBA]


def _refuse_failure(key: Kernel, process: subprocess.Popen[bytes]) -> None:
    """Raise what a process that could not compile says last."""
    said = process.communicate()[1].decode(errors="replace").strip()
    if process.returncode:
        raise HardNetError(
            f"{_name(key)}: could not be compiled; {said.splitlines()[-1] if said else process.returncode}"
        )


def _name(key: Kernel) -> str:
    return f"{key[0]}, {str(key[1]).removeprefix('torch.')}"


def _dtype(spelled: str) -> torch.dtype:
    return getattr(torch, spelled)


def _cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compile_one(kernel: str, spelled: str) -> None:
    """Compile one kernel in this process, which inherited the descriptor of its lock, and yields to other programs."""
    from hardnet.kernels.cpu import compiling

    if hasattr(os, "nice"):
        os.nice(10)
    compiling.announces = False
    for entry in compiling.entries_of(kernel):
        compiling.compile_addresses(entry, _dtype(spelled))


if __name__ == "__main__":
    _compile_one(*sys.argv[1:])
