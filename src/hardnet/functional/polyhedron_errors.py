"""What the projection onto a polyhedron says about samples that have no answer."""

from __future__ import annotations

import warnings

from torch import Tensor

from hardnet.errors import CROSSED, InfeasibleError, NotConvergedWarning, name_samples
from hardnet.functional.diagnose import find_invalid
from hardnet.functional.samples import reject, sample_indices


def raise_invalid(raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None, bad: Tensor) -> None:
    """Raise for the samples of the mask `bad` ``(*batch)`` what is wrong with their numbers, if there are any."""
    if not bool(bad.any()):
        return
    for finding in find_invalid(raw, A, lower, upper):
        reject(bad & finding.bad, finding.defect, finding.name, finding.got)
    reject(bad, CROSSED, "lower, upper")


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
