"""Base of the problems of other papers' benchmarks: exact optima beside the data, and the metrics of all suites.

A row of data is an input followed by the optimum of that instance (NaN where it is not solved: only test rows have
one). The optima come from small files beside this one, made by ``hardnet suite NAME --references``, so that evaluation
needs no solver. A problem is a subclass with `value` and, where its rows are not those of its set, `residuals`;
`hardnet_lab.experiments.suites` trains it.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from importlib import resources
from typing import Any, ClassVar

import torch
from torch import Tensor

from hardnet.errors import FileError
from hardnet.metrics import equality_rows, penalty
from hardnet_lab.problems.base import Policy, Problem, both_outputs, moved

FLOOR = 1e-16
"""Smallest gap counted in a geometric mean."""
MISS = 1e-3, 0.05
"""Violation and relative gap above which a sample counts as missed, as in Pinet's figures."""
VIOLATED = 1e-4
"""Residual above which a row counts as violated, as in HardNet's and SnareNet's tables."""


def reference(name: str) -> dict[str, Any] | None:
    """The recorded optima of a problem: ``optimum`` per test sample, ``checksum`` of its data, and their origin."""
    file = resources.files("hardnet_lab.problems.suites") / "data" / f"{name}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def fingerprint(*arrays: Any) -> str:
    """The first 16 digits of the SHA-256 of float64 arrays, in order; identifies the data of a recipe bit for bit."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(torch.as_tensor(array, dtype=torch.float64).contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


class SuiteProblem(Problem):
    """``min f(y, x)`` with y in C(x), evaluated by the gap to the exact optimum of every test instance.

    A subclass calls `take_data` with its inputs and sets the attributes of `Problem`: `constraint`, `output_dim`, ...

    Attributes:
        checksum: `fingerprint` of the arrays as they were drawn, before anything is computed from them.
    """

    objective: ClassVar[str] = "objective"
    violation: ClassVar[str] = "worst_violation"
    dc3 = None
    batch_size = 200
    soft_weight = 10.0
    checksum: str = ""

    @abstractmethod
    def value(self, y: Tensor, x: Tensor) -> Tensor:
        """The objective f(y, x) per sample: ``(*batch,)`` from y ``(*batch, n)`` and inputs ``(*batch, input_dim)``."""

    def residuals(self, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """``|equalities|`` and ``relu(inequalities)``, ``(*batch, rows)`` each, as the suite measures them."""
        numbers = self.constraint.numbers(x, y)
        residual = self.constraint.residual(numbers, y)
        equal = equality_rows(self.constraint, numbers, y)
        return residual[..., equal], residual[..., ~equal]

    def penalty(self, y: Tensor, x: Tensor) -> Tensor:
        """The sum of squared violations per sample, without reading values."""
        return penalty(self.constraint, y, x)

    def take_data(self, train: Tensor, validation: Tensor, test: Tensor, checksum: str) -> None:
        """Store the inputs ``(samples, input_dim)``; the test set gets the recorded optima as its last column."""
        self.input_dim = self.encoded_dim = train.shape[-1]
        self.checksum = checksum
        unknown = [torch.full_like(part[:, :1], torch.nan) for part in (train, validation)]
        self.train, self.validation = torch.cat([train, unknown[0]], 1), torch.cat([validation, unknown[1]], 1)
        self.test = torch.cat([test, self._optima(test)], 1)

    def inputs(self, x: Tensor) -> Tensor:
        """The inputs of a row of data, without the optimum that follows them."""
        return x[..., : self.input_dim]

    def loss(self, policy: Policy, x: Tensor, soft_weight: float = 0.0, displacement: float = 0.0) -> Tensor:
        """``f(y, x) + soft_weight * sum residual^2 + displacement * |y - raw|^2`` per sample."""
        given = self.inputs(x)
        y, raw = both_outputs(policy(given))
        value = self.value(y, given)
        if soft_weight:
            value = value + soft_weight * self.penalty(y, given)
        return value + displacement * moved(y, raw) if displacement else value

    def evaluate(self, policy: Policy, x: Tensor) -> dict[str, Tensor]:
        """The metrics of all suites; those that need the optimum only where it is known."""
        given = self.inputs(x)
        y = policy(given)
        value, optimum = self.value(y, given), x[..., self.input_dim]
        equalities, inequalities = self.residuals(y, given)
        metrics = {"objective": value.mean(-1)} | violation_metrics(equalities, inequalities)
        worst = _largest(equalities, inequalities)
        return metrics if optimum.isnan().any() else metrics | gap_metrics(value, optimum, worst)

    def _optima(self, test: Tensor) -> Tensor:
        """The recorded optima ``(samples, 1)``; NaN without a file; an error if they belong to other data."""
        known = reference(self.name)
        if known is None:
            return torch.full_like(test[:, :1], torch.nan)
        if known["checksum"] != self.checksum or len(known["optimum"]) != len(test):
            told = f"{self.name}: the data drawn here ({self.checksum}, {len(test)} test samples) are not those of the"
            raise FileError(f"{told} recorded optima ({known['checksum']}, {len(known['optimum'])})")
        return torch.tensor(known["optimum"], dtype=test.dtype).unsqueeze(-1)


def gap_metrics(value: Tensor, optimum: Tensor, violation: Tensor) -> dict[str, Tensor]:
    """Distances to the optimum over the samples, from values ``(*leading, samples)``.

    Mean and maximum of ``gap = (f - f*) / |f*|``; geometric mean (of gaps clamped to at least `FLOOR`) and maximum of
    the absolute gap ``f - f*``; and the share of samples missed according to `MISS`.
    """
    absolute = value - optimum
    relative = absolute / optimum.abs()
    missed = (violation > MISS[0]) | (relative > MISS[1])
    return {
        "gap": relative.mean(-1),
        "gap_max": relative.amax(-1),
        "absolute_gap_gmean": absolute.clamp_min(FLOOR).log().mean(-1).exp(),
        "absolute_gap_max": absolute.amax(-1),
        "missed": missed.to(value.dtype).mean(-1),
    }


def violation_metrics(equalities: Tensor, inequalities: Tensor) -> dict[str, Tensor]:
    """Violations ``(*leading, samples, rows)``, averaged as in each of the suites.

    ``eq_max``, ``eq_mean``: the largest and the mean of each sample, averaged; ``eq_sum``: the sum over the rows,
    averaged; ``eq_worst``, ``eq_sum_worst``: largest and sum of the worst sample; the same for ``ineq``.
    ``max_violation``: the largest over all rows of a sample, averaged; ``worst_violation``: the largest over all
    samples; ``violated``: rows above 1e-4 per sample, averaged.
    """
    metrics: dict[str, Tensor] = {}
    for name, rows in (("eq", equalities), ("ineq", inequalities)):
        if rows.shape[-1]:
            largest, total = rows.amax(-1), rows.sum(-1)
            metrics |= {f"{name}_max": largest.mean(-1), f"{name}_mean": rows.mean(-1).mean(-1)}
            metrics |= {f"{name}_sum": total.mean(-1), f"{name}_sum_worst": total.amax(-1)}
            metrics[f"{name}_worst"] = largest.amax(-1)
    worst = _largest(equalities, inequalities)
    count = (torch.cat([equalities, inequalities], -1) > VIOLATED).sum(-1).to(worst.dtype)
    return metrics | {"max_violation": worst.mean(-1), "worst_violation": worst.amax(-1), "violated": count.mean(-1)}


def _largest(equalities: Tensor, inequalities: Tensor) -> Tensor:
    """The largest violation of every sample, ``(*leading, samples)``."""
    return torch.cat([equalities, inequalities], -1).amax(-1)
