"""Compile kernels for a CPU with numba: functions of addresses and counts, cached by the text they are made of."""

from __future__ import annotations

import ast
import ctypes
import sys
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import cfunc, njit, types
from numba.core.compiler import Compiler

REALS = {torch.float32: types.float32, torch.float64: types.float64}
Tile = npt.NDArray[np.float64]

compiled = njit(error_model="numpy", fastmath={"contract"}, nogil=True)
summed = njit(error_model="numpy", fastmath={"contract", "reassoc"}, nogil=True)
"""The same, with sums in any order, so that they can be vectorized."""
_ALONE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
inner = njit(error_model="numpy", fastmath={"contract"}, nogil=True, **_ALONE)
"""Like `compiled`, for functions called only by compiled code: without the Python entry points, which take long to
compile for functions of records."""

_BARE: dict[str, Any] = {**_ALONE, "_nrt": False}
bare = njit(error_model="numpy", fastmath={"contract"}, nogil=True, **_BARE)
"""The same for code that makes no array: numba then counts no references to those that it is given."""
bare_summed = njit(error_model="numpy", fastmath={"contract", "reassoc"}, nogil=True, **_BARE)
"""The same, with sums in any order."""


def compile_addresses(function: Callable[..., int], dtype: torch.dtype) -> Callable[..., int]:
    """Compile a function of counts and of addresses of numbers of this dtype, to be called from Python.

    A parameter annotated as `int` is a count, any other an address. Calls by address are cheap and do not hold the GIL.
    numba caches the code on disk, next to the package or in the user's cache, for other processes; where neither is
    writable, each process compiles again.
    """
    kinds = [parameter.annotation in (int, "int") for parameter in signature(function).parameters.values()]
    takes = types.int64(*(types.int64 if counts else types.CPointer(REALS[dtype]) for counts in kinds))
    function.__qualname__ = f"{function.__name__}_{digest(Path(function.__code__.co_filename))}"
    options: dict[str, Any] = {"error_model": "numpy", "pipeline_class": _Announced}
    try:
        entry: Any = cfunc(takes, cache=True, **options)(function)
    except RuntimeError:  # numba found no writable directory for a cache
        entry = cfunc(takes, **options)(function)
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(kinds))(entry.address)


announces = True
"""Whether the first compilation of this process is announced."""


class _Announced(Compiler):
    """numba's compiler with an announcement: numba creates it only if the code is not in its cache."""

    def __init__(self, *arguments: Any) -> None:
        if announces:
            _announce()
        super().__init__(*arguments)


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


@cache
def digest(source: Path) -> str:
    """A hash of a module and of all kernels and constants that it imports.

    numba's cache only checks the name and the file of the entry function; so an edit compiles anew what it touches.
    """
    return sha256(b"".join(part.read_bytes() for part in sorted(_imported(source)))).hexdigest()[:12]


def _imported(source: Path, known: frozenset[Path] = frozenset()) -> frozenset[Path]:
    """The module, and the kernels that it imports directly or through others; not inside functions, which launch."""
    known |= {source}
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hardnet.kernels"):
            folder = KERNELS.joinpath(*str(node.module).split(".")[2:])
            for part in (folder, *(folder / name.name for name in node.names)):
                found = part.with_suffix(".py")
                known = known if found in known or not found.is_file() else known | _imported(found, known)
    return known
