"""Launch a Triton kernel at little cost on the host: the compiled kernel is cached and launched directly.

An ordinary launch inspects every argument to find the matching compiled kernel, which takes the host three times as
long as a small batch takes the device. Here the lookup is short, since most arguments are fixed in advance.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton import knobs

Grid = tuple[int, int, int]


class Launcher:
    """One kernel with its compile-time arguments, and a cache of its compiled versions.

    The kernel's parameters are tensors, then numbers, then the compile-time arguments.
    """

    kernel: Any
    constants: dict[str, Any]

    def __init__(self, kernel: Any, constants: dict[str, Any]) -> None:
        """Store the kernel and its arguments; it is compiled at the first launch.

        Args:
            kernel: A function under ``triton.jit``.
            constants: Its compile-time arguments, and options of the compiler such as ``num_warps``.
        """
        self.kernel, self.constants = kernel, constants
        self.ordered: tuple[Any, ...] = tuple(constants[name] for name in kernel.arg_names if name in constants)
        self.compiled: dict[tuple[Any, ...], Any] = {}

    def launch(self, grid: Grid, tensors: tuple[Tensor, ...], numbers: tuple[int | float, ...]) -> None:
        """Launch once on the device of the tensors, in its current stream.

        Args:
            grid: Numbers of programs.
            tensors: All on one device.
            numbers: Integers and floats.
        """
        device = tensors[0].get_device()
        if device >= 0 and device != torch.cuda.current_device():  # Triton launches on the current device
            with torch.cuda.device(device):
                self.launch(grid, tensors, numbers)
            return
        # what Triton specializes on: types, 16-byte alignment of pointers, and facts about integers
        kinds = [(tensor.dtype, tensor.data_ptr() % 16 == 0) for tensor in tensors]
        facts = [_facts(number) for number in numbers if type(number) is int]
        key = (device, *kinds, *facts)
        watched = _watched(self.kernel)
        compiled = None if watched else self.compiled.get(key)
        if compiled is not None:
            compiled[grid](*tensors, *numbers, *self.ordered)
            return
        compiled = self.kernel[grid](*tensors, *numbers, **self.constants)
        if not watched and hasattr(compiled, "__getitem__"):  # the interpreter returns no compiled kernel
            self.compiled[key] = compiled


def _facts(number: int) -> tuple[bool, bool, int]:
    """The facts about an integer that Triton specializes on: whether it is 1, a multiple of 16, and its width."""
    return number == 1, number % 16 == 0, number.bit_length() // 32


def _watched(kernel: Any) -> bool:
    """Whether launches have hooks or are debugged, which only an ordinary launch supports."""
    runtime = knobs.runtime
    entered, left = runtime.launch_enter_hook, runtime.launch_exit_hook  # hook chains, or None in old versions
    return bool(
        kernel.pre_run_hooks or runtime.debug or getattr(entered, "calls", entered) or getattr(left, "calls", left)
    )
