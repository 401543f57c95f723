"""Families of sets, each with samples whose activity is decided, and the routes by which a layer can be called.

A route is what stands around the call (a compiler, an export, a map, a rule that no value may be read) and who computes
(numba, or torch alone). All numbers of a set come from x, so that each of them has a gradient to compare.
"""

import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hardnet as hn
from tests.draws import draw, draw_uniform

Numbers = dict[str, Tensor]


@dataclass(frozen=True)
class Family:
    """A layer, samples of raw and of the numbers of its set, and how far two routes may be apart.

    Attributes:
        layer: Makes the layer.
        numbers: ``raw (B, n)`` and the numbers by name, each with B in front.
        tolerance: Of y and of gradients, over the size of each.
        refuses: The routes that refuse this family in one sentence.
        empty: The samples of C(x) without a point: y is NaN, and every gradient zero.
    """

    layer: Callable[[], nn.Module]
    numbers: Callable[[], tuple[Tensor, Numbers]]
    tolerance: float = 1e-9
    refuses: tuple[str, ...] = ()
    empty: tuple[int, ...] = ()


# what is drawn ----------------------------------------------------------------------------------------------------

KINDS = ("inside", "one row", "vertex", "dependent", "equality", "weak", "empty")


def polyhedron(m: int, n: int, seed: int, *, boxed: bool = False, kinds: tuple[str, ...] = KINDS) -> tuple[Tensor, Any]:
    """A sample of each kind: raw is ``y0 + A_J'dual`` with multipliers from 0.5 to 1.5, other rows at least 0.5 away.

    "inside": no row acts. "one row". "vertex": as many rows as fit (n with a box). "dependent": a row and its double.
    "equality": ``lower == upper``. "weak": raw on a bound, no multiplier. "empty": a row below what its copy is above.
    """
    B = len(kinds)
    A = draw(B, m, n, seed=seed)
    y, dual = draw(B, n, seed=seed + 1), 0.5 + draw_uniform(B, m + n, seed=seed + 2)
    slack = 0.5 + draw_uniform(2, B, m + n, seed=seed + 3)
    active = torch.zeros(B, m + n, dtype=torch.bool)
    for sample, kind in enumerate(kinds):
        active[sample, : {"one row": 1, "equality": 1, "dependent": 2}.get(kind, 0)] = True
        if kind == "vertex":
            active[sample, : min(m, n)] = True
            active[sample, m : m + max(0, n - m)] = boxed
        if kind == "dependent":
            A[sample, 1] = 2 * A[sample, 0]
        if kind == "weak":  # numbers without rounding: raw touches the bound of a row that is a coordinate
            A[sample, 0] = torch.eye(n, dtype=A.dtype)[0]
            y[sample, 0] = 0.5
        if kind == "empty":
            A[sample, 1] = A[sample, 0]
    rows = torch.cat([A, torch.eye(n, dtype=A.dtype).expand(B, n, n)], dim=1)
    value = (rows @ y.unsqueeze(-1)).squeeze(-1)
    upper = torch.where(active, value, value + slack[0])
    lower = value - slack[1]
    raw = y + ((dual * active).unsqueeze(-2) @ rows).squeeze(-2)
    for sample, kind in enumerate(kinds):
        if kind == "equality":
            lower[sample, 0] = upper[sample, 0]
        if kind == "weak":
            upper[sample, 0] = 0.5
        if kind == "empty":
            lower[sample, 0], upper[sample, 0] = value[sample, 0] + 1, value[sample, 0] + 2
            lower[sample, 1], upper[sample, 1] = value[sample, 0] - 2, value[sample, 0] - 1
    numbers = {"A": A, "lower": lower[:, :m], "upper": upper[:, :m]}
    if boxed:
        numbers |= {"box_lower": lower[:, m:], "box_upper": upper[:, m:]}
    return raw, {name: number.clone() for name, number in numbers.items()}


def take(name: str) -> Callable[[Numbers], Tensor]:
    """A number of the set by its name in x."""
    return lambda x: x[name]


def rows() -> hn.Affine:
    return hn.Affine(take("A"), lower=take("lower"), upper=take("upper"))


def box() -> hn.Box:
    return hn.Box(take("box_lower"), take("box_upper"))


