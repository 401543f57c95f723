"""Counts silent wrong answers: finite outputs, without error or warning, that are outside of C(x) or not nearest.

``python tests/campaign.py --samples 1000000 --seed 0 --out results/campaign.json``

Every round draws a size, units, a conditioning and a dtype from its own seed, so that a failure is found again by it:
``--only FAMILY:SEED``. The file is written every few seconds, and a run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import hardnet as hn

KEPT = 50
"""How many failures of a family are kept with their seeds."""
FARTHER = 1e-6
"""How much farther than the nearest point a projection may be, relative to the distance, beside its rounding."""


class Round(NamedTuple):
    """One call: a layer, its raw outputs, whether it promises the nearest point, and the numbers of each sample."""

    layer: hn.layers.Layer
    raw: Tensor
    nearest: bool
    text: str
    x: dict[str, Tensor] | None = None


class Draw:
    """Random sizes, units and matrices from one seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def whole(self, least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=self.generator))

    def choose(self, options: list[Any]) -> Any:
        return options[self.whole(0, len(options) - 1)]

    def dtype(self) -> torch.dtype:
        return self.choose([torch.float64, torch.float64, torch.float32])

    def unit(self, dtype: torch.dtype) -> float:
        """A power of ten that leaves room for products: up to 1e150, or 1e15 in float32."""
        most = 150 if dtype == torch.float64 else 15
        return 10.0 ** self.choose([0, 0, 0, self.whole(-most, most), self.whole(-8, 8)])

    def matrix(self, *shape: int) -> Tensor:
        """Rows ``(*batch, m, n)`` of a chosen condition: random, nearly dependent, or of mixed sizes."""
        A, (m, n) = self.normal(*shape), shape[-2:]
        kind = self.choose(["random", "random", "dependent", "columns", "integers"])
        if kind == "dependent" and m > 1:
            A[..., 1, :] = A[..., 0, :] + 10.0 ** -self.whole(1, 12) * A[..., 1, :]
        if kind == "columns":
            A = A * 10.0 ** (self.normal(n).clamp(-2, 2))
        return A.round() + torch.eye(m, n, dtype=A.dtype) if kind == "integers" else A


def of_samples(numbers: dict[str, Tensor]) -> hn.Affine:
    """Rows whose numbers are those that each sample brings as its x."""
    read = {name: (lambda x, name=name: x[name]) for name in numbers}
    return hn.Affine(read.pop("A"), **read)


def closed_form(draw: Draw, count: int) -> Round:
    """Up to n rows, shared or of each sample, one- or two-sided, some of them equalities."""
    dtype, n, batch = draw.dtype(), draw.whole(1, 24), draw.choose([(), (count,)])
    m, unit, size = draw.whole(1, n), draw.unit(dtype), draw.unit(dtype)
    A, middle = draw.matrix(*batch, m, n) * unit, draw.normal(*batch, m) * unit * size
    width = draw.normal(*batch, m).abs() * unit * size * (draw.normal(*batch, m) > -0.5)
    numbers = {"A": A.to(dtype), "lower": (middle - width).to(dtype), "upper": (middle + width).to(dtype)}
    constraint = of_samples(numbers) if batch else hn.Affine(**numbers)
    raw = (draw.normal(count, n) * size * 10.0 ** draw.whole(0, 4)).to(dtype)
    text = f"{dtype} {tuple(A.shape)} rows {unit:.0e} outputs {size:.0e}"
    return Round(hn.layers.HardNetAff(constraint), raw, False, text, numbers if batch else None)


def polyhedron(draw: Draw, count: int) -> Round:
    """Any number of rows, shared or of each sample, around a point that is inside."""
    dtype, n, batch = draw.dtype(), draw.whole(1, 12), draw.choose([(), (count,)])
    m, unit, size = draw.whole(1, 2 * n + 2), draw.unit(dtype), draw.unit(dtype)
    A, inside = draw.matrix(*batch, m, n) * unit, draw.normal(*batch, n) * size
    upper = (A @ inside.unsqueeze(-1)).squeeze(-1) + draw.normal(*batch, m).abs() * unit * size
    raw = (inside + draw.normal(count, n) * size * 10.0 ** draw.whole(0, 4)).to(dtype)
    numbers = {"A": A.to(dtype), "upper": upper.to(dtype)}
    constraint = of_samples(numbers) if batch else hn.Affine(**numbers)
    text = f"{dtype} {tuple(A.shape)} rows {unit:.0e} outputs {size:.0e}"
    return Round(hn.layers.Projection(constraint), raw, True, text, numbers if batch else None)


def boxed_rows(draw: Draw, count: int) -> Round:
    """A box and a few rows, equalities among them, through a point of the box."""
    dtype, n = draw.dtype(), draw.whole(2, 30)
    k, unit, size = draw.whole(1, 3), draw.unit(dtype), draw.unit(dtype)
    A, inside = draw.matrix(k, n) * unit, draw.normal(n) * size
    lower, upper = inside - draw.normal(n).abs() * size, inside + draw.normal(n).abs() * size
    value = (A.to(dtype).double() @ inside.to(dtype).double()).to(dtype)
    rows = hn.Equality(A.to(dtype), value) if draw.choose([True, False]) else hn.Affine(A.to(dtype), upper=value)
    raw = (inside + draw.normal(count, n) * size * 10.0 ** draw.whole(0, 4)).to(dtype)
    layer = hn.layers.Projection(hn.Box(lower.to(dtype), upper.to(dtype)) & rows)
    return Round(layer, raw, True, f"{dtype} box & {k}x{n} rows {unit:.0e} outputs {size:.0e}")


