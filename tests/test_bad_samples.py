"""A sample without an answer sends no gradient: those of its batch mates and of the numbers that all share stay right.

Every method and set, with all numbers learned: the gradients of a batch with bad samples among them are those of the
batch without these samples, to first and second order, and zero for the bad samples themselves.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import hardnet as hn
from tests.draws import draw

D = torch.float64
BAD = [1, 4]
GOOD = [0, 2, 3, 5]
BATCH = len(BAD + GOOD)


class Family(NamedTuple):
    """A set of learned numbers, the method and its options, and how a sample may be bad."""

    method: str
    numbers: dict[str, Tensor]
    build: Callable[..., hn.sets.ConstraintSet]
    inputs: int = 0
    options: dict[str, Any] = {}
    kinds: tuple[str, ...] = ("nan", "inf")
    second: bool = True
    outputs: int = 4


def rows(A: Tensor, upper: Tensor) -> hn.Affine:
    return hn.Affine(A, lower=-2.0, upper=upper)


def moving(scale: Tensor, upper: Tensor) -> hn.Affine:
    """Rows of x behind a learned scale, as a network of x would make them."""
    bound = lambda x: upper + 0.1 * x[..., :1]
    return hn.Affine(lambda x: scale[:, None] * x.reshape(*x.shape[:-1], 2, 4), lower=-2.0, upper=bound)


def sphere(p: Tensor, upper: Tensor) -> hn.Nonlinear:
    return hn.Nonlinear(lambda y, x: (p.to(y) * y * y).sum(-1, keepdim=True), dim=4, upper=upper)


def member(name: str) -> dict[str, Any]:
    return {"A": draw(2, 4, seed=3), "upper": torch.tensor([0.3, 0.2], dtype=D)} if name == "rows" else {}


def one(value: float) -> Tensor:
    return torch.tensor(value, dtype=D)


CURVED = {
    "ball": ({"center": draw(4, seed=4), "radius": one(0.7)}, hn.Ball),
    "quadratic": ({"P": torch.eye(4, dtype=D), "q": 0.1 * draw(4, seed=5), "r": one(-0.3)}, hn.Quadratic),
    "cone": (
        {"A": draw(3, 4, seed=6), "b": draw(3, seed=7), "c": 0.1 * draw(4, seed=8), "d": one(2.0)},
        hn.SecondOrderCone,
    ),
    "lmi": ({"F0": torch.eye(3, dtype=D), "F": (draw(4, 3, 3, seed=9) + draw(4, 3, 3, seed=9).mT) / 2}, hn.LMI),
}
STEPS = torch.eye(4, dtype=D) - torch.diag(torch.ones(3, dtype=D), 1)
FAMILIES = {
    "aff": Family("aff", member("rows"), rows),
    "aff, 12 rows": Family("aff", {"A": draw(12, 40, seed=1), "upper": draw(12, seed=2).abs()}, rows, outputs=40),
    "aff, moving rows": Family(
        "aff", {"scale": one(1.0).expand(2).clone(), "upper": -torch.ones(2, dtype=D)}, moving, 8,
        kinds=("nan", "inf", "dependent", "crossed"),
    ),
    "aff-eq": Family(
        "aff-eq", {"A": draw(1, 4, seed=3), "b": torch.ones(1, dtype=D)}, hn.Equality, outputs=3,
        options={"completed": [0]},
    ),
    "aff-eq, moving rows": Family(
        "aff-eq", {"scale": one(1.0).expand(2).clone(), "b": -torch.ones(2, dtype=D)},
        lambda scale, b: hn.Equality(lambda x: scale[:, None] * x.reshape(*x.shape[:-1], 2, 4), b), 8, outputs=2,
        options={"completed": [0, 1], "dim": 4}, kinds=("nan", "dependent"),
    ),
    "projection, few rows": Family("projection", member("rows"), rows, second=False),
    "projection": Family("projection", {"A": draw(9, 4, seed=1), "upper": torch.ones(9, dtype=D)}, rows, second=False),
    "projection, box": Family(
        "projection", member("rows") | {"high": one(0.5)}, lambda high, **own: rows(**own) & hn.Box(-1.0, high),
        second=False,
    ),
    "projection, moving rows": Family(
        "projection", {"scale": one(1.0).expand(2).clone(), "upper": -torch.ones(2, dtype=D)}, moving, 8,
        kinds=("nan", "inf", "crossed"), second=False,
    ),
    "relaxed": Family("projection", member("rows"), lambda **own: hn.Relaxed(rows(**own)), second=False),
    **{name: Family("cvx", *CURVED[name], second=name == "ball") for name in CURVED},
    "box": Family("cvx", {"lower": -torch.ones(4, dtype=D), "upper": one(0.5)}, hn.Box),
    "simplex": Family("cvx", {"total": one(1.5)}, lambda total: hn.Simplex(4, total), second=False),
    "l1 ball": Family("cvx", {"center": draw(4, seed=4), "radius": one(0.7)}, hn.L1Ball, second=False),
    "ball and rows": Family(
        "cvx", member("rows") | {"radius": one(0.7)},
        lambda radius, **own: rows(**own) & hn.Ball(torch.zeros(4, dtype=D), radius), second=False,
    ),
    "nonlinear": Family("nonlinear", {"p": torch.linspace(1, 2, 4, dtype=D), "upper": one(0.5)}, sphere),
    "nonlinear and rows": Family(
        "nonlinear", {"p": torch.linspace(1, 2, 4, dtype=D)} | member("rows") | {"radius": one(0.7)},
        lambda p, radius, **own: sphere(p, 0.5) & rows(**own) & hn.Ball(torch.zeros(4, dtype=D), radius),
    ),
    "retraction": Family(
        "nonlinear", {"p": torch.linspace(1, 2, 4, dtype=D)}, lambda p: sphere(p, 0.5),
        options={"mode": "retract"}, second=False,
    ),
    "dc3": Family("dc3", member("rows"), rows),
    "dc3, completion": Family(
        "dc3", {"A": draw(1, 4, seed=3), "b": torch.ones(1, dtype=D)},
        lambda A, b: hn.Equality(A, b) & hn.Affine(draw(2, 4, seed=1), upper=0.1), outputs=3,
    ),
    "dc3, moving rows": Family(
        "dc3", {"scale": one(1.0).expand(2).clone(), "upper": -torch.ones(2, dtype=D)}, moving, 8, options={"dim": 4},
        kinds=("nan", "crossed"),
    ),
    "kkt-hpinn": Family("kkt-hpinn", {"b": torch.ones(2, dtype=D)}, lambda b: hn.Equality(draw(2, 4, seed=3), b)),
    "acnet": Family("acnet", {"A": draw(2, 4, seed=3), "b": torch.ones(2, dtype=D)}, hn.Equality, outputs=2),
    "cdgm": Family("cdgm", {"upper": torch.ones(4, dtype=D)}, lambda upper: hn.Affine(STEPS, upper=upper)),
    "linsat": Family(
        "linsat", {"upper": one(1.5).expand(1).clone()}, lambda upper: hn.Affine(torch.ones(1, 4, dtype=D), upper=upper)
    ),
}  # fmt: skip


def layer_of(family: Family, numbers: dict[str, Tensor]) -> hn.layers.Layer:
    kind = hn.layers.LAYERS[family.method]
    quiet = {name: "nan" for name in ("on_invalid", "on_infeasible", "on_unsolved") if hasattr(kind.Options, name)}
    return kind(family.build(**numbers), **quiet, **family.options)


def data(family: Family, kind: str) -> tuple[Tensor, Tensor | None]:
    """Raws and inputs, bad in some samples in the way of this kind."""
    raw = 2 * draw(BATCH, family.outputs, seed=11)
    x = draw(BATCH, family.inputs, seed=12) if family.inputs else None
    if kind == "dependent":
        x[BAD, 4:] = 2 * x[BAD, :4]  # pyright: ignore[reportOptionalSubscript]
    elif kind == "crossed":
        x[BAD, 0] = -100.0  # pyright: ignore[reportOptionalSubscript]
    else:
        raw[BAD, 0] = {"nan": torch.nan, "inf": torch.inf}[kind]
    return raw, x


def gradients(family: Family, raw: Tensor, x: Tensor | None, kept: list[int], second: bool) -> list[Tensor]:
    """Of raw, x and every learned number; to second order, those of the squares of these."""
    numbers = {name: torch.nn.Parameter(value.clone()) for name, value in family.numbers.items()}
    leaves = [part.clone().requires_grad_() for part in (raw, x) if part is not None]
    y = layer_of(family, numbers)(*leaves)
    wanted = [*leaves, *numbers.values()]
    value = (y[kept] * draw(len(kept), y.shape[-1], seed=13)).sum()
    if second:
        first = torch.autograd.grad(value + y[kept].square().sum(), wanted, create_graph=True)
        value = sum(part.square().sum() for part in first)
    return list(torch.autograd.grad(value, wanted, materialize_grads=True))


CASES = [(name, kind) for name, family in FAMILIES.items() for kind in family.kinds]


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_bad_samples_send_no_gradient(name, kind, second):
    family = FAMILIES[name]
    if second and not family.second:
        pytest.skip("no second derivative")
    raw, x = data(family, kind)
    whole = gradients(family, raw, x, GOOD, second)
    alone = gradients(family, raw[GOOD], None if x is None else x[GOOD], list(range(len(GOOD))), second)
    own = 1 if x is None else 2
    assert all(part[BAD].eq(0).all() for part in whole[:own])
    whole[:own] = [part[GOOD] for part in whole[:own]]
    for found, expected in zip(whole, alone, strict=True):
        assert torch.allclose(found, expected, rtol=1e-8, atol=1e-9)
