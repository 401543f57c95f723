"""ENFORCE 1.0.4 beside the nonlinear layer: violation, distance and time on the same equalities and raw outputs.

It runs in an environment of its own: ``pip install torch enforce-nn==1.0.4``, then with ``PYTHONPATH=src``
``python -m benchmarks.nonlinear_peers --out results/bench/nonlinear_peers.json``. ENFORCE's projection is called by
itself, in float64, without weights, until the largest residual of the batch is below 1e-6 (its own rule at inference)
or after its 100 iterations. Times are those that the process spent on the processor, the least of three.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hardnet as hn
from benchmarks.nonlinear import SEED, Family, families, timed
from hardnet.experiments.results import write_json
from hardnet.experiments.stamp import environment

ROUNDS, MODES = 3, ("nearest", "retract")
NAMES = ("ellipsoid, noise 2", "hyperbola, noise 2", "torus, noise 2", "parabola, noise 2", "rotation, noise 0.3")
NAMES += ("column, noise 0.2",)


def enforce(family: Family) -> Tensor:
    """ENFORCE's projection of the raw outputs."""
    from enforce.core.config import ENFORCEConfig
    from enforce.core.model import ENFORCE

    raw = family.raw
    x = raw.new_zeros(len(raw), 1) if family.x is None else family.x
    sizes = ENFORCEConfig(input_neurons=x.shape[-1], output_neurons=raw.shape[-1], hidden_neurons=4)
    scaling = [(torch.zeros(part.shape[-1]), torch.ones(part.shape[-1])) for part in (x, raw)]
    values: Any = family.constraint.values
    model = ENFORCE(*scaling, lambda x, y: values(y, x), config=sizes, weighting_option=1)
    for name in ("mean_input", "std_input", "mean_output", "std_output"):
        setattr(model, name, getattr(model, name).double())
    y = raw.clone().requires_grad_()
    model.compute_dc_dy(x, y)
    y = model.project(x, y)
    return model.ada_np(x, y, tolerance_mode="max", tolerance_value=1e-6)[0].detach()


def measured(family: Family) -> dict[str, Any]:
    """Every tool on one family."""
    layers = {mode: hn.layers.NonlinearLayer(family.constraint, mode=mode, on_failure="best") for mode in MODES}
    tools = {f"hardnet {mode}": lambda own=layer: own.solve(family.raw, family.x).y for mode, layer in layers.items()}
    found, away = {}, {}
    for name, work in (*tools.items(), ("enforce 1.0.4", lambda: enforce(family))):
        milliseconds, y = timed(work, "cpu", ROUNDS)
        value = family.constraint.violation(y, family.x).amax(-1)
        away[name] = torch.linalg.vector_norm(y - family.raw, dim=-1)
        farther = (away[name] / away["hardnet nearest"])[value <= 1e-5]
        found[name] = {"ms": milliseconds, "largest violation": value.nan_to_num(torch.inf).amax().item()}
        found[name] |= {"over 1e-6": (~(value <= 1e-6)).double().mean().item(), "farther, mean": farther.mean().item()}
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nonlinear_peers", description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--note", help="a sentence about the circumstances")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cases, results = families(), {}
    for name in NAMES:
        results[name] = measured(cases[name])
        print(name, results[name], flush=True)
    if asked.out is not None:
        content = {"environment": environment("cpu", SEED), "clock": "process", "note": asked.note}
        write_json(asked.out, content | {"families": results}, indent=1)


if __name__ == "__main__":
    main()
