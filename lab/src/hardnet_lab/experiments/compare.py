"""Compare methods on a problem from Python: the machinery of ``hardnet reproduce``, with a table as the result."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from hardnet_lab.experiments import tables
from hardnet_lab.experiments.recipes import refusal
from hardnet_lab.experiments.results import Result, read_result
from hardnet_lab.experiments.run import Request, reproduce, request
from hardnet_lab.problems import PROBLEMS, Problem
from hardnet_lab.train import bars


@dataclass(frozen=True, repr=False)
class Comparison:
    """The results of every method; prints as a table, in a notebook too.

    Attributes:
        results: One per method and recipe, with metrics per seed, learning curves and times.
        folder: The folder of the result files; None if they were not kept.
    """

    results: list[Result]
    folder: Path | None

    def __str__(self) -> str:
        return tables.markdown(self._table()) if self.results else "no results"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return tables.as_html(self._table()) if self.results else "no results"

    def _table(self) -> tables.Table:
        return tables.build(self.results[0].problem, self.results)

    def mean(self, metric: str = "objective") -> dict[str, float]:
        """The mean of a metric over the seeds, by method; methods that failed are left out."""
        return {r.key: sum(r.metrics[metric]) / len(r.seeds) for r in self.results if metric in r.metrics}


def compare(
    problem: Problem | str,
    *,
    methods: str | Iterable[str] | None = None,
    seeds: int | Sequence[int] | str = 3,
    epochs: int | None = None,
    recipe: str | None = None,
    device: str = "auto",
    out: str | Path | None = None,
    progress: bool = False,
) -> Comparison:
    """Train every method on a problem, all seeds at once, and compare them on its test set.

    Args:
        problem: A problem, the name of one of the paper's problems, or ``"file.py:NAME"``.
        methods: Names, or ``"all"``; by default those of the paper's tables that can express the problem.
        seeds: The number of seeds, a list of seeds, or a string such as ``"1-5"``.
        epochs: 1000 by default.
        recipe: ``"published"``, ``"best"`` or both, separated by a comma.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        out: A folder for the result files, from which a stopped comparison resumes; by default nothing is kept.
        progress: Whether to show a bar per method.

    Example:
        >>> import torch, hardnet as hn
        >>> x = torch.rand(200, 2)
        >>> box = hn.Box(0.0, lambda x: x)
        >>> problem = hn.problems.OwnProblem("caps", x, box, lambda y, x: (y - 1).square().sum(-1), output_dim=2)
        >>> table = hn.compare(problem, methods=["soft", "projection"], seeds=2, epochs=3, device="cpu")
    """
    chosen = methods if methods is None or isinstance(methods, str) else ",".join(methods)
    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as folder:
        asked = request(
            problem,
            methods=chosen,
            seeds=_seeds(seeds),
            epochs=epochs,
            device=device,
            out=folder,
            resume=True,
            recipe=recipe,
        )
        asked, refused = _possible(asked)
        with bars() if progress else nullcontext() as shown:
            results = [read_result(path) for path in reproduce(asked, shown)]
        results += refused
    return Comparison(results, None if out is None else Path(out))


def _possible(asked: Request) -> tuple[Request, list[Result]]:
    """The request without the named methods that refuse the set, and for each of these a result that says why.

    If all of them do, all stay: then running them is the error.
    """
    name = asked.experiments[0]
    if not asked.named or (asked.own is None and name not in PROBLEMS):
        return asked, []
    problem = asked.own or PROBLEMS[name]()
    reasons = {method: reason for method in asked.methods if (reason := refusal(method, problem)) is not None}
    if len(reasons) == len(asked.methods):
        return asked, []
    kept = replace(asked, methods=[method for method in asked.methods if method not in reasons])
    refused = [
        Result(name, method.name, method.label, asked.seeds, 0, {}, {}, {}, failure=reason)
        for method, reason in reasons.items()
    ]
    return kept, refused


def _seeds(seeds: int | Sequence[int] | str) -> str:
    """The seeds as the command line takes them; an integer n means seeds 1 to n."""
    if isinstance(seeds, str):
        return seeds
    return f"1-{seeds}" if isinstance(seeds, int) else ",".join(str(seed) for seed in seeds)
