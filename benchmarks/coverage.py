"""The share of each room that the tests execute: ``python -m benchmarks.coverage REPORT OUT [NOTE]``.

REPORT is the file that ``pytest --cov-report=json`` wrote. The tracer does not see code compiled by numba or Triton, so
kernels that ran compiled count as missed.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path, PurePath
from typing import Any

from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.results import environment, read_json, write_json


def by_room(files: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Statements, executed statements, and percent, for each folder or file directly below the package."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, content in files.items():
        parts = PurePath(name).parts
        room = parts[len(parts) - parts[::-1].index("hardnet")].removesuffix(".py")
        counts[room][0] += content["summary"]["num_statements"]
        counts[room][1] += content["summary"]["covered_lines"]
    return {room: _share(*count) for room, count in sorted(counts.items())}


def _share(statements: int, run: int) -> dict[str, float]:
    """The entry of one room; a room without statements counts as fully executed."""
    return {"statements": statements, "run": run, "percent": round(100 * run / statements, 1) if statements else 100.0}


def record(report: Path, out: Path, note: str | None = None) -> dict[str, Any]:
    """Write the shares with their stamp and return them."""
    rooms = by_room(read_json(report)["files"])
    total = _share(*(int(sum(room[key] for room in rooms.values())) for key in ("statements", "run")))
    result = {"environment": environment("cpu"), "note": note, "total": total, "rooms": rooms}
    write_json(out, result, indent=1)
    return result


def main() -> None:
    """Record the shares and print a table."""
    result = record(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4])
    rows = [[name, *room.values()] for name, room in (result["rooms"] | {"in all": result["total"]}).items()]
    print(table_text(["room", "statements", "run", "per cent"], rows))


if __name__ == "__main__":
    main()