def simplex(draw: Draw, count: int) -> Round:
    """Any total, raws with a common offset."""
    dtype, n = draw.dtype(), draw.whole(1, 40)
    total, offset = draw.unit(dtype), draw.choose([0.0, 1.0, 1e3, 1e6])
    raw = ((draw.normal(count, n) * 10.0 ** draw.whole(-2, 4) + offset) * total).to(dtype)
    layer = hn.layers.HardNetCvx(hn.Simplex(n, total=float(torch.tensor(total, dtype=dtype))))
    return Round(layer, raw, True, f"{dtype} n={n} total {total:.0e} offset {offset:.0e}")


def curved(draw: Draw, count: int) -> Round:
    """A ball, a quadratic, a cone, or a ball and a half-space."""
    dtype, n = torch.float64, draw.whole(1, 6)
    size, kind = 10.0 ** draw.whole(-12, 12), draw.choose(["ball", "quadratic", "cone", "ball & row"])
    center = draw.normal(n) * size
    ball = hn.Ball(center, size * (0.1 + float(draw.normal(1).abs())))
    if kind == "ball":
        constraint: hn.sets.ConstraintSet = ball
    elif kind == "quadratic":
        root = draw.normal(n, draw.whole(1, n)) / size
        constraint = hn.Quadratic(root @ root.mT, draw.normal(n) / size, torch.tensor(-1.0, dtype=dtype))
    elif kind == "cone":
        constraint = hn.SecondOrderCone(draw.normal(n, n), draw.normal(n) * size, draw.normal(n) / 9, 9.0 * n * size)
    else:
        row = draw.normal(1, n)
        constraint = ball & hn.Affine(row, upper=(row @ center).to(dtype))
    raw = center + draw.normal(count, n) * size * 10.0 ** draw.whole(0, 3)
    return Round(hn.layers.HardNetCvx(constraint), raw, False, f"{kind} n={n} outputs {size:.0e}")


FAMILIES: dict[str, Callable[[Draw, int], Round]] = {
    "closed form": closed_form,
    "projection": polyhedron,
    "box and rows": boxed_rows,
    "simplex": simplex,
    "curved": curved,
}


def examine(case: Round) -> tuple[Tensor, str]:
    """Which samples are silently wrong ``(count,)``, and how the call ended: answered, warned, or the error's name."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with torch.no_grad():
                y = case.layer(case.raw, case.x)
        except hn.errors.HardNetError as error:
            return torch.zeros(len(case.raw), dtype=torch.bool), type(error).__name__
    if any(issubclass(warning.category, hn.errors.NotConvergedWarning) for warning in said):
        return torch.zeros(len(case.raw), dtype=torch.bool), "NotConvergedWarning"
    certificate = hn.check(case.layer.constraint, y, case.x)
    allowed = certificate.tolerance.clamp_min(case_tolerance(case, y))
    outside = ~(certificate.violation <= allowed).all(-1)
    return outside & ~y.isnan().any(-1), "answered"


def case_tolerance(case: Round, y: Tensor) -> Tensor:
    """What a layer that promises a tolerance may be off: 1e-8 of the size of the outputs and of raw's way to them."""
    exact = case.layer.guarantee is hn.layers.base.Guarantee.EXACT
    size = y.double().abs().amax(-1, keepdim=True) + (y - case.raw).double().abs().amax(-1, keepdim=True)
    return 0 * size if exact else 1e-8 * size.nan_to_num(0.0)


def not_nearest(case: Round, sample: int) -> bool:
    """Whether ``raw - y`` is no non-negative combination of the rows that y meets: then a nearer point exists.

    Lawson and Hanson's algorithm (scipy) is the oracle; what it leaves is how much nearer, relative to the distance.
    """
    from scipy.optimize import nnls

    one = slice(sample, sample + 1)
    x = None if case.x is None else {name: number[one] for name, number in case.x.items()}
    with torch.no_grad():
        y = case.layer(case.raw[one], x)[0].double()
    step, eps = case.raw[sample].double() - y, torch.finfo(case.raw.dtype).eps
    distance = float(step.norm())
    if distance == 0:
        return False
    rows = case.layer.constraint.affine(x, case.raw[one])
    A, lower, upper = (part if part is None or case.x is None else part[0] for part in rows)
    norm = A.double().norm(dim=-1)
    A = A.double() / norm.unsqueeze(-1)
    meets = 64 * eps * (y.abs().max() * y.numel()) + 1e-12 * distance
    outward = []
    for side, sign in ((upper, 1.0), (lower, -1.0)):
        if side is not None:
            bound = side.double().expand(len(A)) / norm
            outward.append(sign * A[sign * (bound - A @ y) <= meets + 64 * eps * bound.abs()])
    G = torch.cat(outward)
    rest = nnls(G.mT.numpy(), (step / distance).numpy())[1] if len(G) else 1.0
    return rest > FARTHER + 16 * eps * float(y.norm()) / distance


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
        farther = int(not_nearest(case, draw.whole(0, count - 1)))
    return {"ended": ended, "samples": count, "wrong": int(wrong.sum()), "farther": farther, "text": case.text}


def campaign(samples: int, seed: int, out: Path, count: int = 64, every: float = 10.0) -> dict[str, Any]:
    """Rounds until every family has its share of the samples; resumes the record in `out`."""
    record = json.loads(out.read_text()) if out.exists() else {"seed": seed, "count": count, "families": {}}
    if (record["seed"], record["count"]) != (seed, count):
        raise SystemExit(f"{out} belongs to seed {record['seed']} and calls of {record['count']} samples")
    share, written = math.ceil(samples / len(FAMILIES)), time.monotonic()
    for place, family in enumerate(FAMILIES):
        fresh = {"rounds": 0, "samples": 0, "ended": {}, "wrong": 0, "farther": 0, "failures": []}
        state = record["families"].setdefault(family, fresh)
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
