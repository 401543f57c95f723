"""What the closed form and the nearest point cost on a class of devices, as it was recorded; read by `explain`.

Figures of ``results/bench/methods_cpu.json`` and ``results/bench/nearest_h200.json``; tests compare them.

Called by `hardnet.layers.auto`.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple


class Cost(NamedTuple):
    """Milliseconds of forward and backward at m rows on n outputs: the closed form and the nearest point."""

    n: int
    m: int
    closed: float
    nearest: float


class Record(NamedTuple):
    """Where, and for how many samples, costs were recorded."""

    where: str
    samples: int
    costs: tuple[Cost, ...]


RECORDS = {
    "cpu": Record(
        "one busy CPU core, float64", 1000, (Cost(2, 2, 1.23, 1.32), Cost(10, 5, 0.87, 18.8), Cost(20, 10, 1.28, 62.4))
    ),
    "cuda": Record(
        "an H200, float32", 10**6, (Cost(2, 2, 0.0391, 0.0528), Cost(3, 3, 0.148, 0.214), Cost(4, 4, 0.225, 0.326))
    ),
}


def recorded(device: str, n: int, m: int) -> str | None:
    """The recorded costs at the size nearest to m rows on n outputs, in words; None for a device without a record."""
    record = RECORDS.get(device)
    if record is None:
        return None
    cost = min(record.costs, key=lambda one: abs(log(one.n / max(n, 1))) + abs(log(one.m / max(m, 1))))
    return (
        f"recorded on {record.where}, {record.samples} samples of {cost.m} rows on {cost.n} outputs, forward and "
        f"backward: nearest point {cost.nearest:g} ms, closed form {cost.closed:g} ms"
    )
