"""Bad samples: NaN for these alone; then, where a look is free, the error that names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from hardnet.errors import Defect, SampleError, in_samples
from hardnet.modes import may_look

Policy = Literal["raise", "nan"]
"""What to do with samples that have no answer: raise an error that names them, or NaN for these alone."""

look_is_free = may_look


def sample_indices(bad: Tensor) -> list[object]:
    """The indices of the bad samples of a mask ``(*batch)``: ints for one batch dimension, else tuples."""
    index = bad.nonzero().tolist()
    return [entry[0] if len(entry) == 1 else tuple(entry) for entry in index]


def refuse(bad: Tensor, error: Callable[..., SampleError], text: str) -> None:
    """Raise `error` with `text` and the samples of the mask `bad` ``(*batch)``, if there are any."""
    if bool(bad.any()):
        samples = sample_indices(bad) if bad.dim() else []
        raise error(f"{text}{in_samples(samples)}", samples)


def reject(bad: Tensor, defect: Defect, name: str, got: str | None = None) -> None:
    """Raise a defect of the argument `name` with the samples of the mask `bad` ``(*batch)``, if there are any."""
    if bool(bad.any()):
        raise defect.of(name, got, sample_indices(bad) if bad.dim() else [])


def keep_value(y: Tensor, value: Tensor) -> Tensor:
    """The bits of `value` with the gradient of y."""
    return value.detach() + (y - y.detach())
