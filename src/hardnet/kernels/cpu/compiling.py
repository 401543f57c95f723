"""Compile kernels for a CPU by numba: functions of addresses and counts, kept on disk under the text of all kernels.

Called by `hardnet.kernels.cpu.affine`, `hardnet.kernels.cpu.launch` and others.
"""

from __future__ import annotations

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
"""The same for sums in whatever order the vector unit likes."""
_ALONE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
inner = njit(error_model="numpy", fastmath={"contract"}, nogil=True, **_ALONE)
"""The same, called by compiled code alone: no time goes into entries for Python, long where records are handed over."""

bare = njit(error_model="numpy", fastmath={"contract"}, nogil=True, _nrt=False, **_ALONE)
"""The same for code that makes no array: numba then counts no references to those that it is given."""


def compile_addresses(function: Callable[..., int], dtype: torch.dtype) -> Callable[..., int]:
    """A compiled function of addresses of numbers of this dtype and of counts, to be called from Python.

    A parameter that is an `int` by its annotation is a count, any other an address. By address a call costs little and
    holds no lock. numba keeps the code on disk, beside the package or in the user's cache, and the next process reads
    it back; where there is no place to write, each process compiles anew.
    """
    kinds = [parameter.annotation in (int, "int") for parameter in signature(function).parameters.values()]
    takes = types.int64(*(types.int64 if counts else types.CPointer(REALS[dtype]) for counts in kinds))
    function.__qualname__ = f"{function.__name__}_{_digest()}"
    options: dict[str, Any] = {"error_model": "numpy", "pipeline_class": _Announced}
    try:
        entry: Any = cfunc(takes, cache=True, **options)(function)
    except RuntimeError:  # numba found no place for a cache
        entry = cfunc(takes, **options)(function)
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(kinds))(entry.address)


announces = True
"""Whether the first compilation of this process is announced."""


class _Announced(Compiler):
    """numba's compiler, which makes one of these only where its cache does not have the code: so it can say so."""

    def __init__(self, *arguments: Any) -> None:
        if announces:
            _announce()
        super().__init__(*arguments)


@cache
def _announce() -> None:
    """Say once per process why its first calls take so long."""
    print(
        "hardnet: numba compiles the CPU kernels of this program, 5 to 70 s each, once per machine; "
        "`hardnet warmup` does it ahead",
        file=sys.stderr,
        flush=True,
    )


@cache
def _digest() -> str:
    """Stands for the sources of all kernels: numba's cache knows code by its name and the file of its entry alone."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
