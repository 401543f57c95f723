"""Families in other modes: metrics, tangent gradients, exact arithmetic, sparse rows, half precision, graphs."""

from __future__ import annotations

import contextlib
import io
import warnings
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

import hardnet as hn
from tests.campaigns import curved, flat
from tests.campaigns.drawing import Draw, Round, of_samples


def with_options(case: Round, nearest: str, **options: Any) -> Round:
    """The same call by a layer with other options."""
    return case._replace(layer=type(case.layer)(case.layer.constraint, **options), nearest=nearest)


def tangent(draw: Draw, count: int) -> Round:
    """Polyhedra whose backward also pulls inwards: the same points."""
    return with_options(draw.choose([flat.polyhedron, flat.boxed_rows])(draw, count), "rows", gradient="tangent")


def strict(draw: Draw, count: int) -> Round:
    """Polyhedra that must hold in exact arithmetic."""
    return with_options(structured(draw, count), "fractions", strict=True)


def metric(draw: Draw, count: int) -> Round:
    """A diagonal or a matrix W, of outputs in like or unlike units."""
    case = flat.polyhedron(draw, count)
    n = case.raw.shape[-1]
    root = draw.normal(n, n) + 2 * torch.eye(n, dtype=torch.float64)
    W = draw.choose([10.0 ** draw.normal(n).clamp(-2, 2), root @ root.mT])
    return with_options(case, "metric", metric=W.to(case.raw.dtype))._replace(text=f"{case.text} W {tuple(W.shape)}")


def rows_of(draw: Draw, n: int) -> Tensor:
    """Rows as users have them: steps, sums, repeated rows, rows of zeros, rows of integers."""
    steps = torch.eye(n, dtype=torch.float64) - torch.eye(n, dtype=torch.float64).roll(1, 0)
    groups = torch.zeros(2, n, dtype=torch.float64)
    groups[0, ::2] = groups[1, 1::2] = 1.0
    pieces = [steps[1:], groups, torch.ones(1, n, dtype=torch.float64), torch.zeros(1, n, dtype=torch.float64)]
    pieces.append(draw.normal(2, n).round())
    chosen = [draw.choose(pieces) for _ in range(draw.whole(1, 3))]
    A = torch.cat([*chosen, chosen[0][:1]])
    return A[draw.normal(len(A)).argsort()]


def structured(draw: Draw, count: int) -> Round:
    """Repeated, dependent and empty rows that touch a point, beside a box, in units that differ between the outputs."""
    dtype, n, size = draw.dtype(), draw.whole(2, 10), 10.0 ** draw.whole(-4, 4)
    A, units = rows_of(draw, n), 10.0 ** (draw.normal(n) * draw.choose([0.0, 0.0, 2.0])).clamp(-4, 4)
    inside = (draw.normal(n) * size).round(decimals=6)
    A = (A / units).to(dtype)
    value = A.double() @ inside.to(dtype).double() + 1e-3 * size * draw.normal(len(A)).abs()
    touching = draw.choose([0.0, 1.0]) * draw.normal(len(A)).abs() * size
    constraint: hn.sets.ConstraintSet = hn.Affine(A, upper=(value + touching).to(dtype))
    if draw.choose([True, False]):
        width = draw.normal(n).abs() * size * units
        constraint &= hn.Box((inside - width).to(dtype), (inside + width).to(dtype))
    raw = (inside + draw.normal(count, n) * size * units * 10.0 ** draw.whole(0, 3)).to(dtype)
    text = f"{dtype} {tuple(A.shape)} of structure, outputs {size:.0e}"
    return Round(hn.layers.Projection(constraint), raw, "rows", text)


def sparse(draw: Draw, count: int) -> Round:
    """The same rows in compressed form, beside their box."""
    case = structured(draw, count)
    first, *others = case.layer.constraint.parts
    numbers = first.numbers(None, case.raw)
    constraint: hn.sets.ConstraintSet = hn.Affine(numbers.A.to_sparse_csr(), upper=numbers.upper)
    for part in others:
        constraint &= part
    return Round(hn.layers.HardNetCvx(constraint), case.raw, "dense", f"sparse {case.text}")


def half(draw: Draw, count: int) -> Round:
    """Raw outputs in half precision, of which y has no more digits."""
    dtype = draw.choose([torch.bfloat16, torch.float16])
    n, m = draw.whole(1, 8), draw.whole(1, 8)
    A, inside = draw.normal(m, n), draw.normal(n)
    upper = A @ inside + draw.normal(m).abs()
    constraint = hn.Affine(A.to(dtype).float(), upper=upper.float())
    return Round(hn.layers.Projection(constraint), (3 * draw.normal(count, n)).to(dtype), "", f"{dtype} {m}x{n}")


