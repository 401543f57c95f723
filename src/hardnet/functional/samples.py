"""Errors for bad samples: which samples, what is wrong with them, and what would work.

Solvers answer with NaN for bad samples alone; where values may be read, the functions here raise or warn instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.errors import (
    CROSSED,
    DEPENDENT,
    INDEFINITE,
    NO_LOWER_BOUND,
    NO_UPPER_BOUND,
    NOT_FINITE,
    ZERO_ROW,
    BoundsError,
    Defect,
    HardNetError,
    InfeasibleError,
    SampleError,
    in_samples,
    name_samples,
    sample_indices,
    sentence,
)
from hardnet.nearest.policy import OnInvalid as Policy
from hardnet.nearest.policy import Policy as CurvedPolicy
from hardnet.nearest.policy import refuse_unsolved, warn_unproved
from hardnet.rows import Batch, ordered
from hardnet.solvers.conic.blocks import Block, Intervals, Quadratics
from hardnet.solvers.solution import Solution, Status

__all__ = ["Policy"]


def refuse(bad: Tensor, error: Callable[..., SampleError], text: str) -> None:
    """Raise `error` with `text` and the samples of the mask `bad` ``(*batch)``, if there are any."""
    if bool(bad.any()):
        samples = sample_indices(bad) if bad.dim() else []
        raise error(f"{text}{in_samples(samples)}", samples)


def reject(bad: Tensor, defect: Defect, name: str, got: str | None = None) -> None:
    """Raise a defect of the argument `name` with the samples of the mask `bad` ``(*batch)``, if there are any."""
    if bool(bad.any()):
        raise defect.of(name, got, sample_indices(bad) if bad.dim() else [])


class Finding(NamedTuple):
    """A defect of the argument `name` in the samples of the mask `bad` ``(*batch)`` or ``()``.

    `got` describes in words what was given.
    """

    defect: Defect
    name: str
    bad: Tensor
    got: str | None = None

    def error(self, index: Callable[[Tensor], list[object]] = sample_indices) -> HardNetError:
        """The error, with samples named by `index`; no samples if all share the bad number."""
        return self.defect.of(self.name, self.got, index(self.bad) if self.bad.dim() else [])


def find_invalid(raw: Tensor, A: Tensor | None, lower: Tensor | None, upper: Tensor | None) -> Iterator[Finding]:
    """The defects in the numbers of ``lower <= A y <= upper`` (A None: the identity), each kind once, in order."""
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
    if not bad.any():  # not dependent by this test, yet without an answer: name the worst sample
        return Finding(DEPENDENT, "A", smallest <= smallest.min(), f"{size}, beyond {A.dtype}")
    return Finding(DEPENDENT, "A", bad, f"{DEPENDENT.got}, {size}")


def raise_invalid(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, batch: torch.Size) -> None:
    """Raise the error for the first defect found in raw, A or the bounds; if there is none, for the rank of A."""
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


def raise_bad_numbers(rows: Batch, bad: Tensor) -> None:
    """Raise the error that says what is wrong with the samples of the mask `bad` ``(B,)``, if there are any."""
    if not bool(bad.any()):
        return
    _raise_bad_box(rows, bad)
    for finding in find_invalid(*rows.numbers):
        reject(rows.as_given(bad & finding.bad), finding.defect, finding.name, finding.got)
    reject(rows.as_given(bad), CROSSED, "lower, upper")


def _raise_bad_box(rows: Batch, bad: Tensor) -> None:
    """Raise for the samples of the mask `bad` ``(B,)`` with a finite raw but an invalid box."""
    if rows.box_lower is None and rows.box_upper is None:
        return
    least = rows.raw.new_full((1,), -torch.inf) if rows.box_lower is None else rows.box_lower
    most = rows.raw.new_full((1,), torch.inf) if rows.box_upper is None else rows.box_upper
    text = sentence("box_lower, box_upper", "numbers with box_lower <= box_upper", "NaN or box_lower > box_upper")
    wrong = bad & rows.raw.isfinite().all(-1) & ~ordered(least, most).all(-1)
    refuse(rows.as_given(wrong), BoundsError, text)


def raise_infeasible(bad: Tensor, certificate: Tensor, what: str = "lower <= A y <= upper is empty:") -> None:
    """Raise for the samples of the mask `bad` ``(*batch)``, naming the rows of their certificates ``(*batch, m)``."""
    if not bool(bad.any()):
        return
    samples = sample_indices(bad)
    rows = [one.nonzero().squeeze(-1).tolist() for one in certificate[bad]]
    text = f"{what} rows {name_samples(rows[0])} contradict each other"
    where = f" in sample {samples[0]} (infeasible samples: {name_samples(samples)})" if bad.dim() else ""
    raise InfeasibleError(f"{text}{where}; pass on_infeasible='nearest' for a compromise, or 'nan'", samples, rows)


def report_curved(
    raw: Tensor, blocks: Sequence[Block], found: Solution, flat: list[Block], policy: CurvedPolicy
) -> None:
    """Raise or warn about samples of curved sets that are not solved, as far as a resolved policy asks."""
    if policy.on_invalid == "raise":
        _raise_invalid(raw, blocks, found.status == int(Status.INVALID))
    if policy.on_infeasible == "raise":
        text = "the set is empty: expected a point that satisfies every constraint, got none within reach of raw"
        refuse(found.status == int(Status.INFEASIBLE), InfeasibleError, text)
    stopped = found.status == int(Status.NOT_CONVERGED)
    if policy.on_unsolved == "raise" and bool(stopped.any()):
        refuse_unsolved(found, "expected a nearest point, got none: the set may be empty, or have an empty interior")
    warn_unproved(found, policy.once)


def _raise_invalid(raw: Tensor, blocks: Sequence[Block], bad: Tensor) -> None:
    """Say which of the three reasons makes the samples invalid."""
    if not bool(bad.any()):
        return
    reject(bad & ~raw.isfinite().all(-1), NOT_FINITE, "raw")
    for block in blocks:
        if isinstance(block, Intervals):
            for finding in find_invalid(raw, None, block.lower, block.upper):
                reject(bad & finding.bad, finding.defect, finding.name, finding.got)
        if isinstance(block, Quadratics) and bool(block.P.isfinite().all()):
            least = torch.linalg.eigvalsh((block.P + block.P.mT).double() / 2)[..., 0]
            reject(bad & (least < 0).expand(bad.shape), INDEFINITE, "P", f"the eigenvalue {least.min().item():.3g}")
    reject(bad, NOT_FINITE, "the numbers of the set")
