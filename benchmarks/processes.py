"""The processes of a comparison: one per set of sources, with requests and answers as lines of JSON."""

from __future__ import annotations

import io
import json
import os
import select
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.tools import BARE, LAST
from hardnet.errors import HardNetError

ROOT = Path(__file__).parents[1]
REVISIONS = ROOT / "build" / "revisions"
PATIENCE = 300.0
"""Timeout of an answer in seconds; then the process is ended, and the result is an error."""


class Process:
    """A worker, started at the first request and restarted after it ended."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment, self.process = environment, None

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer, or an error if there was none."""
        process = self.process = self.process or self._started()
        ready: Any = True
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
            line = process.stdout.readline() if ready else ""
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        self.end()
        return {"error": "the process ended" if ready else f"no answer in {PATIENCE:.0f} s"}

    def must(self, **request: Any) -> dict[str, Any]:
        """The answer to a request that must not fail."""
        found = self.ask(**request)
        if "error" in found:
            raise HardNetError(f"{request['do']}: {found['error']}")
        return found

    def end(self) -> None:
        """End the worker if it is running."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def _started(self) -> Any:
        command = [sys.executable, "-m", "benchmarks.worker"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=ROOT, env=os.environ | self.environment, **pipes)


@contextmanager
def start(name: str, last: Path | None = None) -> Iterator[Process]:
    """A process by its name in `tools`; `last` is the folder with the sources of the last revision."""
    sources = last if name == LAST and last is not None else ROOT / "src"
    path = os.pathsep.join(str(folder) for folder in (sources, ROOT / "lab" / "src", ROOT))
    environment = {"PYTHONPATH": path} | ({"HARDNET_NUMBA": "0"} if name == BARE else {})
    process = Process(environment)
    try:
        yield process
    finally:
        process.end()


def archived(revision: str) -> tuple[str, Path]:
    """The commit of a revision, and a folder with its sources, which keeps numba's cache between runs.

    Without git, the folder of a checkout or an archive may be passed instead.
    """
    if Path(revision).is_dir():
        return Path(revision).name, Path(revision).resolve() / "src"
    commit = _git("rev-parse", "--short=10", f"{revision}^{{commit}}").decode().strip()
    folder = REVISIONS / commit
    if not folder.exists():
        with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, "src"))) as archive:
            archive.extractall(folder, filter="data")
    return commit, folder / "src"


def last_tag() -> str | None:
    """The newest tag reachable from this commit; None if there is none."""
    try:
        return _git("describe", "--tags", "--abbrev=0").decode().strip()
    except HardNetError:
        return None


def _git(*arguments: str) -> bytes:
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"") or b""
        raise HardNetError(f"git {arguments[0]}: {said.decode().strip() or error}") from error
