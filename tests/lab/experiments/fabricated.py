"""Small made-up result files in the format that training writes."""

import json
import math

import torch

from hardnet_lab.problems import PROBLEMS, Piecewise, gradient_path

LABELS = {"nn": "NN", "soft": "Soft-Constrained", "dc3": "DC3", "aff": "HardNet-Aff"}
METRICS = {
    "mse": 0.2,
    "cost": 520.0,
    "objective": -14.0,
    "mean_violation": 0.4,
    "ineq_max_violation": 1.0,
    "ineq_mean_violation": 0.1,
    "ineq_violated": 3.0,
    "eq_max_violation": 1.0,
    "eq_mean_violation": 0.1,
    "eq_violated": 50.0,
}
NEEDED = {"pwc": ("mse",), "pwcbox": ("mse",), "opt": ("objective",), "cbf": ("cost",)}


def result(problem, method, seeds=5):
    """One result; HardNet-Aff keeps its constraints, the others do not."""
    exact = method == "aff"
    names = [name for name in METRICS if "violat" in name] + list(NEEDED[problem])
    metrics = {
        name: [0.0 if exact and "violat" in name else METRICS[name] + 0.01 * s for s in range(seeds)] for name in names
    }
    metrics["max_violation"] = [2e-16 if exact else 1.0] * seeds
    epochs = list(range(0, 101, 10))
    curve = [[METRICS[NEEDED[problem][0]] + math.exp(-e / 20) * (1 + 0.1 * s) for s in range(seeds)] for e in epochs]
    return {
        "problem": problem,
        "method": method,
        "label": LABELS[method],
        "seeds": list(range(1, seeds + 1)),
        "epochs": 1000,
        "metrics": metrics,
        "history": {
            "epoch": epochs,
            "loss": curve,
            "objective": curve,
            "violation": [[2e-16 if exact else math.exp(-e / 30)] * seeds for e in epochs],
        },
        "timing": {"train_s": 12.3, "test_ms": 0.21},
        "figures": {moment: picture(problem, method, moment == "last") for moment in ("first", "last")},
        "environment": {
            "command": f"hardnet reproduce {problem}",
            "versions": {"python": "3.11", "torch": "2.13"},
            "device": "cpu",
            "date": "2026-11-15 10:00 UTC",
        },
    }


def picture(name, method, last):
    problem = PROBLEMS[name]()
    shift = sum(method.encode()) % 7 / 7
    if isinstance(problem, Piecewise):
        x = problem.test.squeeze(-1)
        y = problem.target(problem.test).squeeze(-1) + shift * x * x if last else shift + torch.sin(3 * x)
        return {"y": [y.tolist()]}
    if name == "cbf":
        line = torch.linspace(0, 1, 40)
        path = torch.stack([-3.7 * (1 - line), 0.2 - (1.2 + shift) * (math.pi * line).sin()], -1)
        return {"trajectory": [path.tolist()]}
    return {}


def gradient():
    clamp = lambda raw: torch.cat([raw[:, :1], raw[:, 1:].clamp_max(0.9)], 1)
    paths = []
    for case in gradient_path.CASES:
        path = gradient_path.descend(clamp, case)
        paths.append(case._asdict() | {"raw": path.raw.tolist(), "y": path.y.tolist()})
    head = {"problem": "gradient", "method": "aff", "label": "HardNet-Aff", "seeds": [1], "epochs": 100}
    return head | {"metrics": {}, "history": {}, "timing": {}, "figures": {"paths": paths}, "environment": {}}


def write_runs(folder, problems=("pwc", "pwcbox", "opt", "cbf"), methods=tuple(LABELS)):
    """A folder of results."""
    for problem in problems:
        for method in methods:
            write(folder / problem / f"{method}.json", result(problem, method))
        write(folder / problem / "run.json", {"problem": problem})
    write(folder / "gradient" / "aff.json", gradient())
    return folder


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
