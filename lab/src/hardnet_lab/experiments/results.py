"""Result files: one JSON file per problem and method, written when training is finished and protected by a digest."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import hardnet
from hardnet.errors import FileError
from hardnet.files import DIGEST, UNREADABLE, digest, require_keys, write_atomically

RUN = "run.json"
"""The file that describes what the folder of a problem contains."""


@dataclass
class Result:
    """The result of one method on one problem.

    Attributes:
        problem: Name of the problem.
        method: Name of the method.
        label: The method as printed in tables.
        seeds: The seeds, in the order of every list per seed.
        epochs: Trained epochs.
        metrics: Metrics on the test set with the last weights: name to one number per seed.
        history: Learning curves: ``epoch`` and, per evaluated epoch, a list with one number per seed.
        timing: ``train_s`` for all seeds together, ``setup_s`` the part of it for compiling and capturing,
            ``test_ms`` for one seed and the whole test set.
        figures: The data of the figures.
        environment: The command, versions and device that produced the numbers.
        recipe: The training recipe: ``"published"`` or ``"best"``.
        differs: The differences from the published training.
        failure: Why the run failed, if it did; it then has no metrics.
    """

    problem: str
    method: str
    label: str
    seeds: list[int]
    epochs: int
    metrics: dict[str, list[float]]
    history: dict[str, list[Any]]
    timing: dict[str, float]
    figures: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    recipe: str = "published"
    differs: str = ""
    failure: str = ""

    @property
    def key(self) -> str:
        """The name of the method, followed by the recipe if it is not the published one."""
        return self.method if self.recipe == "published" else f"{self.method}-{self.recipe}"


ENTRIES = {
    "problem": str,
    "method": str,
    "label": str,
    "seeds": list,
    "epochs": int,
    "metrics": dict,
    "history": dict,
    "timing": dict,
}
"""The entries of every result file and their types."""
LATER = {"figures": dict, "environment": dict, "recipe": str, "differs": str, "failure": str}
"""Entries that files of the first versions may lack."""


def write_json(path: Path, content: Any, indent: int | None = None) -> None:
    """Write JSON atomically, so that the file is never seen half written; `indent` for files that people read."""
    separators = (",", ":") if indent is None else (",", ": ")
    write_atomically(path, (json.dumps(content, indent=indent, separators=separators) + "\n").encode())


def write_result(path: Path, result: Result) -> None:
    """Write one result file, with a digest of its content."""
    content = json.loads(json.dumps(asdict(result)))  # as it will be read: JSON turns keys into strings
    write_json(path, content | {DIGEST: digest({}, content)})


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or raise an error that says what is wrong with the file."""
    try:
        content = json.loads(path.read_text())
    except UNREADABLE as error:
        raise FileError(f"{path}: not a readable JSON file; {error}") from error
    if not isinstance(content, dict):
        raise FileError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def read_result(path: Path) -> Result:
    """Read one result file and check its digest and types; files of the first versions have no digest."""
    content = read_json(path)
    sealed = content.pop(DIGEST, None)
    if sealed is not None and sealed != digest({}, content):
        raise FileError(f"{path}: damaged; what it says does not match its digest")
    require_keys(content, ENTRIES | {name: kind for name, kind in LATER.items() if name in content}, path)
    _require_numbers(content, path)
    try:
        return Result(**content)
    except TypeError as error:
        raise FileError(f"{path}: not a result file; {error}") from error


def _require_numbers(content: dict[str, Any], path: Path) -> None:
    """Refuse metrics that are not lists of numbers, times that are not numbers, and curves that are not lists."""
    for name, values in content["metrics"].items():
        require_keys({name: values}, {name: list}, path)
        numbered = {f"{name} {place}": value for place, value in enumerate(values)}
        require_keys(numbered, dict.fromkeys(numbered, int | float), path)
    require_keys(content["timing"], dict.fromkeys(content["timing"], int | float), path)
    require_keys(content["history"], dict.fromkeys(content["history"], list), path)


# The stamp of every recorded number: command, revision, versions, device, threads, date and seed.


REVISION = "HARDNET_REVISION"
"""The environment variable with the revision, for machines that have a copy of the files but no git checkout."""


def environment(device: torch.device | str, seed: int | None = None) -> dict[str, Any]:
    """The environment in which a number was produced.

    `revision` is None outside a checkout unless the environment variable `REVISION` is set; `seed` is None where a
    result lists its own seeds.
    """
    device = torch.device(device)
    return {
        "command": command(),
        "revision": os.environ.get(REVISION) or revision(Path(__file__)),
        "versions": _versions(device),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "threads": torch.get_num_threads(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "seed": seed,
    }


def command() -> str:
    """The command line, without the path of the program."""
    program = Path(sys.argv[0])
    name = f"python -m {program.parent.name}" if program.name == "__main__.py" else program.name
    return shlex.join([*name.split(), *sys.argv[1:]])


def revision(file: Path) -> str | None:
    """The commit of the checkout that tracks a file, marked if the checkout has changes; None if it is not tracked."""
    folder = file.resolve().parent
    if _git(folder, "ls-files", "--error-unmatch", file.name) is None:
        return None
    commit, changes = _git(folder, "rev-parse", "--short=10", "HEAD"), _git(folder, "status", "--porcelain", "-uno")
    return f"{commit} with changes" if changes else commit


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of git; None if git is missing or fails."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def processor() -> str:
    """The name of the CPU, if the system provides it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _versions(device: torch.device) -> dict[str, str]:
    """Python, torch, hardnet; on a GPU also Triton, which compiles the kernels."""
    known = {"python": platform.python_version(), "torch": torch.__version__, "hardnet": hardnet.__version__}
    return known | {"triton": metadata.version("triton")} if device.type == "cuda" and find_spec("triton") else known
