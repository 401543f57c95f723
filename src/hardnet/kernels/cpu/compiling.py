"""Compile kernels for a CPU with numba: functions of addresses and counts, cached by the text they are made of."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import cfunc, njit, types
from numba.core.caching import FunctionCache
from numba.core.codegen import CPUCodeLibrary, JITCPUCodegen
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock

REALS = {torch.float32: types.float32, torch.float64: types.float64}
Tile = npt.NDArray[np.float64]

_ALONE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Compiled code alone calls these functions: entry points for Python would take long to compile."""
compiled = njit(error_model="numpy", fastmath={"contract"}, nogil=True, **_ALONE)
summed = njit(error_model="numpy", fastmath={"contract", "reassoc"}, nogil=True, **_ALONE)
"""The same, with sums in any order, so that they can be vectorized."""
inner = compiled

_BARE: dict[str, Any] = {**_ALONE, "_nrt": False}
bare = njit(error_model="numpy", fastmath={"contract"}, nogil=True, **_BARE)
"""The same for code that makes no array: numba then counts no references to those that it is given."""
bare_summed = njit(error_model="numpy", fastmath={"contract", "reassoc"}, nogil=True, **_BARE)
"""The same, with sums in any order."""


def compile_addresses(function: Callable[..., int], dtype: torch.dtype, *, wait: bool = True) -> Callable[..., int]:
    """Compile a function of counts and of addresses of numbers of this dtype, to be called from Python.

    A parameter annotated as `int` is a count, any other an address. Calls by address are cheap and do not hold the GIL.
    numba caches the code on disk, next to the package or in the user's cache, for other processes; where neither is
    writable, each process compiles again.

    Raises:
        NotCompiledError: The code is not in the cache, and shall not be waited for.
    """
    kinds = [parameter.annotation in (int, "int") for parameter in signature(function).parameters.values()]
    takes = types.int64(*(types.int64 if counts else types.CPointer(REALS[dtype]) for counts in kinds))
    options: dict[str, Any] = {"error_model": "numpy", "pipeline_class": _Announced if wait else _Refused}
    named = _named(function, dtype)
    if not wait and not _has_index(named):
        raise NotCompiledError
    with _made_once(named.__qualname__):
        try:
            entry: Any = cfunc(takes, cache=True, **options)(named)
        except RuntimeError:  # numba found no writable directory for a cache
            entry = cfunc(takes, **options)(named)
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(kinds))(entry.address)


def _named(function: Callable[..., int], dtype: torch.dtype) -> Callable[..., int]:
    """The function under a name for numba's cache that says its dtype and text: then each has an index of its own."""
    named = FunctionType(function.__code__, function.__globals__, function.__name__)
    named.__module__ = function.__module__
    named.__qualname__ = f"{function.__name__}_{REALS[dtype]}_{digest(Path(function.__code__.co_filename))}"
    return named


@contextmanager
def _made_once(name: str) -> Iterator[None]:
    """In this block numba makes machine code of an entry point alone, with all that it calls linked into it.

    Else every function before it is optimized and made too, which takes as long again, and worse: where both stand in a
    process, calls go to the first that was made, without what the whole allows to inline and to vectorize. No other
    thread compiles meanwhile.
    """
    optimize, finish = CPUCodeLibrary._optimize_final_module, CPUCodeLibrary._finalize_final_module
    enter = JITCPUCodegen.set_env
    with global_compiler_lock:
        CPUCodeLibrary._optimize_final_module = lambda self: optimize(self) if name in self.name else None
        CPUCodeLibrary._finalize_final_module = lambda self: finish(self) if name in self.name else _keep(self)
        JITCPUCodegen.set_env = lambda self, env_name, env: None  # Python objects of functions, which ours do not use
        try:
            yield
        finally:
            CPUCodeLibrary._optimize_final_module, CPUCodeLibrary._finalize_final_module = optimize, finish
            JITCPUCodegen.set_env = enter


def _keep(library: CPUCodeLibrary) -> None:
    """What numba does at the end of a library, but for its machine code: others can link it."""
    library._finalize_dynamic_globals()
    library._finalized = True


def entries_of(kernel: str) -> tuple[Callable[..., int], ...]:
    """The functions that a module of this folder has compiled."""
    return import_module(f"hardnet.kernels.cpu.{kernel}").ENTRIES


def cache_folder(function: Callable[..., int]) -> Path:
    """The folder of numba's cache for a function; OSError where it finds none that it can write to."""
    try:
        return Path(FunctionCache(function).cache_path)
    except RuntimeError as error:
        raise OSError("numba finds no folder that it can write its cache to (NUMBA_CACHE_DIR)") from error


def _has_index(named: Callable[..., int]) -> bool:
    """Whether numba's cache has a file of this name; to look into it, numba would prepare to compile, which is slow."""
    try:
        return any(cache_folder(named).glob(f"*{named.__qualname__}*"))
    except OSError:
        return False


announces = True
"""Whether the first compilation of this process is announced."""


class NotCompiledError(Exception):
    """The code is not in numba's cache."""


class _Announced(Compiler):
    """numba's compiler with an announcement: numba creates it only if the code is not in its cache."""

    def __init__(self, *arguments: Any) -> None:
        if announces:
            _announce()
        super().__init__(*arguments)


class _Refused(Compiler):
    """A compiler that is never at work."""

    def __init__(self, *_: Any) -> None:
        raise NotCompiledError


@cache
def _announce() -> None:
    """Explain once per process why the first calls take so long."""
    print(
        "hardnet: numba compiles the CPU kernels of this program, 5 to 70 s each, once per machine; "
        "`hardnet warmup` does it ahead",
        file=sys.stderr,
        flush=True,
    )


KERNELS = Path(__file__).parents[1]
"""The folder of all kernels, whose modules import each other by their full names."""
IMPORTS = re.compile(r"^from (hardnet\.kernels[\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)


@cache
def digest(source: Path) -> str:
    """A hash of a module and of all kernels and constants that it imports.

    numba's cache only checks the name and the file of the entry function; so an edit compiles anew what it touches.
    """
    return sha256(b"".join(part.read_bytes() for part in sorted(_imported(source)))).hexdigest()[:12]


def _imported(source: Path, known: frozenset[Path] = frozenset()) -> frozenset[Path]:
    """The module, and the kernels that it imports directly or through others; not inside functions, which launch."""
    known |= {source}
    for module, names in IMPORTS.findall(source.read_text(encoding="utf-8")):
        folder = KERNELS.joinpath(*module.split(".")[2:])
        for part in (folder, *(folder / name for name in re.findall(r"\w+", names))):
            found = part.with_suffix(".py")
            known = known if found in known or not found.is_file() else known | _imported(found, known)
    return known
