"""The stamp of every recorded number: command, revision, versions, device, threads, date and seed."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import hardnet

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
