"""Run one benchmark: ``python -m benchmarks TASK``; ``--help`` lists the tasks."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks.compare import main_table as compare
from benchmarks.processes import last_tag
from benchmarks.tools import TASKS

ALONE = (
    "cliffs",
    "device",
    "conditioning",
    "curved",
    "families",
    "house",
    "methods",
    "nonlinear",
    "policy",
    "power",
    "scale",
    "training",
)
"""Benchmarks that run only hardnet, without a comparison."""


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The parsed options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("task", choices=(*TASKS, *ALONE))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument(
        "--nearest-only", action="store_true", help="of device: only the nearest point and its neighbor"
    )
    beside = parser.add_argument_group("closed-form and nearest-point")
    beside.add_argument(
        "--revision", default="", help="commit or folder of ours, to stand beside this tree; the last tag by default"
    )
    beside.add_argument("--peers", help="comma-separated names; every installed one by default")
    beside.add_argument("--seconds", type=float, default=3.0, help="to spend on a size and pass")
    beside.add_argument("--note", help="a sentence about the circumstances")
    return parser.parse_args(arguments)


def main() -> None:
    """Run one benchmark, print its tables and write its figures."""
    asked = parsed()
    options: dict[str, Any] = {"device": asked.device, "out": asked.out}
    if asked.task in ALONE:
        if asked.task == "device":  # the revision is passed for machines without a git checkout
            options |= {"revision": asked.revision or None, "nearest_only": asked.nearest_only}
        import_module(f"benchmarks.{asked.task}").main_table(**options)
        return
    peers = None if asked.peers is None else [name.strip() for name in asked.peers.split(",") if name.strip()]
    revision = asked.revision or last_tag()
    if revision is None:
        print("no tag and no --revision (make bench REV=...): no earlier revision of ours stands beside this tree")
    options |= {"peers": peers, "revision": revision, "seconds": asked.seconds, "note": asked.note}
    compare(asked.task, **options)


if __name__ == "__main__":
    main()
