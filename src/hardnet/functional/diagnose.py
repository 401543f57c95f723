"""The slow look at a batch whose answer holds NaN: which samples, why, and what would work instead."""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.errors import BoundsError, NonFiniteError, RankError, name_samples, sentence

REMEDY = "drop redundant rows or use the exact projection (method='projection')"


def raise_invalid(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, batch: torch.Size) -> None:
    """Raise the error of the first kind of bad number found in raw, A, the bounds, or the rank of A, if any."""
    for name, tensor, own in (("raw", raw, 1), ("A", A, 2)):
        bad = tensor.isfinite().flatten(tensor.dim() - own).all(-1).logical_not()
        if bad.any():
            found, samples = _where(bad, batch)
            raise NonFiniteError(sentence(name, "finite numbers", f"NaN or infinity{found}"), samples)
    _check_bounds(lower, upper, batch)
    _check_rank(A, batch)


def _check_bounds(lower: Tensor | None, upper: Tensor | None, batch: torch.Size) -> None:
    """Raise where lower > upper, lower = +inf, upper = -inf, or a bound is NaN."""
    for name, bound, wrong in (("lower", lower, torch.inf), ("upper", upper, -torch.inf)):
        if bound is not None and (bad := bound.isnan() | (bound == wrong)).any():
            found, samples = _where(bad.any(-1), batch)
            text = sentence(name, f"numbers other than NaN and {wrong:+}", f"{bound[bad][0].item():+}{found}")
            raise BoundsError(f"{text}; leave the bound out or give {-wrong:+} where there is none", samples)
    if lower is not None and upper is not None and (bad := lower > upper).any():
        found, samples = _where(bad.any(-1), batch)
        rows = sorted({int(index[-1]) for index in bad.nonzero()})
        excess = torch.where(bad, lower - upper, 0).max().item()
        got = f"lower > upper by up to {excess:.3g} in row(s) {name_samples(rows)}{found}"
        raise BoundsError(sentence("lower, upper", "lower <= upper in every row", got, "swap or relax them"), samples)


def _check_rank(A: Tensor, batch: torch.Size) -> None:
    """Raise where A has a zero row or rows that are dependent to rounding."""
    lengths = torch.linalg.vector_norm(A.double(), dim=-1)
    if (zero := lengths == 0).any():
        found, samples = _where(zero.any(-1), batch)
        rows = sorted({int(index[-1]) for index in zero.nonzero()})
        got = f"row(s) {name_samples(rows)} of zeros{found}"
        raise RankError(sentence("A", "rows other than zero", got, "drop these rows"), samples)
    smallest = torch.linalg.svdvals(A.double() / lengths.unsqueeze(-1))[..., -1]
    bad = smallest < 64 * A.shape[-1] * torch.finfo(A.dtype).eps
    got = f"rows that are dependent to rounding, smallest singular value {smallest.min().item():.2g}"
    if not bad.any():  # not dependent, yet no answer: the worst sample is named
        bad, got = smallest <= smallest.min(), f"smallest singular value {smallest.min().item():.2g}, beyond {A.dtype}"
    found, samples = _where(bad, batch)
    raise RankError(sentence("A", "linearly independent rows", got + found, REMEDY), samples)


def _where(bad: Tensor, batch: torch.Size) -> tuple[str, list[object]]:
    """``, in sample(s) ...`` and the indices of the bad samples; nothing where the number is shared by all."""
    if bad.dim() == 0:
        return "", []
    indices = bad.nonzero().squeeze(-1)
    names = [_index(int(flat), batch) for flat in indices]
    return (f", in sample(s) {name_samples(names)}", names) if batch else ("", [])


def _index(flat: int, batch: torch.Size) -> object:
    """The index of a sample of the flattened batch: an int for one batch dimension, a tuple for several."""
    return flat if len(batch) == 1 else tuple(int(part) for part in torch.unravel_index(torch.tensor(flat), batch))