def started(draw: Draw, count: int) -> Round:
    """Nonlinear rows from another start, nearest or by a retraction."""
    case = curved.nonlinear(draw, count)
    start = draw.normal(case.raw.shape[-1]).tolist()
    return with_options(case, "rows", start=start)


class Routed(nn.Module):
    """A layer as a graph holds it: the set and the guarantee are those of the layer."""

    def __init__(self, layer: hn.layers.Layer, run: Any) -> None:
        super().__init__()
        self.layer, self.constraint, self.guarantee, self.run = layer, layer.constraint, layer.guarantee, run

    def forward(self, raw: Tensor, x: Any = None) -> Tensor:
        return self.run(raw, x)


SHAPES = [
    [(2, 5, "aff"), (3, 6, "projection"), (9, 4, "projection"), (0, 4, "cvx")],
    [(1, 3, "aff"), (1, 8, "projection"), (4, 4, "projection"), (0, 1, "cvx")],
    [(4, 9, "aff"), (2, 2, "projection"), (12, 6, "projection"), (0, 9, "cvx")],
    [(1, 1, "aff"), (5, 3, "projection"), (6, 12, "projection"), (0, 2, "cvx")],
    [(3, 3, "aff"), (7, 7, "projection"), (16, 5, "projection"), (0, 20, "cvx")],
]
"""Rows and outputs that graphs are made for, and the method; without rows it is a ball. A group serves some rounds."""
ROUNDS_OF_A_GROUP = 64


@lru_cache(maxsize=64)
def graph_of(route: str, shape: tuple[int, int, str], count: int) -> Routed:
    """A layer whose numbers all come as x, recorded once."""
    m, n, method = shape
    names = {"A": (count, m, n), "upper": (count, m)} if m else {"center": (count, n), "radius": (count,)}
    x = {name: torch.ones(size, dtype=torch.float64) for name, size in names.items()}
    constraint = of_samples(dict(x)) if m else hn.Ball(lambda x: x["center"], lambda x: x["radius"])
    layer, raw = hn.layers.LAYERS[method](constraint), torch.zeros(count, n, dtype=torch.float64)
    if route == "compiled":
        return Routed(layer, torch.compile(layer, backend="aot_eager", fullgraph=True))
    batch = torch.export.Dim("batch")
    sizes = ({0: batch}, {name: {0: batch} for name in x})
    program = torch.export.export(layer, (raw, x), dynamic_shapes=sizes)
    return Routed(layer, program.module() if route == "exported" else session_of(program, list(names)))


def session_of(program: Any, names: list[str]) -> Any:
    """An exported program as ONNX Runtime answers it."""
    import onnxruntime

    file = io.BytesIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(program, dynamo=True, verbose=False).save(file)
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    session = onnxruntime.InferenceSession(file.getvalue(), quiet, providers=["CPUExecutionProvider"])
    takes = [given.name for given in session.get_inputs()]

    def run(raw: Tensor, x: Any) -> Tensor:
        given = [raw, *(x[name] for name in names)]
        answer = session.run(None, {own: part.detach().numpy() for own, part in zip(takes, given, strict=True)})
        return torch.from_numpy(answer[0])

    return run


def graph(draw: Draw, count: int, route: str) -> Round:
    m, n, method = draw.choose(SHAPES[draw.seed // ROUNDS_OF_A_GROUP % len(SHAPES)])
    size = 10.0 ** draw.whole(-6, 6)
    inside = draw.normal(count, n) * size
    raw = inside + draw.normal(count, n) * size * 10.0 ** draw.whole(0, 3)
    if m:
        A = draw.normal(count, m, n)
        x = {"A": A, "upper": (A @ inside.unsqueeze(-1)).squeeze(-1) + draw.normal(count, m).abs() * size}
    else:
        x = {"center": inside, "radius": size * (0.1 + draw.normal(count).abs())}
    oracle = {"aff": "", "projection": "rows", "cvx": ""}[method]
    return Round(graph_of(route, (m, n, method), count), raw, oracle, f"{route} {method} {m}x{n} {size:.0e}", x)


def compiled(draw: Draw, count: int) -> Round:
    """By torch.compile, as one graph."""
    return graph(draw, count, "compiled")


def exported(draw: Draw, count: int) -> Round:
    """By torch.export."""
    return graph(draw, count, "exported")


def onnx(draw: Draw, count: int) -> Round:
    """By torch.export and ONNX Runtime."""
    return graph(draw, count, "onnx")
