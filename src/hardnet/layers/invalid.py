"""How a layer in plain torch handles invalid samples: NaN for these alone, then an error where reading is free."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hardnet.errors import NOT_FINITE, HardNetError, RankError, ShapeError, in_samples, sentence
from hardnet.errors import sample_indices as indices_of
from hardnet.functional.samples import find_invalid, reject
from hardnet.layers.base import Layer
from hardnet.modes import may_look
from hardnet.sets.base import AffineRows

__all__ = [
    "crossed",
    "diagnose_inputs",
    "diagnose_missed",
    "in_samples",
    "poison",
    "raise_for_invalid",
    "require_width",
    "sample_indices",
    "take_raw",
]


def require_width(raw: Tensor, layer: Layer) -> None:
    """Refuse raw outputs of another width than the layer needs, where that is known."""
    if layer.raw_dim is not None and raw.shape[-1:] != (layer.raw_dim,):
        remedy = f"method '{layer.name}' needs {layer.raw_dim} network outputs for this set"
        raise ShapeError(sentence("raw", f"shape (*batch, {layer.raw_dim})", tuple(raw.shape), remedy))


def take_raw(raw: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    """Raw with zeros in the samples that are not finite, so that these send no gradient, and which they are.

    They are refused where values may be read, unless ``on_invalid="nan"``, and so is another width than ``raw_dim``.
    """
    require_width(raw, layer)
    bad = ~raw.isfinite().all(dim=-1)
    if layer.options.on_invalid == "raise" and may_look(raw):
        reject(bad, NOT_FINITE, "raw")
    return torch.where(bad.unsqueeze(-1), 0.0, raw), bad


def poison(y: Tensor, bad: Tensor | None = None) -> Tensor:
    """NaN in every coordinate of the samples that are `bad` ``(*batch)`` or not finite; others keep their bits."""
    sound = y.isfinite().all(dim=-1)
    if bad is not None:
        sound = sound & ~bad
    return torch.where(sound.unsqueeze(-1), y, torch.nan)


def crossed(rows: AffineRows) -> Tensor | None:
    """Whether some lower bound exceeds its upper bound, ``(*batch)``; None where a side has no bounds."""
    if rows.lower is None or rows.upper is None:
        return None
    return (rows.lower > rows.upper).any(dim=-1)


def raise_for_invalid(y: Tensor, diagnose: Callable[[], HardNetError | None]) -> None:
    """Raise what `diagnose` finds if y holds NaN, where reading values is free: eager mode on a CPU, outside vmap."""
    if may_look(y) and bool(y.isnan().any()):
        error = diagnose()
        if error is not None:
            raise error


def diagnose_inputs(raw: Tensor, rows: AffineRows) -> HardNetError | None:
    """The error for a bad number in raw, A or the bounds, naming the samples; None where all are valid."""
    finding = next(find_invalid(raw, *rows), None)
    return None if finding is None else finding.error()


def diagnose_missed(missed: Tensor, matrix: str, instead: str) -> RankError | None:
    """The error for samples whose rows do not hold to rounding because the matrix is too ill-conditioned."""
    samples = sample_indices(missed)
    if samples is None:
        return None
    text = f"{matrix}: expected rows that are independent enough to be met to rounding, got rows that y misses"
    return RankError(f"{text}{in_samples(samples)}; drop nearly dependent rows, or use {instead}", samples)


def sample_indices(bad: Tensor) -> list[object] | None:
    """The indices of the bad samples; empty where a value shared by all samples is bad, None where none is."""
    if not bool(bad.any()):
        return None
    return indices_of(bad) if bad.dim() else []