def projection(constraint: Callable[[], Any] = rows, **options: Any) -> Callable[[], nn.Module]:
    return lambda: hn.layers.Projection(constraint(), on_infeasible="nan", **options)


def convex(constraint: Callable[[], Any], **options: Any) -> Callable[[], nn.Module]:
    return lambda: hn.layers.HardNetCvx(constraint(), on_infeasible="nan", **options)


class Learned(nn.Module):
    """A matrix with a gradient, the same for all samples."""

    def __init__(self, A: Tensor) -> None:
        super().__init__()
        self.A = nn.Parameter(A.clone())

    def forward(self, x: Numbers) -> Tensor:
        return self.A.expand(*x["lower"].shape[:-1], *self.A.shape)


def shared(m: int, n: int, seed: int, learned: bool = False) -> Callable[[], hn.Affine]:
    A = draw(m, n, seed=seed)
    return lambda: hn.Affine(Learned(A) if learned else A, lower=take("lower"), upper=take("upper"))


def around(A: Tensor, seed: int, batch: int = 5) -> tuple[Tensor, Numbers]:
    """Samples for rows that all share: none, one, two, ... active, the last two far from their bounds' middle."""
    m, n = A.shape
    y, dual = draw(batch, n, seed=seed), 0.5 + draw_uniform(batch, m, seed=seed + 1)
    active = torch.arange(m) < torch.arange(batch).clamp_max(min(m, n)).unsqueeze(-1)
    value, slack = y @ A.mT, 0.5 + draw_uniform(2, batch, m, seed=seed + 2)
    numbers = {"lower": value - slack[0], "upper": torch.where(active, value, value + slack[1])}
    return y + (dual * active) @ A, numbers


def symmetric(*shape: int, seed: int) -> Tensor:
    root = draw(*shape, seed=seed)
    return root + root.mT


def spread(B: int, n: int, seed: int, sizes: tuple[float, ...] = (0.05, 2.0, 6.0)) -> Tensor:
    """Raw outputs of several sizes: well inside, outside, far."""
    return draw(B, n, seed=seed) * torch.tensor(sizes, dtype=torch.float64).repeat(B)[:B].unsqueeze(-1)


def simplex() -> tuple[Tensor, Numbers]:
    return spread(5, 4, 31), {"total": torch.tensor([1.0, 0.5, 2.0, 1.5, 1.0], dtype=torch.float64)}


def l1_ball() -> tuple[Tensor, Numbers]:
    weights = 0.5 + draw_uniform(5, 4, seed=33)
    return spread(5, 4, 34), {"center": 0.1 * draw(5, 4, seed=35), "radius": weights[:, 0] + 1, "weights": weights}


def profile() -> tuple[Tensor, Numbers]:
    """Bounds that leave room for a rising profile in every sample."""
    side = 1 + draw_uniform(2, 5, 4, seed=80)
    return spread(5, 4, 81), {"lower": -side[0], "upper": side[1]}


def plan() -> tuple[Tensor, Numbers]:
    raw, numbers = profile()
    rate = {"rate": 0.5 + draw_uniform(5, 2, seed=82), "acceleration": 0.6 + draw_uniform(5, 2, seed=83)}
    return raw, numbers | rate | {"last": 0.1 * draw(5, 2, seed=84)}


def transport() -> tuple[Tensor, Numbers]:
    rows, columns = 0.5 + draw_uniform(5, 2, seed=85), 0.5 + draw_uniform(5, 3, seed=86)
    columns = columns * rows.sum(-1, keepdim=True) / columns.sum(-1, keepdim=True)
    return spread(5, 6, 87), {"rows": rows, "columns": columns}


def l1_ball_and_row() -> tuple[Tensor, Numbers]:
    raw, numbers = l1_ball()
    side = 0.6 + draw_uniform(5, 4, seed=88)
    numbers |= {"A": draw(5, 1, 4, seed=89), "upper": torch.full((5, 1), 0.3, dtype=torch.float64)}
    return raw, numbers | {"box_lower": -side, "box_upper": side.clone()}


