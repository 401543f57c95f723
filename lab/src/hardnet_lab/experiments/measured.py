"""``hardnet methods --measure``: every method on every standard set, measured on this machine.

For each pair: the largest violation reached, and the time per 1000 samples forward and backward; or, where the method
cannot enforce the set, the reason from its error message.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import HardNetError
from hardnet.kernels.cpu.ready import waiting
from hardnet.layers.base import Layer
from hardnet.layers.table import LAYERS
from hardnet.sets import Affine, Box, Equality
from hardnet.sets.base import ConstraintSet
from hardnet.sets.curved import LMI, Ball, SecondOrderCone
from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.timing import time_each

SAMPLES = 1000
SLOW = 50.0
"""Milliseconds above which one call is enough: iterative methods on 1000 samples would take most of the time."""


@dataclass(frozen=True)
class Standard:
    """A set to measure on: `outputs` is n, `inputs` the length of x where the set depends on it."""

    name: str
    constraint: ConstraintSet
    outputs: int
    inputs: int | None = None


def standard_sets(seed: int = 0) -> list[Standard]:
    """Box and budget, barrier rows, polyhedra with fewer and more rows than outputs, equalities, cones, ball, LMI."""
    draw = _drawer(seed)
    zeros, ones = torch.zeros(20, dtype=torch.float64), torch.ones(20, dtype=torch.float64)
    budget = Box(zeros, ones) & Affine(ones.unsqueeze(0), upper=torch.full((1,), 5.0, dtype=torch.float64))
    mirror = draw(5, 4, 4)
    return [
        Standard("box and budget, n = 20", budget, 20),
        Standard("barrier rows A(x) y <= b(x), n = m = 2", Affine(_barrier_rows, upper=_barrier_bound), 2, 5),
        Standard("polyhedron, n = 20, m = 10", Affine(draw(10, 20), lower=-ones[:10], upper=ones[:10]), 20),
        Standard("polyhedron, n = 10, m = 30", Affine(draw(30, 10), upper=torch.ones(30, dtype=torch.float64)), 10),
        Standard("equalities A y = b(x), n = 20, m = 5", Equality(draw(5, 20), _right_hand_side), 20, 5),
        Standard("polyhedral cone A y <= 0, n = 10, m = 5", Affine(draw(5, 10), upper=zeros[:5]), 10),
        Standard("ball, n = 20", Ball(zeros, 1.0), 20),
        Standard("second-order cone, n = 10", SecondOrderCone(draw(4, 10), draw(4), draw(10), 5.0), 10),
        Standard("LMI 4 x 4, n = 5", LMI(torch.eye(4, dtype=torch.float64), (mirror + mirror.mT) / 2), 5),
    ]


@waiting()
def measure(device: str = "cpu", names: Sequence[str] | None = None, seconds: float = 0.1, seed: int = 0) -> list[dict]:
    """Measure methods (all of them by default) on every standard set, in float64.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        names: The methods.
        seconds: Time to spend on each pair.
        seed: Seed of the random sets and raw outputs.

    Returns:
        One row per pair: ``set, method, violation, forward_ms, backward_ms, refused``. Times are median milliseconds
        per 1000 samples (processor time on a CPU). `refused` is None, or the reason, in which case the other values
        are None.
    """
    return list(_pairs(device, names or list(LAYERS), seconds, seed))


def table(rows: Sequence[dict]) -> str:
    """The rows as a Markdown table."""
    headers = ["set", "method", "largest violation", "forward (ms)", "backward (ms)", "refused"]
    keys = ["set", "method", "violation", "forward_ms", "backward_ms", "refused"]
    return table_text(headers, [[row[key] for key in keys] for row in rows])


def overview(rows: Sequence[dict]) -> str:
    """One line per set, one column per method: ``forward + backward ms (violation)``, a dash where refused."""
    names = list(dict.fromkeys(row["method"] for row in rows))
    lines: dict[str, list[object]] = {}
    for row in rows:
        lines.setdefault(row["set"], [row["set"]]).append(_summary(row))
    return table_text(["set", *names], list(lines.values()))


def _summary(row: dict) -> str | None:
    """One cell of the overview."""
    if row["refused"] is not None:
        return None
    total = row["forward_ms"] + row["backward_ms"]
    return f"{total:.0f} ({row['violation']:.1g})" if total >= 10 else f"{total:.2g} ({row['violation']:.1g})"


def _pairs(device: str, names: Sequence[str], seconds: float, seed: int) -> Iterator[dict]:
    """The rows of `measure`, one at a time."""
    for standard in standard_sets(seed):
        standard.constraint.to(device)
        for name in names:
            row: dict[str, Any] = {"set": standard.name, "method": name, "refused": None}
            row |= {"violation": None, "forward_ms": None, "backward_ms": None}
            try:
                yield row | _measure_pair(LAYERS[name](standard.constraint), standard, device, seconds, seed)
            except HardNetError as refusal:
                yield row | {"refused": str(refusal).removeprefix(f"method '{name}' cannot enforce this set: ")}


def _measure_pair(layer: Layer, standard: Standard, device: str, seconds: float, seed: int) -> dict[str, float]:
    """The largest violation and the two times of one layer."""
    draw = _drawer(seed + 1)
    raw_dim = standard.outputs if layer.raw_dim is None else layer.raw_dim
    layer.eval()
    raw = (2 * draw(SAMPLES, raw_dim)).to(device).requires_grad_()
    x = None if standard.inputs is None else draw(SAMPLES, standard.inputs).to(device)
    weight = draw(SAMPLES, standard.outputs).to(device)
    works = {
        "forward": lambda: layer(raw.detach(), x),
        "both": lambda: torch.autograd.grad((layer(raw, x) * weight).sum(), raw),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = works["forward"]()
        times = time_each(works, device, seconds, rounds=20, slow=SLOW, processor=True)
    violation = layer.constraint.violation(y, x).max().item()
    forward = times["forward"].milliseconds * 1000 / SAMPLES
    return {
        "violation": math.inf if math.isnan(violation) else violation,
        "forward_ms": forward,
        "backward_ms": max(times["both"].milliseconds * 1000 / SAMPLES - forward, 0.0),
    }


def _drawer(seed: int) -> Any:
    """A function that draws standard normal float64 tensors from its own stream."""
    stream = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=stream, dtype=torch.float64)


def _barrier_rows(x: Tensor) -> Tensor:
    """Two rows for two controls, like those of two control barrier functions; never linearly dependent."""
    heading = torch.stack([x[..., 0].cos(), x[..., 0].sin()], dim=-1)
    side = torch.stack([-heading[..., 1], heading[..., 0]], dim=-1)
    return torch.stack([heading, side + 0.3 * heading], dim=-2)


def _barrier_bound(x: Tensor) -> Tensor:
    """The bound of each barrier row."""
    return x[..., 1:3].abs()


def _right_hand_side(x: Tensor) -> Tensor:
    """The input itself."""
    return x
