"""The backends: one object for each kind of device, all with the same operations, selected by `find`.

An operation has `takes`, `forward` and, where the derivative is compiled too, `backward`; `answer` returns y alone.
Plain torch computes what no backend takes. To add a backend, add a folder of kernels and an entry in `BACKENDS`.
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
"""CPU kernels compiled by numba, GPU kernels compiled by Triton."""


def find(problem: Problem, rows: Batch) -> Any:
    """The operation of the first backend that takes these rows; None if plain torch must compute.

    Kernels read memory without torch noticing, so they are not offered where torch records or transforms operations.
    """
    if rows.memory:
        for backend in BACKENDS:
            operation = getattr(backend, problem)
            if operation.takes(rows):
                return operation
    return None
