"""Options of the projection onto a box and rows, and what it says about samples that have no answer."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from hardnet.errors import BoundsError, InfeasibleError, OptionError, name_samples, sentence
from hardnet.functional.polyhedron import project_affine
from hardnet.functional.polyhedron_errors import raise_invalid, warn_not_converged
from hardnet.functional.samples import look_is_free, refuse, sample_indices
from hardnet.functional.transforms import exporting, transformed
from hardnet.solvers.solution import Status

Gradient = Literal["exact", "tangent"]
Infeasible = Literal["auto", "raise", "nearest", "nan"]
Given = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""raw, A, lower, upper, box_lower and box_upper as they were given."""


def check_options(raw: Tensor, gradient: str, strict: bool, on_infeasible: str, on_invalid: str) -> None:
    """Refuse values that are not known, and what cannot be kept here."""
    options = (("gradient", gradient, get_args(Gradient)), ("on_infeasible", on_infeasible, get_args(Infeasible)))
    for name, value, known in (*options, ("on_invalid", on_invalid, ("raise", "nan"))):
        if value not in known:
            raise OptionError(sentence(name, " or ".join(map(repr, known)), repr(value)))
    if strict and raw.dtype not in (torch.float64, torch.float32):
        raise OptionError(
            sentence("strict", "float64 or float32 outputs", raw.dtype, "leave strict out, or call .float()")
        )
    if on_infeasible in ("raise", "nearest") and not _may_look():
        remedy = "pass 'auto' or 'nan', which give NaN for an empty set here"
        raise OptionError(
            sentence("on_infeasible", "no look at values in compiled or mapped code", on_infeasible, remedy)
        )


def _may_look() -> bool:
    """Whether values can be looked at, at some cost: not while compiling, exporting, mapping or capturing."""
    if torch.compiler.is_compiling() or exporting() or transformed():
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def answer_bad_samples(
    y: Tensor, status: Tensor, dual: Tensor, residual: Tensor, given: Given, on_infeasible: str, on_invalid: str
) -> Tensor:
    """Raise, warn or compromise where the options ask for it and a look is possible; y has NaN for bad samples."""
    free = look_is_free(y)
    named = on_infeasible in ("raise", "nearest")
    if not (free or named) or not bool((status != int(Status.SOLVED)).any()):
        return y
    if free and on_invalid == "raise":
        _raise_invalid(given, status == int(Status.INVALID))
    empty = status == int(Status.INFEASIBLE)
    if on_infeasible in ("auto", "raise"):
        _raise_infeasible(empty, dual)
    if free:
        warn_not_converged(status == int(Status.NOT_CONVERGED), residual)
    return _compromise(y, empty, given) if on_infeasible == "nearest" and bool(empty.any()) else y


def _raise_invalid(given: Given, bad: Tensor) -> None:
    """What is wrong with raw, the box, or else with A and the bounds of rows."""
    if not bool(bad.any()):
        return
    raw, A, lower, upper, low, high = given
    least = raw.new_tensor(-torch.inf) if low is None else low
    most = raw.new_tensor(torch.inf) if high is None else high
    ordered = (least <= most) & (least < torch.inf) & (most > -torch.inf)
    text = sentence("box_lower, box_upper", "numbers with box_lower <= box_upper", "NaN or box_lower > box_upper")
    wrong = bad & raw.isfinite().all(-1)
    refuse(wrong & ~(ordered.all(-1) if ordered.dim() else ordered), BoundsError, text)
    raise_invalid(raw, A, lower, upper, bad)


def _raise_infeasible(bad: Tensor, dual: Tensor) -> None:
    """Raise for the samples of the mask `bad` ``(*batch)``, naming the rows with a multiplier in ``(*batch, k)``."""
    if not bool(bad.any()):
        return
    samples, found = sample_indices(bad), dual[bad]
    rows = [one.nonzero().squeeze(-1).tolist() for one in found]
    text = f"the box and rows {name_samples(rows[0])} contradict each other"
    where = f" in sample {samples[0]} (infeasible samples: {name_samples(samples)})" if bad.dim() else ""
    raise InfeasibleError(f"{text}{where}; pass on_infeasible='nearest' for a compromise, or 'nan'", samples, rows)


def _compromise(y: Tensor, empty: Tensor, given: Given) -> Tensor:
    """Empty sets as n + k dense rows, whose projection knows the compromise."""
    raw, A, lower, upper, low, high = given
    batch, n = y.shape[:-1], y.shape[-1]
    eye = torch.eye(n, dtype=raw.dtype, device=raw.device)
    take = lambda part, core: part.expand(*batch, *part.shape[-core:])[empty]
    dense = torch.cat([take(A, 2), take(eye, 2)], dim=-2)
    bound = lambda part, size, absent: take(raw.new_full((size,), absent) if part is None else part, 1)
    least = torch.cat([bound(lower, A.shape[-2], -torch.inf), bound(low, n, -torch.inf)], dim=-1)
    most = torch.cat([bound(upper, A.shape[-2], torch.inf), bound(high, n, torch.inf)], dim=-1)
    nearest = project_affine(take(raw, 1), dense, least, most, on_infeasible="nearest")
    return torch.where(empty.unsqueeze(-1), torch.zeros_like(y).masked_scatter(empty.unsqueeze(-1), nearest), y)
