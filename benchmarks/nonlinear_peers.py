"""ENFORCE 1.0.4, KKT-HardNet 1.0.2 and our nonlinear layer: violation, distance and time on the same equalities.

It needs its own environment: ``pip install torch numba enforce-nn==1.0.4``, then with ``PYTHONPATH=src``
``python -m benchmarks.nonlinear_peers --out results/bench/nonlinear_peers.json``. KKT-HardNet needs JAX and runs in
another process: ``--cases cases.npz`` writes the input of `benchmarks/nonlinear_kkt.py`, ``--kkt answers.npz`` reads
its output. ENFORCE's projection is called directly, in float64, without weights, until the largest residual of the
batch is below 1e-6 (its own rule at inference) or for at most its 100 iterations. Times are processor time, the minimum
of three.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hardnet as hn
from benchmarks.curved import Case
from benchmarks.nonlinear import SEED, families, timed
from hardnet_lab.experiments.results import environment, write_json

ROUNDS, MODES = 3, ("nearest", "retract")
NAMES = ("ellipsoid, noise 2", "hyperbola, noise 2", "torus, noise 2", "parabola, noise 2", "rotation, noise 0.3")
NAMES += ("column, noise 0.2",)


def enforce(family: Case) -> Tensor:
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


def measured(family: Case, others: dict[str, tuple[float, Tensor]]) -> dict[str, Any]:
    """Every tool on one family; `others` are tools that ran elsewhere: milliseconds and points by name."""
    layers = {
        mode: hn.layers.NonlinearLayer(family.constraint, mode=mode, on_infeasible="nearest", on_unsolved="best")
        for mode in MODES
    }
    answer = lambda layer: layer.solve(family.raw, family.x).y
    tools: dict[str, Callable[[], Tensor]] = {f"hardnet {mode}": partial(answer, own) for mode, own in layers.items()}
    tools["enforce 1.0.4"] = partial(enforce, family)
    answers = {name: timed(work, "cpu", ROUNDS) for name, work in tools.items()} | others
    nearest = torch.linalg.vector_norm(answers["hardnet nearest"][1] - family.raw, dim=-1)
    return {name: judged(family, nearest, *answer) for name, answer in answers.items()}


def judged(family: Case, nearest: Tensor, milliseconds: float, y: Tensor) -> dict[str, float]:
    """Quality of points: the largest violation, the share over 1e-6, and how much farther the feasible ones are."""
    value = family.constraint.violation(y, family.x).amax(-1)
    farther = (torch.linalg.vector_norm(y - family.raw, dim=-1) / nearest)[value <= 1e-5]
    found = {"ms": milliseconds, "largest violation": value.nan_to_num(torch.inf).amax().item()}
    return found | {"over 1e-6": (~(value <= 1e-6)).double().mean().item(), "farther, mean": farther.mean().item()}


def write_cases(path: Path, cases: dict[str, Case]) -> None:
    """Write raw outputs and inputs for tools that run elsewhere."""
    import numpy

    parts = {f"{name}/raw": cases[name].raw for name in NAMES}
    parts |= {f"{name}/x": torch.zeros_like(raw[:, :1]) for name in NAMES if (raw := cases[name].raw) is not None}
    parts |= {f"{name}/x": x for name in NAMES if (x := cases[name].x) is not None}
    arrays: dict[str, Any] = {key: part.numpy() for key, part in parts.items()}
    numpy.savez(path, **arrays)


def read_answers(path: Path | None, name: str) -> dict[str, tuple[float, Tensor]]:
    """The answers of `benchmarks/nonlinear_kkt.py` for one family."""
    if path is None:
        return {}
    import numpy

    found = numpy.load(path)
    tools = {key.split("/")[1] for key in found.files if key.startswith(f"{name}/")}
    read = lambda tool, part: torch.from_numpy(found[f"{name}/{tool}/{part}"])
    return {tool: (read(tool, "ms").item(), read(tool, "y")) for tool in sorted(tools)}


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nonlinear_peers", description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cases", type=Path, help="write the cases there and do nothing else")
    parser.add_argument("--kkt", type=Path, help="answers of KKT-HardNet")
    parser.add_argument("--note", help="a sentence about the circumstances")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cases, results = families(), {}
    if asked.cases is not None:
        write_cases(asked.cases, cases)
    for name in () if asked.cases is not None else NAMES:
        results[name] = measured(cases[name], read_answers(asked.kkt, name))
        print(name, results[name], flush=True)
    if asked.out is not None:
        content = {"environment": environment("cpu", SEED), "clock": "process", "note": asked.note}
        write_json(asked.out, content | {"families": results}, indent=1)


if __name__ == "__main__":
    main()
