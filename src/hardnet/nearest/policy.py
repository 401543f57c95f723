"""Samples without an answer: an error that names them, NaN for these alone, or the best point there is.

A sample is answered if it is SOLVED, or FEASIBLE: in the set by the certificate's terms, though not proved nearest.
Solvers only state the status of a sample; what the caller receives for the others is decided here, for every method.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple, NoReturn, get_args

import torch
from torch import Tensor

from hardnet.errors import (
    ConvergenceError,
    InfeasibleError,
    NotConvergedWarning,
    OptionError,
    in_samples,
    name_samples,
    sample_indices,
    sentence,
)
from hardnet.solvers.solution import Found, Solution, Status

OnInvalid = Literal["raise", "nan"]
"""Bad numbers: raise an error that names the samples, or NaN for these alone."""
OnInfeasible = Literal["auto", "raise", "nearest", "nan"]
"""An empty set: ``"auto"`` raises in eager mode on a CPU and gives NaN elsewhere."""
OnUnsolved = Literal["auto", "raise", "nan", "best"]
"""A sample that is not solved: as above; ``"best"`` returns the last point, with its residual in the Solution."""
Gradient = Literal["exact", "tangent"]
"""What raw receives: the derivative, or also the gradient that would pull a violated row back inside."""
Names = Callable[[], Sequence[tuple[int, str]]]
"""For each multiplier its row in the set, and the row's name; asked for only where an error is worded."""


class Once:
    """Whether a layer has warned already of points that are not proved to be the nearest."""

    def __init__(self, given: bool = False) -> None:
        self.given = given


class Policy(NamedTuple):
    """The options of a nearest point, documented in `hardnet.functional.project_affine`.

    Attributes:
        on_infeasible: What an empty set gives.
        on_unsolved: What a sample that is not solved gives.
        on_invalid: What bad numbers give.
        gradient: What raw receives.
        strict: Whether inequalities must hold in exact arithmetic.
        metric: W, or None for the identity.
        shared: Factors of rows that all samples share, or None.
        names: The names of the rows for errors, where a set has them.
        once: Where a layer remembers that it has warned; None warns at each call.
    """

    on_infeasible: OnInfeasible = "auto"
    on_unsolved: OnUnsolved = "auto"
    on_invalid: OnInvalid = "raise"
    gradient: Gradient = "exact"
    strict: bool = False
    metric: Tensor | None = None
    shared: Any = None
    names: Names | None = None
    once: Once | None = None

    def checked(self) -> Policy:
        """The same, after refusing by name an option with an unknown value."""
        if self[: len(CHOICES)] not in VALID:
            self._refuse()
        return self

    def _refuse(self) -> NoReturn:
        """Raise an error that names the option with an unknown value."""
        name = next(name for name, values in CHOICES.items() if getattr(self, name) not in values)
        raise OptionError(sentence(name, " or ".join(map(repr, CHOICES[name])), repr(getattr(self, name))))

    @property
    def asks(self) -> bool:
        """Whether it requires to know which samples have no answer, even at the cost of waiting for a device."""
        return self.on_infeasible in ("raise", "nearest") or self.on_unsolved == "raise"

    def resolved(self, look: bool) -> Policy:
        """``"auto"`` as what it means here: an error where values may be read at no cost, else NaN."""
        if self.on_infeasible != "auto" and self.on_unsolved != "auto":
            return self
        plain: Any = "raise" if look else "nan"
        return self._replace(
            on_infeasible=plain if self.on_infeasible == "auto" else self.on_infeasible,
            on_unsolved=plain if self.on_unsolved == "auto" else self.on_unsolved,
        )


CHOICES: dict[str, tuple[str, ...]] = {
    "on_infeasible": get_args(OnInfeasible),
    "on_unsolved": get_args(OnUnsolved),
    "on_invalid": get_args(OnInvalid),
    "gradient": get_args(Gradient),
}
VALID = frozenset(product(*CHOICES.values()))
"""All valid combinations of the first fields of `Policy`: looking one up costs less than four comparisons."""
QUIET = Policy("nan", "nan", "nan", once=Once(given=True))
"""Nothing is raised or warned of, and samples without an answer are NaN."""


def answer(found: Solution, policy: Policy, box: int = 0) -> Tensor:
    """y of a solution in the batch shape of raw, with what a resolved policy gives for samples without an answer.

    Values are read, errors raised and warnings given; elsewhere `answered` is the answer.

    Args:
        found: The solution; y may carry a derivative.
        policy: What to do; bad numbers have been refused before.
        box: How many multipliers at the end belong to a box.
    """
    if policy.on_infeasible == "raise":
        refuse_empty(found, policy.names, box)
    if policy.on_unsolved == "raise":
        refuse_unsolved(found, _without_room(found) if policy.strict else None)
    warn_unproved(found, policy.once)
    return answered(found, policy)


def answered(found: Solution | Found, policy: Policy = QUIET) -> Tensor:
    """y of a solution, with NaN for the samples without an answer."""
    return torch.where(unanswered(found.status, policy).unsqueeze(-1), torch.nan, found.y)


