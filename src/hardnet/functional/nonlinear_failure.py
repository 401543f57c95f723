"""What becomes of samples whose nonlinear rows do not hold: an error that names them, NaN, the best point, or raw.

Called by `hardnet.functional.nonlinear` and `hardnet.layers.nonlinear`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hardnet.errors import ConvergenceError, InfeasibleError, NonFiniteError, SampleError, in_samples, sample_indices
from hardnet.modes import may_look
from hardnet.solvers.nonlinear_status import NonlinearSolution, NonlinearStatus

OnFailure = Literal["raise", "nan", "best", "raw"]
FAILURES: dict[NonlinearStatus, tuple[type[SampleError], str]] = {
    NonlinearStatus.INVALID: (
        NonFiniteError,
        "expected finite numbers in raw, x, bounds and g at some point around raw, and lower <= upper, got others",
    ),
    NonlinearStatus.INFEASIBLE_LOCAL: (
        InfeasibleError,
        "expected rows that some point near satisfies, got a violation that no small move reduces",
    ),
    NonlinearStatus.NOT_CONVERGED: (ConvergenceError, "expected rows that can be met to tol, got no convergence"),
}
"""The statuses of samples whose rows do not hold, with their errors."""
REMEDY = "start nearer (start=), or choose on_failure='nan', 'best' or 'raw'"


def policy_for(on_failure: OnFailure, iterations: int | None, raw: Tensor) -> OnFailure:
    """``"raise"`` is ``"nan"`` in a fixed program on a GPU, where nobody looks."""
    return "nan" if on_failure == "raise" and iterations is not None and not may_look(raw) else on_failure


def apply_policy(y: Tensor, raw: Tensor, found: NonlinearSolution, on_failure: OnFailure) -> Tensor:
    """Y ``(*batch, n)`` with the samples whose rows do not hold as the policy asks."""
    invalid = found.status == NonlinearStatus.INVALID
    failed = torch.stack([found.status == kind for kind in FAILURES]).any(0)
    if on_failure == "raise":
        _raise_for(found.status)
        return y
    if on_failure == "best":
        return torch.where(invalid.unsqueeze(-1), torch.nan, y)
    return torch.where(failed.unsqueeze(-1), raw if on_failure == "raw" else torch.nan, y)


def _raise_for(status: Tensor) -> None:
    """The error of the worst kind of failure, with the samples that it befell."""
    for kind, (error, text) in FAILURES.items():
        bad = status == kind
        if bool(bad.any()):
            samples = sample_indices(bad) if bad.dim() else []
            raise error(f"g: {text}{in_samples(samples)}; {REMEDY}", samples)
