"""``python -m benchmarks affine|projection|training|roofline|scale [--device cuda] [--peers a,b] [--out FILE]``."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

NAMES = ("affine", "projection", "training", "roofline", "scale")


def main() -> None:
    """Run one benchmark, print its tables and write its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("what", choices=NAMES)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--peers", help="comma-separated names; every installed one by default")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    asked = parser.parse_args()
    options: dict[str, Any] = {"device": asked.device, "out": asked.out}
    if asked.peers is not None:
        options["peers"] = [name.strip() for name in asked.peers.split(",")]
    import_module(f"benchmarks.{asked.what}").main_table(**options)


if __name__ == "__main__":
    main()
