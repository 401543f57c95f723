"""Samples without an answer: an error that names them, NaN for these alone, or the best point there is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from hardnet.errors import (
    ConvergenceError,
    InfeasibleError,
    NotConvergedWarning,
    OptionError,
    name_samples,
    sample_indices,
    sentence,
)
from hardnet.solvers.solution import Solution, Status

OnInvalid = Literal["raise", "nan"]
"""Bad numbers: raise an error that names the samples, or NaN for these alone."""
OnInfeasible = Literal["auto", "raise", "nearest", "nan"]
"""An empty set: ``"auto"`` raises in eager mode on a CPU and gives NaN elsewhere."""
OnUnsolved = Literal["auto", "raise", "nan", "best"]
"""A sample that is not solved: as above; ``"best"`` returns the last point, with its residual in the Solution."""
Gradient = Literal["exact", "tangent"]
"""What raw receives: the derivative, or also the gradient that would pull a violated row back inside."""


class Policy(NamedTuple):
    """The options of a nearest point, documented in `hardnet.functional.project_affine`."""

    on_infeasible: OnInfeasible = "auto"
    on_unsolved: OnUnsolved = "auto"
    on_invalid: OnInvalid = "raise"
    gradient: Gradient = "exact"
    strict: bool = False

    def checked(self) -> Policy:
        """The same, after refusing by name an option with an unknown value."""
        for name, kind in CHOICES.items():
            value, known = getattr(self, name), get_args(kind)
            if value not in known:
                raise OptionError(sentence(name, " or ".join(map(repr, known)), repr(value)))
        return self

    @property
    def asks(self) -> bool:
        """Whether it requires to know which samples have no answer, even at the cost of waiting for a device."""
        return self.on_infeasible in ("raise", "nearest") or self.on_unsolved == "raise"

    def resolved(self, look: bool) -> Policy:
        """``"auto"`` as what it means here: an error where values may be read, else NaN."""
        plain = "raise" if look else "nan"
        return self._replace(
            on_infeasible=plain if self.on_infeasible == "auto" else self.on_infeasible,
            on_unsolved=plain if self.on_unsolved == "auto" else self.on_unsolved,
            on_invalid=self.on_invalid if look else "nan",
        )


CHOICES: dict[str, Any] = {
    "on_infeasible": OnInfeasible,
    "on_unsolved": OnUnsolved,
    "on_invalid": OnInvalid,
    "gradient": Gradient,
}
Names = Callable[[], Sequence[str]]
"""The names of all rows that multipliers refer to; asked for only where an error is worded."""


def refuse_empty(solution: Solution, names: Names | None) -> None:
    """Raise an `InfeasibleError` with the rows that contradict each other, if a set is empty.

    Args:
        solution: In the batch shape of raw; the multipliers of an empty sample are the weights of its proof.
        names: The names of the rows.
    """
    bad = solution.status == int(Status.INFEASIBLE)
    if not bool(bad.any()):
        return
    samples = sample_indices(bad) if bad.dim() else []
    rows = [proof.nonzero().squeeze(-1).tolist() for proof in solution.dual[bad]]
    where = f" in sample {samples[0]} (infeasible samples: {name_samples(samples)})" if samples else ""
    text = f"the set is empty: rows {name_samples(rows[0])} contradict each other{where}"
    remedy = "pass on_infeasible='nearest' for a compromise, or 'nan'"
    if names is None:
        raise InfeasibleError(f"{text}; {remedy}", samples, rows)
    known = names()
    named = [[known[row] for row in conflict] for conflict in rows]
    raise InfeasibleError(f"{text}; {remedy} (rows: {group_names(named[0])})", samples, rows, named)


MOST_NAMED = 8
"""The most rows that an error lists one by one; more are counted set by set."""


def group_names(names: Sequence[str]) -> str:
    """``balance[8], capacity (1440 rows)``: few rows by name, many by the set that they belong to."""
    if len(names) <= MOST_NAMED:
        return ", ".join(names)
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.split("[")[0], []).append(name)
    return ", ".join(rows[0] if len(rows) == 1 else f"{name} ({len(rows)} rows)" for name, rows in groups.items())


def refuse_unsolved(solution: Solution) -> None:
    """Raise a `ConvergenceError` that carries the whole solution, if a sample is not solved."""
    bad = solution.status == int(Status.NOT_CONVERGED)
    if not bool(bad.any()):
        return
    samples = sample_indices(bad) if bad.dim() else []
    where = f" in {'samples' if len(samples) > 1 else 'sample'} {name_samples(samples)}" if samples else ""
    text = f"expected a nearest point, got residual {_worst(solution.residual[bad])}{where}"
    remedy = "pass on_unsolved='nan', or 'best' for the last point; the error's .solution has all samples"
    raise ConvergenceError(f"{text}; {remedy}", samples, solution)


def warn_unproved(solution: Solution) -> bool:
    """Warn of points that satisfy their rows but are not proved to be the nearest; whether there are any."""
    weak = solution.status == int(Status.FEASIBLE)
    if not bool(weak.any()):
        return False
    text = f"{int(weak.sum())} of {weak.numel()} points are in the set but could not be proved to be the nearest"
    warnings.warn(
        f"{text} (residual {_worst(solution.residual[weak])}); the Solution's status says which",
        NotConvergedWarning,
        stacklevel=2,
    )
    return True


def _worst(residual: Tensor) -> str:
    """The largest residual for a message, however many are not numbers."""
    return f"{torch.nan_to_num(residual, nan=torch.inf).max().item():.1e}"


def unanswered(status: Tensor, policy: Policy) -> Tensor:
    """Which samples become NaN under a resolved policy, ``(B,)``."""
    bad = (status == int(Status.INVALID)) | (status == int(Status.INFEASIBLE))
    return bad if policy.on_unsolved == "best" else bad | (status == int(Status.NOT_CONVERGED))