def unanswered(status: Tensor, policy: Policy) -> Tensor:
    """Which samples become NaN under a resolved policy, ``(*batch)``."""
    bad = status == int(Status.INVALID)
    bad = bad if policy.on_infeasible == "nearest" else bad | (status == int(Status.INFEASIBLE))
    return bad if policy.on_unsolved == "best" else bad | (status == int(Status.NOT_CONVERGED))


def refuse_empty(solution: Solution, names: Names | None = None, box: int = 0) -> None:
    """Raise an `InfeasibleError` with the rows that contradict each other, if a set is empty.

    Args:
        solution: In the batch shape of raw; the multipliers of an empty sample are the weights of its proof.
        names: The names of the rows; without them the error says of a box only that it takes part.
        box: How many multipliers at the end belong to the box.
    """
    bad = solution.status == int(Status.INFEASIBLE)
    if not bool(bad.any()):
        return
    samples = sample_indices(bad) if bad.dim() else []
    conflicts = [proof.nonzero().squeeze(-1).tolist() for proof in solution.dual[bad]]
    where = f" in sample {samples[0]} (infeasible samples: {name_samples(samples)})" if samples else ""
    remedy = "pass on_infeasible='nearest' for a compromise, or 'nan'"
    if names is None:
        general = solution.dual.shape[-1] - box
        rows = [[row for row in conflict if row < general] for conflict in conflicts]
        what = "rows" if len(rows[0]) == len(conflicts[0]) else "the box and rows"
        text = f"the set is empty: {what} {name_samples(rows[0])} contradict each other{where}; {remedy}"
        raise InfeasibleError(text, samples, rows)
    known = names()
    pairs = [sorted(known[row] for row in conflict) for conflict in conflicts]
    rows, named = ([[pair[part] for pair in conflict] for conflict in pairs] for part in (0, 1))
    text = f"the set is empty: rows {name_samples(rows[0])} contradict each other{where}; {remedy}"
    raise InfeasibleError(f"{text} (rows: {group_names(named[0])})", samples, rows, named)


MOST_NAMED = 8
"""The most rows that an error lists one by one; more are counted set by set."""


def group_names(names: Sequence[str]) -> str:
    """``balance[8], capacity: 1440 rows``: few rows by name, many by the set that they belong to, the largest first."""
    if len(names) <= MOST_NAMED:
        return ", ".join(names)
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.split("[")[0], []).append(name)
    order = sorted(groups.items(), key=lambda group: -len(group[1]))
    named = [rows[0] if len(rows) == 1 else f"{name}: {len(rows)} rows" for name, rows in order]
    return ", ".join(named[:MOST_NAMED] + ([f"and {len(named) - MOST_NAMED} more"] if named[MOST_NAMED:] else []))


INSTEAD = "pass on_unsolved='nan', or 'best' for the last point; the error's .solution has the other samples"
"""What an error about unsolved samples recommends."""


def refuse_unsolved(solution: Solution, expected: str | None = None, remedy: str = INSTEAD) -> None:
    """Raise a `ConvergenceError` that carries the whole solution, if a sample is not solved.

    Args:
        solution: In the batch shape of raw.
        expected: What was expected and what came, for a method with words of its own.
        remedy: What would work instead.
    """
    bad = solution.status == int(Status.NOT_CONVERGED)
    if not bool(bad.any()):
        return
    samples = sample_indices(bad) if bad.dim() else []
    text = f"expected a nearest point, got residual {_worst(solution.residual[bad])}" if expected is None else expected
    kept = Solution(answered(solution).detach(), *solution[1:])
    raise ConvergenceError(f"{text}{in_samples(samples)}; {remedy}", samples, kept)


NO_ROOM = "strict: expected room for a few roundings in every inequality, got none"


def _without_room(solution: Solution) -> str | None:
    """What to say where every unsolved sample has its nearest point, and only exact arithmetic refuses it."""
    lost = solution.residual[solution.status == int(Status.NOT_CONVERGED)]
    return NO_ROOM if bool((lost <= PROVED).all()) else None


def warn_unproved(solution: Solution, once: Once | None = None) -> None:
    """Warn of points that satisfy their rows but are not proved to be the nearest, a layer once."""
    weak = solution.status == int(Status.FEASIBLE)
    warn_weak(weak, "are in the set but could not be proved to be the nearest", once, solution.residual)


def warn_weak(weak: Tensor, text: str, once: Once | None, residual: Tensor | None = None) -> None:
    """One warning of a layer about the samples ``(*batch)`` whose point is in the set with a reservation."""
    if (once is not None and once.given) or not bool(weak.any()):
        return
    if once is not None:
        once.given = True
    where = in_samples(sample_indices(weak) if weak.dim() else [])
    size = "" if residual is None else f" (residual {_worst(residual[weak])}{where})"
    where = where if residual is None else ""
    whole = f"{int(weak.sum())} of {weak.numel()} points {text}{size}{where}; the Solution's status says which"
    warnings.warn(whole, NotConvergedWarning, stacklevel=3)


def _worst(residual: Tensor) -> str:
    """The largest residual for a message, however many are not numbers."""
    return f"{torch.nan_to_num(residual, nan=torch.inf).max().item():.1e}"


PROVED = 1e-6
"""The residual above which a point that satisfies its rows is not proved to be the nearest: rows nearly coincide."""
