"""What the projection onto a polyhedron says about samples that have no answer."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from hardnet.errors import BoundsError, InfeasibleError, NonFiniteError, NotConvergedWarning, name_samples, sentence
from hardnet.functional.samples import refuse, sample_indices


def raise_invalid(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, bad: Tensor) -> None:
    """Raise for the samples of the mask `bad` ``(*batch)`` what their numbers are guilty of, if there are any."""
    if not bool(bad.any()):
        return
    finite = sentence("raw", "finite numbers", "NaN or infinity")
    refuse(bad & ~raw.isfinite().all(-1), NonFiniteError, finite)
    finite = sentence("A", "finite numbers", "NaN or infinity")
    refuse(bad & ~A.isfinite().flatten(-2).all(-1), NonFiniteError, finite)
    for name, bound, wrong in (("lower", lower, torch.inf), ("upper", upper, -torch.inf)):
        if bound is not None:
            text = sentence(
                name, f"numbers other than NaN and {wrong:+}", f"NaN or {wrong:+}", "leave out what is free"
            )
            refuse(bad & (bound.isnan() | (bound == wrong)).any(-1), BoundsError, text)
    refuse(bad, BoundsError, sentence("lower, upper", "lower <= upper in every row", "lower > upper"))


def raise_infeasible(bad: Tensor, certificate: Tensor) -> None:
    """Raise for the samples of the mask `bad` ``(*batch)``, naming the rows of their certificates ``(*batch, m)``."""
    if not bool(bad.any()):
        return
    samples = sample_indices(bad)
    rows = [one.nonzero().squeeze(-1).tolist() for one in certificate[bad]]
    text = f"lower <= A y <= upper is empty: rows {name_samples(rows[0])} contradict each other"
    where = f" in sample {samples[0]} (infeasible samples: {name_samples(samples)})" if bad.dim() else ""
    raise InfeasibleError(f"{text}{where}; pass on_infeasible='nearest' for a compromise, or 'nan'", samples, rows)


def warn_not_converged(bad: Tensor, residual: Tensor) -> None:
    """Warn once about the samples of the mask `bad` ``(*batch)``, if there are any."""
    if bool(bad.any()):
        samples = name_samples(sample_indices(bad)) if bad.dim() else "the only one"
        worst = residual[bad].max().item()
        warnings.warn(
            f"projection stopped at residual {worst:.1e} in sample {samples}", NotConvergedWarning, stacklevel=4
        )
