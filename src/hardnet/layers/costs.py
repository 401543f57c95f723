"""Recorded costs of the closed form and the nearest point for a type of device; read by `explain`.

``costs.json`` is generated from the result files by ``python -m benchmarks.pages``.
"""

from __future__ import annotations

import json
from math import log
from pathlib import Path


def recorded(device: str, n: int, m: int) -> str | None:
    """The recorded costs at the size nearest to m rows on n outputs, in words; None for a device without a record."""
    record = json.loads(Path(__file__).with_suffix(".json").read_text()).get(device)
    if record is None:
        return None
    cost = min(record["costs"], key=lambda one: abs(log(one["n"] / max(n, 1))) + abs(log(one["m"] / max(m, 1))))
    return (
        f"recorded on {record['where']}, {record['samples']} samples of {cost['m']} rows on {cost['n']} outputs, "
        f"forward and backward: nearest point {cost['nearest']:g} ms, closed form {cost['closed']:g} ms"
    )
