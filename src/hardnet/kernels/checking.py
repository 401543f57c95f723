"""`check_kernel`: compare a kernel with its plain reference, on fresh inputs and with poisoned outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Outputs = Tensor | Sequence[Tensor]


class KernelMismatchError(AssertionError):
    """A kernel and its reference disagree."""


def check_kernel(
    kernel: Callable[..., Outputs],
    reference: Callable[..., Outputs],
    make_inputs: Callable[[int], Sequence[object]],
    *,
    tolerance: float,
    seeds: Sequence[int] = (0, 1, 2),
) -> None:
    """Check ``|kernel - reference| <= tolerance (1 + |reference|)``, NaN for NaN, on fresh inputs for every seed.

    New tensors are filled with NaN while the kernel runs, so that an output it leaves unwritten cannot pass. The
    kernel must not change its inputs, and a second run must give the same bits.

    Args:
        kernel: The function under test.
        reference: The same function in plain torch.
        make_inputs: Inputs for a seed: random ones, and the relevant degenerate ones.
        tolerance: Largest error, relative to one plus the size of the entry.
        seeds: Seeds, each for one comparison.

    Raises:
        KernelMismatchError: With the seed, the output and the error.
    """
    for seed in seeds:
        inputs = make_inputs(seed)
        copies: list[Any] = [part.clone() if isinstance(part, Tensor) else part for part in inputs]
        with _poisoned_memory():
            results, again = _tuple(kernel(*inputs)), _tuple(kernel(*inputs))
        for number, (part, copy) in enumerate(zip(inputs, copies, strict=True)):
            if isinstance(part, Tensor) and not _same_bits(part, copy):
                raise KernelMismatchError(f"seed {seed}: the kernel changed its input {number}")
        for number, (result, repeat, expected) in enumerate(
            zip(results, again, _tuple(reference(*copies)), strict=True)
        ):
            if not _same_bits(result, repeat):
                raise KernelMismatchError(f"seed {seed}: output {number} differs between two runs on the same inputs")
            _compare(f"seed {seed}: output {number}", result, expected, tolerance)


def _compare(name: str, result: Tensor, expected: Tensor, tolerance: float) -> None:
    """Compare shape, dtype, the positions of NaN, and the other entries."""
    if result.shape != expected.shape or result.dtype != expected.dtype:
        raise KernelMismatchError(
            f"{name} is {tuple(result.shape)} {result.dtype}, not {tuple(expected.shape)} {expected.dtype}"
        )
    if not torch.equal(result.isnan(), expected.isnan()):
        count = int((result.isnan() != expected.isnan()).sum())
        raise KernelMismatchError(f"{name} is NaN where the reference is not, or the reverse, in {count} entries")
    wide = expected.double()
    error = ((result.double() - wide).abs() / (1 + wide.abs())).nan_to_num(0.0)
    if error.numel() and error.max().item() > tolerance:
        raise KernelMismatchError(f"{name} is off by {error.max().item():.1e}, more than {tolerance:.1e}")


@contextmanager
def _poisoned_memory() -> Iterator[None]:
    """Make torch.empty fill its tensors with NaN, and restore the settings afterward."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    switches: Any = torch.utils.deterministic
    fill = switches.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    switches.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        switches.fill_uninitialized_memory = fill


def _same_bits(first: Tensor, second: Tensor) -> bool:
    """Equality in which NaN equals NaN and the two zeros differ."""
    return first.view(torch.uint8).equal(second.view(torch.uint8)) if first.dim() else first.equal(second)


def _tuple(outputs: Outputs) -> tuple[Tensor, ...]:
    """The outputs as a tuple, also where there is only one."""
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