def levels() -> tuple[Tensor, Numbers]:
    """Two wishes of the first level and one of the second, out of reach in the last two samples."""
    raw, numbers = giving_way()
    return raw, numbers | {"least": torch.tensor([[0.1], [0.2], [7.0], [9.0]], dtype=torch.float64)}


def ball() -> tuple[Tensor, Numbers]:
    return spread(5, 4, 36), {"center": 0.1 * draw(5, 4, seed=37), "radius": 0.5 + draw_uniform(5, seed=38)}


def ball_and_row() -> tuple[Tensor, Numbers]:
    raw, numbers = ball()
    return raw, numbers | {"A": draw(5, 1, 4, seed=39), "upper": torch.full((5, 1), 0.2, dtype=torch.float64)}


def cone() -> tuple[Tensor, Numbers]:
    numbers = {"A": draw(5, 3, 4, seed=40), "b": 0.1 * draw(5, 3, seed=41), "c": 0.2 * draw(5, 4, seed=42)}
    return spread(5, 4, 43), numbers | {"d": 1 + draw_uniform(5, seed=44)}


def matrices() -> tuple[Tensor, Numbers]:
    F0 = 3 * torch.eye(3, dtype=torch.float64) + 0.1 * symmetric(5, 3, 3, seed=45)
    return spread(5, 4, 46), {"F0": F0, "F": symmetric(5, 4, 3, 3, seed=47)}


def quadratic() -> tuple[Tensor, Numbers]:
    root = draw(5, 4, 4, seed=48)
    return spread(5, 4, 49), {"P": root @ root.mT, "q": 0.1 * draw(5, 4, seed=50), "r": -1 - draw_uniform(5, seed=51)}


def curved_rows(y: Tensor, x: Numbers) -> Tensor:
    return torch.stack([y[..., 0] * y[..., 1] - y[..., 2] + x["shift"], y.square().sum(-1)], dim=-1)


def nonlinear() -> tuple[Tensor, Numbers]:
    top = torch.stack([torch.zeros(4, dtype=torch.float64), 2 + draw_uniform(4, seed=53)], dim=-1)
    return spread(4, 4, 54, (1.0, 1.5)), {"shift": 0.1 * draw(4, seed=55), "upper": top}


def giving_way() -> tuple[Tensor, Numbers]:
    """Limits that hold, and rows that they contradict in the last two samples."""
    A = draw(4, 2, 4, seed=56)
    upper = torch.stack([draw_uniform(4, seed=57), 1 - torch.tensor([0.0, 0.0, 9.0, 12.0], dtype=torch.float64)], -1)
    side = torch.ones(4, 4, dtype=torch.float64)
    return spread(4, 4, 58, (1.0, 2.0)), {"A": A, "upper": upper, "box_lower": -side, "box_upper": side.clone()}


def with_metric() -> tuple[Tensor, Numbers]:
    raw, numbers = polyhedron(3, 4, 60, kinds=("inside", "one row", "vertex", "equality"))
    return raw, numbers | {"weight": 0.5 + draw_uniform(4, 4, seed=61)}


SPARSE = torch.eye(6, dtype=torch.float64)[1:] - torch.eye(6, dtype=torch.float64)[:-1]
MANY = draw(20, 4, seed=70)
FULL_RANK = ("inside", "one row", "vertex", "equality", "weak")  # what the closed form takes
NO_MAP = {"refuses": ("vmap", "exported")}
CURVED = {"tolerance": 1e-6}
ITERATES = {**NO_MAP, **CURVED}


def equalities() -> tuple[Tensor, Numbers]:
    A, y = draw(4, 2, 5, seed=62), draw(4, 5, seed=63)
    return draw(4, 5, seed=64), {"A": A, "b": (A @ y.unsqueeze(-1)).squeeze(-1)}


