"""The slow look at a batch whose answer holds NaN: which samples, why, and what would work instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.errors import (
    CROSSED,
    DEPENDENT,
    NO_LOWER_BOUND,
    NO_UPPER_BOUND,
    NOT_FINITE,
    ZERO_ROW,
    Defect,
    HardNetError,
    name_samples,
)
from hardnet.functional.samples import sample_indices


class Finding(NamedTuple):
    """A defect of the argument `name` in the samples of the mask `bad` ``(*batch)`` or ``()``; `got` in words."""

    defect: Defect
    name: str
    bad: Tensor
    got: str | None = None

    def error(self, index: Callable[[Tensor], list[object]] = sample_indices) -> HardNetError:
        """The error, with samples named by `index`; none where one number is shared by all."""
        return self.defect.of(self.name, self.got, index(self.bad) if self.bad.dim() else [])


def find_invalid(raw: Tensor, A: Tensor | None, lower: Tensor | None, upper: Tensor | None) -> Iterator[Finding]:
    """What is wrong with the numbers of ``lower <= A y <= upper`` (A None: the identity): each kind once, in order."""
    for name, tensor, core in (("raw", raw, 1), ("A", A, 2)):
        if tensor is not None and not bool(tensor.isfinite().all()):
            yield Finding(NOT_FINITE, name, ~tensor.isfinite().flatten(tensor.dim() - core).all(-1))
    for name, bound, wrong, defect in (
        ("lower", lower, torch.inf, NO_LOWER_BOUND),
        ("upper", upper, -torch.inf, NO_UPPER_BOUND),
    ):
        if bound is not None and (bad := bound.isnan() | (bound == wrong)).any():
            yield Finding(defect, name, bad.any(-1), f"{bound[bad][0].item():+}")
    if lower is not None and upper is not None and (bad := lower > upper).any():
        excess = torch.where(bad, lower - upper, 0).max().item()
        got = f"lower > upper by up to {excess:.3g} in row(s) {name_samples(rows_of(bad))}"
        yield Finding(CROSSED, "lower, upper", bad.any(-1), got)


def find_dependent(A: Tensor) -> Finding:
    """Why rows of a finite A ``(*batch, m, n)`` have no pseudo-inverse: zero rows, dependent rows, or nearly so."""
    lengths = torch.linalg.vector_norm(A.double(), dim=-1)
    if (zero := lengths == 0).any():
        return Finding(ZERO_ROW, "A", zero.any(-1), f"row(s) {name_samples(rows_of(zero))} of zeros")
    smallest = torch.linalg.svdvals(A.double() / lengths.unsqueeze(-1))[..., -1]
    bad = smallest < 64 * A.shape[-1] * torch.finfo(A.dtype).eps
    size = f"smallest singular value {smallest.min().item():.2g}"
    if not bad.any():  # not dependent, yet no answer: the worst sample is named
        return Finding(DEPENDENT, "A", smallest <= smallest.min(), f"{size}, beyond {A.dtype}")
    return Finding(DEPENDENT, "A", bad, f"{DEPENDENT.got}, {size}")


def raise_invalid(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, batch: torch.Size) -> None:
    """Raise the error of the first kind of bad number found in raw, A, the bounds, or the rank of A, if any."""
    finding = next(find_invalid(raw, A, lower, upper), None)
    raise (find_dependent(A) if finding is None else finding).error(lambda bad: _indices(bad, batch))


def rows_of(bad: Tensor) -> list[int]:
    """The rows of a mask ``(*batch, m)`` that are bad in some sample."""
    return sorted({int(index[-1]) for index in bad.nonzero()})


def _indices(bad: Tensor, batch: torch.Size) -> list[object]:
    """The samples of a mask over the flattened batch: ints for one batch dimension, tuples for several."""
    return [_index(int(flat), batch) for flat in bad.nonzero().squeeze(-1)] if batch else []


def _index(flat: int, batch: torch.Size) -> object:
    """The index of a sample of the flattened batch."""
    return flat if len(batch) == 1 else tuple(int(part) for part in torch.unravel_index(torch.tensor(flat), batch))
