"""Which compiled kernels are ready; those that are not are compiled in another process while torch computes.

A kernel is a module of this folder with `ENTRIES`, compiled for one dtype. ``HARDNET_NUMBA=wait`` in the environment,
and the block `waiting`, compile on first use instead, so that no result depends on the clock.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from hardnet.files import claimed
from hardnet.modes import saves_elsewhere

Kernel = tuple[str, torch.dtype]
Entries = tuple[Callable[..., int], ...]

SPELLED = {torch.float32: "float32", torch.float64: "float64"}
PAUSE = 0.25
"""Seconds between two looks for a kernel in the cache."""
ATTEMPTS = 2
"""How many processes of ours may end without a kernel before torch keeps computing."""

_loaded: dict[Kernel, Entries] = {}
_late: set[Kernel] = set()
"""Kernels for which torch has computed first."""
_given_up: set[Kernel] = set()
_looked: dict[Kernel, float] = {}
_makers: dict[Kernel, list[subprocess.Popen[bytes]]] = {}
_said: set[str] = set()
_waiting = 0


def ready(kernel: str, dtype: torch.dtype = torch.float64) -> bool:
    """Whether all entries of a kernel can be called now; if not, they are being made ready.

    A checkpointed region computes twice and must save the same tensors both times: there torch goes on computing in a
    process in which it began to.
    """
    if (kernel, dtype) in _late and not _waits() and saves_elsewhere():
        return False
    return bool(entries(kernel, dtype))


def entries(kernel: str, dtype: torch.dtype = torch.float64) -> Entries:
    """The compiled entries of a kernel, which take addresses; none while they are being made ready."""
    return _loaded.get((kernel, dtype)) or _load(kernel, dtype)


@contextmanager
def waiting() -> Iterator[None]:
    """In this block compiled code is waited for, in every thread."""
    global _waiting
    _waiting += 1
    try:
        yield
    finally:
        _waiting -= 1


def _waits() -> bool:
    return _waiting > 0 or os.environ.get("HARDNET_NUMBA") == "wait"


def _load(kernel: str, dtype: torch.dtype) -> Entries:
    """Compile if that is waited for; else look into numba's cache, and have compiled what is not there."""
    key = kernel, dtype
    if _waits():
        return _loaded.setdefault(key, cached(key) or _compile(key))
    now, makers = time.monotonic(), _makers.get(key, [])
    if key in _given_up or now < _looked.get(key, 0.0) + PAUSE or (makers and makers[-1].poll() is None):
        return ()
    _looked[key] = now
    found = cached(key)
    if found:
        return _loaded.setdefault(key, found)
    _late.add(key)
    if len(makers) < ATTEMPTS:
        _have_compiled(key)
    else:
        _give_up(key, f"compiling {kernel} in another process failed (exit code {makers[-1].returncode})")
    return ()


def cached(key: Kernel) -> Entries:
    """All entries from numba's cache, or none if one is not there; numba is imported here."""
    from hardnet.kernels.cpu import compiling

    try:
        return tuple(compiling.compile_addresses(entry, key[1], wait=False) for entry in compiling.entries_of(key[0]))
    except compiling.NotCompiledError:
        return ()


def _compile(key: Kernel) -> Entries:
    """All entries, compiled in this process; what another process is compiling is waited for."""
    from hardnet.kernels.cpu import compiling

    compile_all = lambda: tuple(compiling.compile_addresses(entry, key[1]) for entry in compiling.entries_of(key[0]))
    try:
        with claimed(lock_of(key), wait=True):
            return compile_all()
    except OSError:  # there is no folder for a cache
        return compile_all()


def _have_compiled(key: Kernel) -> None:
    """Start a process that compiles a kernel, unless one of ours is at work on any or another's on this one."""
    if any(own[-1].poll() is None for own in _makers.values()):
        return
    if not Path(sys.executable or "").stem.lower().startswith("python"):
        _give_up(key, "this program cannot start Python to compile its CPU kernels")
        return
    try:
        with claimed(lock_of(key)) as descriptor:
            if descriptor is not None:
                _say("CPU kernels are compiled in the background, once per machine; until then torch computes")
                _makers.setdefault(key, []).append(start(key, descriptor))
    except OSError as error:
        _give_up(key, f"CPU kernels cannot be compiled: {error}")


def lock_of(key: Kernel) -> Path:
    """The file in numba's cache that is locked while a process compiles this kernel; OSError without a cache."""
    from hardnet.kernels.cpu import compiling

    folder = compiling.cache_folder(compiling.entries_of(key[0])[0])
    return folder / f"hardnet-{key[0]}-{SPELLED[key[1]]}.lock"


def start(key: Kernel, descriptor: int, errors: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """``python -m hardnet.warming KERNEL DTYPE`` with our path, apart from our terminal, pipes and working folder."""
    path = os.pathsep.join(str(Path(part).resolve()) for part in sys.path if part)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "hardnet.warming", key[0], SPELLED[key[1]]],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        pass_fds=(descriptor,) if os.name == "posix" else (),
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
    )


def _give_up(key: Kernel, why: str) -> None:
    """Torch computes for the rest of this process."""
    _given_up.add(key)
    _say(f"{why}; torch computes (HARDNET_NUMBA=wait compiles in this process)")


def _say(what: str) -> None:
    """Print a line once per process."""
    if what not in _said:
        _said.add(what)
        print(f"hardnet: {what}", file=sys.stderr, flush=True)
