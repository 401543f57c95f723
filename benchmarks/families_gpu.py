"""The closed form with an A per sample on a GPU, by every family of kernels and layout that can compute it.

``python -m benchmarks.families_gpu [--out FILE]`` shows what each size would cost with another family or layout than
its own, and so which could be dropped. Float32, replays of a captured graph; `plan` chooses by its limits.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import hardnet as hn
from benchmarks.device import replayed
from benchmarks.problems import Size
from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.results import environment, write_json

SIZES = ((10**6, 2, 2), (10**5, 10, 5), (10**5, 16, 8), (32768, 64, 4))
"""Samples, outputs and rows."""
THREADS = "affine_few, threads"
LIMITS = {THREADS: (64, 64, 8), "affine_few, tiles": (0, 0, 8), "affine_blocks": (0, 0, 0)}
"""Limits that select a family: most numbers that a thread holds, forward and backward, and most unrolled rows."""


@contextmanager
def served_by(family: str) -> Iterator[None]:
    """Inside the block, any A that fits this family is handled by it."""
    from hardnet.kernels.gpu import affine_kernels

    names = "TINY", "TINY_BACKWARD", "FEW_ROWS"
    usual = [getattr(affine_kernels, name) for name in names]
    forget = lambda: (affine_kernels.plan.cache_clear(), affine_kernels.launcher.cache_clear())
    for name, limit in zip(names, LIMITS[family], strict=True):
        setattr(affine_kernels, name, limit)
    forget()
    try:
        yield
    finally:
        for name, limit in zip(names, usual, strict=True):
            setattr(affine_kernels, name, limit)
        forget()


def measure() -> list[dict[str, Any]]:
    """Milliseconds of each size and family, forward and with backward."""
    rows = []
    for batch, n, m in SIZES:
        for family in LIMITS:
            if family == THREADS and (m * n > LIMITS[family][0] or n > 16):
                continue
            with served_by(family):
                found = replayed(hn.functional.enforce_affine, Size(batch, n, m), torch.float32)
            rows.append({"samples": batch, "m": m, "n": n, "family": family} | found)
            print(rows[-1], flush=True)
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, and write JSON to `--out` if given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families_gpu", description=__doc__)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    result = {"environment": environment("cuda", 0), "rows": measure()}
    names = ["samples", "m", "n", "family", "forward_ms", "both_ms"]
    print(table_text(names, [[row[name] for name in names] for row in result["rows"]]))
    if asked.out is not None:
        write_json(asked.out, result, indent=1)


if __name__ == "__main__":
    main()
