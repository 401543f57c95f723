"""Who computes: one object for each kind of device, with the same operations, found by one rule.

An operation has `takes`, `forward` and, where the derivative is compiled too, `backward`; `answer` is y alone. A
problem that no backend takes is left to plain torch. A new backend is a folder of kernels and a line of `BACKENDS`.

Called by `hardnet.functional.affine`, `hardnet.functional.nearest` and others.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from hardnet.kernels.cpu import affine as cpu_affine
from hardnet.kernels.cpu import launch as cpu
from hardnet.kernels.gpu import affine as gpu_affine
from hardnet.kernels.gpu import nearest as gpu
from hardnet.rows import Batch

Problem = Literal["closed_form", "few_rows", "box_rows", "any_rows"]


class Backend(NamedTuple):
    """The operations of one kind of device.

    Attributes:
        closed_form: ``y = raw + A⁺ s``, see `hardnet.functional.affine.Path`.
        few_rows: The nearest point of up to 4 rows.
        box_rows: The nearest point of a box and few rows, in their multipliers.
        any_rows: The nearest point of any rows in units of size one, without a derivative.
    """

    closed_form: Any
    few_rows: Any
    box_rows: Any
    any_rows: Any


BACKENDS = (
    Backend(cpu_affine.CompiledPath(), cpu.FewRows(), cpu.BoxRows(), cpu.AnyRows()),
    Backend(gpu_affine.FusedPath(), gpu.FewRows(), gpu.BoxRows(), gpu.AnyRows()),
)
"""A CPU by numba, a GPU by Triton."""


def find(problem: Problem, rows: Batch) -> Any:
    """The operation of the first backend that takes these rows; None where plain torch computes.

    Kernels read memory behind torch's back: whatever records or transforms operations must see operations.
    """
    if rows.memory:
        for backend in BACKENDS:
            operation = getattr(backend, problem)
            if operation.takes(rows):
                return operation
    return None
