"""Counts silent wrong answers: finite outputs, without error or warning, that are outside of C(x) or not nearest.

``python tests/campaign.py --samples 1000000 --seed 0 --out results/campaign.json``

Every round draws a size, units, a conditioning and a dtype from its own seed, so that a failure is found again by it:
``--only FAMILY:SEED``. The file is written every few seconds, and a run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hardnet as hn
from hardnet_lab.experiments.results import environment

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it can be run as a script

from tests.campaigns import curved, flat, modes, shapes
from tests.campaigns.drawing import Draw, Round
from tests.campaigns.oracles import NEAREST, examine

KEPT = 50
"""How many failures of a family are kept with their seeds."""
FAMILIES: dict[str, Callable[[Draw, int], Round]] = {
    "closed form": flat.closed_form,
    "projection": flat.polyhedron,
    "box and rows": flat.boxed_rows,
    "simplex": flat.simplex,
    "curved": curved.curved,
    "matrix inequality": curved.matrix_inequality,
    "cones": curved.cones,
    "intersection": curved.intersection,
    "curved float32": curved.curved_float32,
    "nonlinear": curved.nonlinear,
    "relaxed": flat.relaxed,
    "structured": modes.structured,
    "sparse": modes.sparse,
    "metric": modes.metric,
    "tangent": modes.tangent,
    "strict": modes.strict,
    "half precision": modes.half,
    "start": modes.started,
    "compiled": modes.compiled,
    "exported": modes.exported,
    "l1 ball": shapes.l1_ball,
    "ordered": shapes.ordered,
    "transport": shapes.transport,
    "entropic": shapes.entropic,
    "union": shapes.union,
    "levels": shapes.levels,
    "units": shapes.units,
    "bad samples": shapes.bad_samples,
    "onnx": modes.onnx,
}
"""In the order of their seeds: new ones come last."""


def run_round(family: str, seed: int, count: int) -> dict[str, Any]:
    """One call and its verdict."""
    draw = Draw(seed)
    try:
        case = FAMILIES[family](draw, count)
    except hn.errors.HardNetError as error:
        return {"ended": f"{type(error).__name__} when built", "samples": 0, "wrong": 0, "farther": 0, "text": ""}
    wrong, ended = examine(case)
    farther = 0
    if case.nearest and ended == "answered" and not wrong.any():
        farther = NEAREST[case.nearest](case, draw)
    return {"ended": ended, "samples": count, "wrong": int(wrong.sum()), "farther": farther, "text": case.text}


def campaign(samples: int, seed: int, out: Path, count: int = 64, every: float = 10.0) -> dict[str, Any]:
    """Rounds until every family has its share of the samples; resumes the record in `out`."""
    fresh = {"environment": environment("cpu", seed), "seed": seed, "count": count, "families": {}}
    record = json.loads(out.read_text()) if out.exists() else fresh
    if (record["seed"], record["count"]) != (seed, count):
        raise SystemExit(f"{out} belongs to seed {record['seed']} and calls of {record['count']} samples")
    share, written = math.ceil(samples / len(FAMILIES)), time.monotonic()
    for place, family in enumerate(FAMILIES):
        state = {"rounds": 0, "samples": 0, "ended": {}, "wrong": 0, "farther": 0, "failures": []}
        state = record["families"].setdefault(family, state)
        while state["samples"] < share:
            own = seed * 10**9 + place * 10**8 + state["rounds"]
            verdict = run_round(family, own, count)
            state["rounds"] += 1
            state["samples"] += count
            state["ended"] = dict(Counter(state["ended"]) + Counter([verdict["ended"]]))
            for kind in ("wrong", "farther"):
                state[kind] += verdict[kind]
            if verdict["wrong"] + verdict["farther"] and len(state["failures"]) < KEPT:
                state["failures"].append({"seed": own, **verdict})
            if time.monotonic() - written > every:
                written = time.monotonic()
                _write(out, record)
                print(f"{family}: {state['samples']} of {share} samples, {state['wrong']} wrong", flush=True)
        _write(out, record)
    return record


def _write(out: Path, record: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1))
    part.replace(out)


@pytest.mark.slow
def test_no_silent_wrong_answer(tmp_path: Path) -> None:
    record = campaign(20_000, 0, tmp_path / "campaign.json")
    assert {family: state["failures"] for family, state in record["families"].items() if state["failures"]} == {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=64, help="samples of one call")
    parser.add_argument("--out", type=Path, default=Path("results/campaign.json"))
    parser.add_argument("--only", help="FAMILY:SEED of one round, to be seen again")
    asked = parser.parse_args()
    if asked.only:
        family, seed = asked.only.split(":")
        print(json.dumps(run_round(family, int(seed), asked.count), indent=1))
        return
    record = campaign(asked.samples, asked.seed, asked.out, asked.count)
    for family, state in record["families"].items():
        shown = {key: state[key] for key in ("rounds", "samples", "wrong", "farther", "ended")}
        print(family, json.dumps(shown))


if __name__ == "__main__":
    main()
