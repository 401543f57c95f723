"""Nonlinear rows with known answers: what the tests of solver, layer and derivative share.

The numbers are KKT points to 1e-15, computed by an interior-point solver and, where there is one, by a formula.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import hardnet as hn
from benchmarks.nonlinear import column, hyperbola, parabola, rotation, torus

F64 = torch.float64


def real(*numbers: Any) -> Tensor:
    return torch.tensor(numbers if len(numbers) > 1 else numbers[0], dtype=F64)


def sphere(y: Tensor, x: Any) -> Tensor:
    return y.square().sum(-1, keepdim=True) - 1


CIRCLE = hn.Nonlinear(sphere, dim=2, lower=0.0, upper=0.0)


def ellipse(y: Tensor, x: Any) -> Tensor:
    return (y[..., :1] / 3).square() + y[..., 1:].square() - 1


def kepler(y: Tensor, x: Any) -> Tensor:
    """Energy -1/2 and angular momentum 0.8 of a state (q, v)."""
    q1, q2, v1, v2 = y.unbind(-1)
    energy = (v1.square() + v2.square()) / 2 - 1 / torch.hypot(q1, q2)
    return torch.stack([energy + 0.5, q1 * v2 - q2 * v1 - 0.8], dim=-1)


def pooling(y: Tensor, x: Tensor) -> Tensor:
    """Four balances of a pooling problem, one of them bilinear."""
    y1, y2, y3, y4, y5 = y.unbind(-1)
    x1, x2, x3, x4 = x.unbind(-1)
    rows = [x1 + x2 - y2 - y3, x3 - y2 - y4, x4 - y3 - y5, 3 * x1 + x2 - y1 * (y2 + y3)]
    return torch.stack(rows, dim=-1)


def pooling_limits(y: Tensor, x: Tensor) -> Tensor:
    """Quality of the two products, <= 0."""
    y1, y2, y3, y4, y5 = y.unbind(-1)
    _, _, x3, x4 = x.unbind(-1)
    return torch.stack([y1 * y2 + 2 * y4 - 2.5 * x3, y1 * y3 + 2 * y5 - 1.5 * x4], dim=-1)


def cusp(y: Tensor, x: Any) -> Tensor:
    return y[..., :1] ** 3 - y[..., 1:].square()


class Known(NamedTuple):
    """Equalities g = 0 with raw outputs and the nearest points to 12 digits."""

    name: str
    g: Any
    raw: Tensor
    y: Tensor
    x: Tensor | None = None
    dual: Tensor | None = None


MATRIX = real([0.9, -0.3, 0.1, 0.2, 1.1, -0.2, 0.1, 0.3, 0.8])
ROTATED = [0.968552316520, -0.246660599888, 0.032633703834, 0.246570038572, 0.933981314835, -0.258615776041]
ROTATED += [0.033311052844, 0.258529402587, 0.965428879699]
FEED = real([[0.363557425, 1.312977767, 2.5]])
COLUMN = [0.129708684790, 1.546826507210, 0.086689865681, 0.877532142943, 0.035777991376]
COLUMN += [0.156694620200, -0.002514784708, 0.845820164508, 0.324271711975]

KNOWN = [
    Known("sphere", sphere, real([[3.0, 4.0]]), real([[0.6, 0.8]]), dual=real([[2.0]])),
    Known(
        "ellipse",
        ellipse,
        real([[4.0, 1.0], [1.0, 0.2], [2.0, 2.0]]),
        real([[2.919010817728, 0.230789910714], [1.095578448186, 0.930931902502], [1.723556779008, 0.818491297010]]),
    ),
    Known(
        "hyperbola",
        hyperbola,
        real([[3.0, 0.1], [-0.1, 2.0]]),
        real([[3.025192607915, 0.330557465129], [0.470330731019, 2.126163429367]]),
    ),
    Known("torus", torus, real([[3.0, 1.0, 0.4]]), real([[2.345889699220, 0.781963233073, 0.162709782429]])),
    Known("parabola", parabola, real([[1.5, 0.5]]), real([[1.0, -0.5]]), real([[0.5]]), real([[1.0]])),
    Known(
        "quaternion",
        sphere,
        real([[0.3, -1.2, 0.4, 0.9]]),
        real([[0.189736659610, -0.758946638440, 0.252982212813, 0.569209978830]]),
    ),
    Known("rotation", rotation, MATRIX.unsqueeze(0), real([ROTATED])),
    Known("column", column, real([[0.2, 1.5, 0.1, 0.9, 0.05, 0.1, 0.05, 0.8, 0.3]]), real([COLUMN]), FEED),
    Known(
        "kepler",
        kepler,
        real([[0.45, 0.1, -0.1, 1.9]]),
        real([[0.413850773630, 0.120100185062, -0.093646707010, 1.905887492344]]),
        dual=real([[-0.017546937458, 0.066581961524]]),
    ),
]


def equality(known: Known) -> hn.Nonlinear:
    """The set g = 0."""
    return hn.Nonlinear(known.g, dim=known.raw.shape[-1], lower=0.0, upper=0.0)