FAMILIES = {
    "closed form": Family(lambda: hn.layers.HardNetAff(rows()), lambda: polyhedron(3, 4, 1, kinds=FULL_RANK)),
    "closed form, many rows": Family(
        lambda: hn.layers.HardNetAff(rows()), lambda: polyhedron(12, 16, 2, kinds=FULL_RANK)
    ),
    "closed form, shared rows": Family(
        lambda: hn.layers.HardNetAff(shared(3, 4, 3)()), lambda: around(draw(3, 4, seed=3), 4)
    ),
    "few rows": Family(projection(), lambda: polyhedron(3, 5, 5), empty=(6,)),
    "one row": Family(projection(), lambda: polyhedron(1, 5, 6, kinds=("inside", "one row", "equality", "weak"))),
    "equalities": Family(
        lambda: hn.layers.Projection(hn.Equality(take("A"), take("b"))),
        equalities,
    ),
    **{
        f"box and {k} row{'s' * (k > 1)}": Family(
            projection(lambda: box() & rows()),
            lambda k=k, n=n: polyhedron(k, n, 10 + k, boxed=True, kinds=KINDS if k > 1 else KINDS[:3] + KINDS[4:6]),
            empty=(6,) if k > 1 else (),
        )
        for k, n in ((1, 6), (3, 6), (9, 12), (20, 24))
    },
    "rows": Family(projection(), lambda: polyhedron(7, 4, 40), empty=(6,)),
    "shared rows": Family(projection(shared(20, 4, 70)), lambda: around(MANY, 71, batch=18)),
    "learned rows": Family(projection(shared(7, 4, 73, learned=True)), lambda: around(draw(7, 4, seed=73), 74)),
    "sparse rows": Family(
        convex(lambda: hn.Affine(SPARSE.to_sparse_csr(), lower=take("lower"), upper=take("upper"))),
        lambda: around(SPARSE, 75),
        tolerance=1e-8,
        **NO_MAP,
    ),
    "simplex": Family(convex(lambda: hn.Simplex(4, take("total"))), simplex),
    "L1 ball": Family(convex(lambda: hn.L1Ball(take("center"), take("radius"), take("weights"))), l1_ball),
    "L1 ball and a row": Family(
        convex(
            lambda: (
                hn.L1Ball(take("center"), take("radius"), take("weights"))
                & box()
                & hn.Affine(take("A"), upper=take("upper"))
            )
        ),
        l1_ball_and_row,
        **NO_MAP,
    ),
    "monotone": Family(convex(lambda: hn.Monotone(4, lower=take("lower"), upper=take("upper"))), profile),
    "horizon": Family(
        projection(
            lambda: hn.Horizon(
                2, *map(take, ("lower", "upper", "rate", "acceleration")), previous=take("last"), channels=2
            )
        ),
        plan,
    ),
    "transport": Family(projection(lambda: hn.Transport(take("rows"), take("columns"))), transport),
    "entropy": Family(
        projection(lambda: hn.Transport(take("rows"), take("columns")), metric="entropy"), transport, **NO_MAP
    ),
    "union": Family(
        lambda: hn.layers.UnionLayer(
            hn.Ball(take("center"), take("radius")) | hn.Affine(take("A"), upper=take("upper"))
        ),
        ball_and_row,
        **NO_MAP,
    ),
    "ball": Family(convex(lambda: hn.Ball(take("center"), take("radius"))), ball),
    "ball and a row": Family(
        convex(lambda: hn.Ball(take("center"), take("radius")) & hn.Affine(take("A"), upper=take("upper"))),
        ball_and_row,
        **ITERATES,
    ),
    "cone": Family(convex(lambda: hn.SecondOrderCone(*map(take, "Abcd"))), cone, **ITERATES),
    "LMI": Family(convex(lambda: hn.LMI(take("F0"), take("F"))), matrices, **ITERATES),
    "quadratic": Family(convex(lambda: hn.Quadratic(*map(take, "Pqr"))), quadratic, **CURVED),
    "nonlinear": Family(
        lambda: hn.layers.NonlinearLayer(hn.Nonlinear(curved_rows, dim=4, lower=-torch.inf, upper=take("upper"))),
        nonlinear,
        **ITERATES,
    ),
    "relaxed": Family(
        projection(lambda: box() & hn.Relaxed(hn.Affine(take("A"), upper=take("upper")))),
        giving_way,
        tolerance=1e-7,
        refuses=("vmap",),
    ),
    "levels": Family(
        projection(
            lambda: (
                box()
                & hn.Relaxed(hn.Affine(take("A"), upper=take("upper")))
                & hn.Relaxed(hn.Affine(draw(1, 4, seed=59), lower=take("least")), level=2)
            )
        ),
        levels,
        tolerance=1e-7,
        **NO_MAP,
    ),
    "metric": Family(projection(metric=take("weight")), with_metric, tolerance=1e-8),
}


