"""``--submit``: each row of a run as a job of its own, on this machine or under Slurm, by submitit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardnet.errors import HardNetError, MissingExtraError, sentence

JOBS = ".jobs"
"""Folder in that of the results: what submitit writes, and the locks of the jobs."""
PAUSE = 0.2
"""Seconds between two looks at local jobs."""


@dataclass(frozen=True)
class Job:
    """A row by the names of what it consists of: only text travels, and the device is chosen where the job runs.

    Attributes:
        run: Runs a request: `run_suite` or `reproduce`.
        ask: Makes the request: `suite_request` or `request`.
        name: The suite or the experiment.
        options: What else was asked, as on the command line, narrowed to one row.
    """

    run: Callable[..., list[Path]]
    ask: Callable[..., Any]
    name: str
    options: dict[str, Any]

    def __call__(self) -> list[str]:
        """Train the row, or go on with it; a row that cannot be trained says so in its file."""
        asked = self.ask(self.name, **self.options, resume=True)
        return [str(path) for path in self.run(asked, job="-".join(map(str, self._row)))]

    @property
    def _row(self) -> list[str]:
        return [str(self.options[key]) for key in ("size", "recipe", "methods") if self.options.get(key)] or [self.name]

    def checkpoint(self, *_: Any) -> Any:
        """What Slurm runs again when it stops a job at its limit of time: the same, which goes on."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit(how: str, out: Path, jobs: Sequence[Job]) -> None:
    """Submit the jobs of rows whose folders are claimed.

    Args:
        how: ``local:N``, at most N at once, which waits for all; or ``slurm``, with options of the scheduler as
            ``slurm:partition=gpu,gpus_per_node=1,timeout_min=600``, which returns when they are submitted.
        out: The folder of the results.
        jobs: The jobs.
    """
    place, _, given = how.partition(":")
    if place == "local":
        if not given.isdecimal() or int(given) < 1:
            raise HardNetError(sentence("--submit", "local:N with N >= 1, or slurm", repr(how)))
        _run_here(jobs, out, int(given))
    elif place == "slurm":
        executor = _executor(out, "slurm")
        executor.update_parameters(slurm_job_name="hardnet", **_options(given))
        with executor.batch():
            for job in jobs:
                executor.submit(job)
    else:
        raise HardNetError(sentence("--submit", "local:N or slurm", repr(how)))


def _run_here(jobs: Sequence[Job], out: Path, most: int) -> None:
    """Run all jobs as processes, at most some at once; what fails is told when all have ended."""
    executor, waiting, running, failed = _executor(out, "local"), list(jobs), [], []
    try:
        while waiting or running:
            while waiting and len(running) < most:
                running.append(executor.submit(waiting.pop(0)))
            time.sleep(PAUSE)
            failed += [job for job in running if job.done() and job.exception() is not None]
            running = [job for job in running if not job.done()]
    finally:  # whoever stops this process stops its jobs, which go on with --resume
        for job in running:
            job.cancel()
    if failed:
        last = str(failed[0].exception()).strip().splitlines()[-1]
        raise HardNetError(f"{len(failed)} of {len(jobs)} jobs failed, see {out / JOBS}; the first: {last}")


def _executor(out: Path, place: str) -> Any:
    try:
        import submitit
    except ImportError as error:
        raise MissingExtraError("submitit") from error
    if place == "local":
        return submitit.LocalExecutor(folder=out / JOBS)
    if submitit.SlurmExecutor.affinity() < 0:
        raise HardNetError(sentence("--submit", "a machine with Slurm", "no srun here", "use local:N"))
    return submitit.AutoExecutor(folder=out / JOBS, cluster=place)


def _options(given: str) -> dict[str, Any]:
    """``partition=gpu,timeout_min=600`` as arguments of submitit, which calls those of Slurm alone ``slurm_...``."""
    shared = ("timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "nodes", "tasks_per_node", "name")
    found = {}
    for pair in given.split(",") if given else ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise HardNetError(sentence("--submit", "slurm:name=value,name=value", repr(given)))
        found[name if name in shared else f"slurm_{name}"] = int(value) if value.isdecimal() else value
    return found
