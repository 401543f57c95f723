"""The closed form with one A for all samples on a CPU, by every family of compiled code that can compute it.

``python -m benchmarks families`` shows what each size would cost with another family than its own, and so which family
could be dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardnet.functional import enforce_affine, factorize
from hardnet.kernels.cpu import affine, launch
from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.results import environment, write_json
from hardnet_lab.experiments.timing import time_each

SIZES = ((1, 2, 2), (1000, 2, 2), (8192, 2, 2), (1000, 5, 10), (8192, 5, 10), (1000, 20, 40), (1000, 50, 100))
"""Samples, rows and outputs."""
ONE_PASS, PRODUCTS, TORCH = "affine_few", "affine_shared", "plain torch"


@contextmanager
def served_by(family: str) -> Iterator[None]:
    """Inside the block, a shared A of any size is handled by this family."""
    most, numba = affine.MOST_SHARED_NUMBERS, launch.HAS_NUMBA
    affine.MOST_SHARED_NUMBERS = math.inf if family == ONE_PASS else 0  # pyright: ignore[reportAttributeAccessIssue]
    launch.HAS_NUMBA = numba and family != TORCH
    try:
        yield
    finally:
        affine.MOST_SHARED_NUMBERS, launch.HAS_NUMBA = most, numba


def work(family: str, numbers: tuple[Tensor, Tensor, Tensor, Tensor], both: bool) -> Callable[[], Tensor]:
    """One call with a kept factor of A, as in a layer, and with the gradient of raw if `both`."""
    raw, A, lower, upper = numbers
    factor, leaf = factorize(A), raw.clone().requires_grad_(both)

    def call() -> Tensor:
        with served_by(family):
            y = enforce_affine(leaf, A, lower, upper, factor=factor)
            return torch.autograd.grad(y.sum(), leaf)[0] if both else y

    return call


def measure(seconds: float = 1.0, seed: int = 0) -> list[dict[str, Any]]:
    """Milliseconds of each size and family, in float64."""
    rows = []
    for samples, m, n in SIZES:
        draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        raw, A, upper = draw(samples, n), draw(m, n), draw(samples, m)
        for both in (False, True):
            works = {family: work(family, (raw, A, upper - 1, upper), both) for family in (ONE_PASS, PRODUCTS, TORCH)}
            found = time_each(works, "cpu", seconds=seconds, rounds=400, processor=True)
            row = {"samples": samples, "m": m, "n": n, "passes": "both" if both else "forward"}
            rows.append(row | {family: timing.milliseconds for family, timing in found.items()})
    return rows


def main_table(device: str = "cpu", out: Path | None = None, seed: int = 0) -> dict[str, Any]:
    """Run on one thread of a CPU, print the table, write JSON to `out` if given, and return the data."""
    torch.set_num_threads(1)
    result = {"environment": environment("cpu", seed), "rows": measure(seed=seed)}
    names = ["samples", "m", "n", "passes", ONE_PASS, PRODUCTS, TORCH]
    print(table_text(names, [[row.get(name) for name in names] for row in result["rows"]]))
    if out is not None:
        write_json(out, result, indent=1)
    return result