# how it is called -------------------------------------------------------------------------------------------------


@contextmanager
def patched(name: str, value: Any):
    """A name that modules of hardnet took from one place, replaced in all of them."""
    with pytest.MonkeyPatch.context() as patch:
        for module in [
            part for key, part in list(sys.modules.items()) if key.startswith("hardnet.") and hasattr(part, name)
        ]:
            patch.setattr(module, name, value)
        yield


def call(layer: nn.Module, raw: Tensor, x: Numbers) -> Tensor:
    return layer(raw, x)


def compiled(layer: nn.Module, raw: Tensor, x: Numbers) -> Tensor:
    """Traced by dynamo and split into forward and backward; machine code would only take longer to make."""
    torch._dynamo.reset()
    return torch.compile(layer, backend="aot_eager")(raw, x)


def exported(layer: nn.Module, raw: Tensor, x: Numbers) -> Tensor:
    return torch.export.export(layer, (raw, x)).module()(raw, x)


def mapped(layer: nn.Module, raw: Tensor, x: Numbers) -> Tensor:
    return torch.vmap(layer)(raw, x)


def blind(layer: nn.Module, raw: Tensor, x: Numbers) -> Tensor:
    """As on a GPU, or in a capture: no value may be read."""
    with patched("may_look", lambda _: False):
        return layer(raw, x)


def alone(layer: nn.Module, raw: Tensor, x: Numbers) -> Tensor:
    """Each sample in a call of its own."""
    calls = [layer(raw[i : i + 1], {name: number[i : i + 1] for name, number in x.items()}) for i in range(len(raw))]
    return torch.cat(calls)


def checkpointed(layer: nn.Module, raw: Tensor, x: Numbers) -> Tensor:
    """Called again in the backward pass."""
    return torch.utils.checkpoint.checkpoint(layer, raw, x, use_reentrant=False)


ROUTES: dict[str, Callable[[nn.Module, Tensor, Numbers], Tensor]] = {
    "eager": call,
    "alone": alone,
    "blind": blind,
    "checkpointed": checkpointed,
    "vmap": mapped,
    "compiled": compiled,
    "exported": exported,
}
Outcome = tuple[Tensor, dict[str, Tensor]]


def outcome(family: Family, route: Callable[[nn.Module, Tensor, Numbers], Tensor], device: str = "cpu") -> Outcome:
    """y, and the gradient of a fixed sum of y to raw, to each number, and to each parameter of the layer."""
    raw, x = family.numbers()
    layer = family.layer().to(device)
    leaves = {name: leaf.to(device).requires_grad_() for name, leaf in ({"raw": raw} | x).items()}
    y = route(layer, leaves["raw"], {name: leaves[name] for name in x})
    wanted = leaves | dict(layer.named_parameters())
    weight = draw(*y.shape, seed=99).to(y)
    found = torch.autograd.grad(y, list(wanted.values()), weight, allow_unused=True)
    zeros = {name: torch.zeros_like(leaf) for name, leaf in wanted.items()}
    return y.detach(), {name: zeros[name] if g is None else g for name, g in zip(wanted, found, strict=True)}


def differences(family: Family, found: Outcome, expected: Outcome) -> list[str]:
    """What is not equal: y or a gradient, in which samples."""
    pairs = {"y": (found[0], expected[0])} | {f"d/d{name}": (found[1][name], g) for name, g in expected[1].items()}
    return [
        f"{name} in samples {(~same).nonzero().flatten().tolist()}"
        for name, (part, wanted) in pairs.items()
        if not bool((same := _equal(part.cpu(), wanted.cpu(), family.tolerance)).all())
    ]


def _equal(found: Tensor, expected: Tensor, tolerance: float) -> Tensor:
    """Which samples agree, NaN with NaN, to the tolerance times the largest number of all samples."""
    size = 1 + expected.nan_to_num().abs().max()
    near = torch.where(expected.isnan(), found.isnan(), (found - expected).abs() <= tolerance * size)
    return near.reshape(len(near), -1).all(1)
