"""Every layer x set, once: what `test_contract.py` runs the contract over. A new layer adds one line here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import hardnet as hn
from tests.draws import draw

BATCH = 6


@dataclass(frozen=True)
class Case:
    """A layer on a set, with an input and raw outputs that lie inside and outside."""

    name: str
    layer: Callable[[], hn.layers.Layer]
    raw_dim: int
    input_dim: int | None = None
    gradients: bool = True
    compiled: bool = False
    spread: float = 2.0

    def data(self) -> tuple[Any, Tensor]:
        generator = torch.Generator().manual_seed(5)
        raw = self.spread * torch.randn(BATCH, self.raw_dim, generator=generator, dtype=torch.float64)
        if self.input_dim is None:
            return None, raw
        return torch.randn(BATCH, self.input_dim, generator=generator, dtype=torch.float64), raw


BASE = draw(2, 4, seed=1)


def network(outputs: int = 4) -> torch.nn.Module:
    """Four inputs and a hidden layer, float64."""
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, outputs)).double()


# functions of x stand at module level so that layers can be pickled


def matrix_of(x: Tensor) -> Tensor:
    """(*batch, 2, 4), rows independent for every x."""
    return BASE.to(x) + 0.1 * torch.sin(x).unsqueeze(-2)


def bound_of(x: Tensor) -> Tensor:
    """(*batch, 2)."""
    return x[..., :2].abs() - 0.5


def constant_rows() -> hn.Affine:
    return hn.Affine(
        draw(2, 4, seed=2), lower=-torch.ones(2, dtype=torch.float64), upper=torch.ones(2, dtype=torch.float64)
    )


def moving_rows() -> hn.Affine:
    return hn.Affine(matrix_of, upper=bound_of)


def balance() -> hn.sets.ConstraintSet:
    return hn.Equality(draw(1, 4, seed=3), 1.0) & hn.Affine(draw(2, 4, seed=4), upper=0.5)


def many_rows() -> hn.sets.ConstraintSet:
    """Twelve rows for four outputs, the origin inside."""
    return hn.Affine(draw(8, 4, seed=6), lower=-0.5, upper=1.0) & hn.Box(-torch.ones(4, dtype=torch.float64), 1.0)


def radius_of(x: Tensor) -> Tensor:
    """(*batch)."""
    return 1 + x[..., 0].square()


def quadratic() -> hn.Quadratic:
    root = draw(4, 4, seed=7)
    return hn.Quadratic(root @ root.mT, draw(4, seed=8), -1.0)


def cone() -> hn.SecondOrderCone:
    return hn.SecondOrderCone(draw(3, 4, seed=9), draw(3, seed=10), 0.1 * draw(4, seed=11), 3.0)


def matrix_inequality() -> hn.LMI:
    F = draw(3, 3, 3, seed=12)
    return hn.LMI(2 * torch.eye(3, dtype=torch.float64), F + F.mT)


def positive_rows() -> hn.sets.ConstraintSet:
    """Two rows with non-negative coefficients in the unit cube."""
    A = torch.tensor([[1.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    return hn.Affine(A, upper=torch.tensor([1.5, 0.8], dtype=torch.float64))


def homogeneous_rows() -> hn.Affine:
    return hn.Affine(draw(2, 4, seed=13), upper=torch.zeros(2, dtype=torch.float64))


def simple_balance() -> hn.Equality:
    return hn.Equality(draw(2, 4, seed=14), torch.ones(2, dtype=torch.float64))


def moving_balance() -> hn.Equality:
    return hn.Equality(matrix_of, bound_of)


def half_moving_balance() -> hn.Equality:
    return hn.Equality(draw(2, 4, seed=3), bound_of)


STEPS = torch.eye(4, dtype=torch.float64) - torch.diag(torch.ones(3, dtype=torch.float64), 1)


def wide_bound(x: Tensor) -> Tensor:
    """(*batch, 4)."""
    return x.abs() + 0.5


def small_total(x: Tensor) -> Tensor:
    """(*batch, 1), in the unit cube's reach."""
    return 1 + 0.5 * torch.tanh(x[..., :1])


def moving_total() -> hn.Equality:
    return hn.Equality(torch.ones(1, 4, dtype=torch.float64), small_total)


def ball_of_x() -> hn.Ball:
    return hn.Ball(torch.zeros(4, dtype=torch.float64), radius_of)


def giving_way() -> hn.sets.ConstraintSet:
    """Limits that hold, and rows that they contradict for some x."""
    barriers = hn.Affine(matrix_of, upper=far_bound, name="barriers")
    return hn.Box(-torch.ones(4, dtype=torch.float64), 1.0) & hn.Relaxed(barriers, weight=[1.0, 3.0])


def giving_way_by_level() -> hn.sets.ConstraintSet:
    """The same with one row of a lower level."""
    return giving_way() & hn.Relaxed(hn.Affine(draw(1, 4, seed=17), lower=2.5, name="wish"), level=2)


def far_bound(x: Tensor) -> Tensor:
    """(*batch, 2), out of reach of the unit cube for some x."""
    return 2 - 5 * x[..., :2].abs()


MEAN, STD = draw(4, seed=15), draw(4, seed=16).exp()


def curved_rows(y: Tensor, x: Tensor) -> Tensor:
    """(*batch, 2): a product and a sum of squares, neither of them convex together."""
    return torch.stack([y[..., 0] * y[..., 1] - y[..., 2] + 0.1 * x[..., 0], y.square().sum(-1)], dim=-1)


def shell(x: Tensor) -> Tensor:
    """(*batch, 2)."""
    return torch.stack([torch.zeros_like(x[..., 0]), 2 + x[..., 1].square()], dim=-1)


def saddle_in_a_shell() -> hn.sets.ConstraintSet:
    """A surface, cut by a shell and by a box."""
    lower = torch.tensor([0.0, 1.0], dtype=torch.float64)
    return hn.Nonlinear(curved_rows, dim=4, lower=lower, upper=shell) & hn.Box(-torch.ones(4, dtype=torch.float64), 1.5)


def ellipsoid_rows(y: Tensor, x: Tensor) -> Tensor:
    """(*batch, 1)."""
    return (y * torch.arange(1, 5, dtype=y.dtype, device=y.device)).square().sum(-1, keepdim=True) - 4


def shares_of(x: Tensor) -> Tensor:
    """(*batch, 2), positive with sum one."""
    return torch.softmax(x[..., :2], -1)


class Dome(hn.sets.ConstraintSet):
    """``|y| <= radius``: an own set that brings nothing but a projection."""

    projectable = True

    def __init__(self, radius: Any, *, name: str | None = None) -> None:
        super().__init__(name)
        self.take("radius", radius, (), "size")

    def numbers(self, x: Any, like: Tensor) -> Tensor:
        return self.number("radius", x, like).expand(like.shape[:-1])

    def residual(self, numbers: Tensor, y: Tensor) -> Tensor:
        return (torch.linalg.vector_norm(y, dim=-1) - numbers).clamp_min(0).unsqueeze(-1)

    def scale(self, numbers: Tensor, y: Tensor) -> Tensor:
        return (torch.linalg.vector_norm(y, dim=-1) + numbers).unsqueeze(-1)

    def project(self, numbers: Tensor, raw: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(raw, dim=-1)
        share = torch.where(length > numbers, numbers / torch.where(length > 0, length, 1.0), 1.0)
        sound = (numbers >= 0) & numbers.isfinite()
        return torch.where(sound, share, torch.nan).unsqueeze(-1) * raw


def own_beside_rows() -> hn.sets.ConstraintSet:
    """Such a set beside rows and a box, which the library solves together."""
    return Dome(radius_of, name="dome") & hn.Box(-0.8, 1.5) & hn.Equality(draw(1, 4, seed=3), 0.3)


def island_or_strip() -> hn.sets.ConstraintSet:
    """A ball that moves with x, or a strip of a box."""
    return hn.Ball(lambda x: 0.3 * x - 2.0, radius_of) | (constant_rows() & hn.Box(lambda x: 1 - x.square(), 2.5))


def last_of(x: Tensor) -> Tensor:
    """(*batch, 1), in the unit cube."""
    return 0.5 * torch.tanh(x[..., :1])


CASES = [
    Case("aff-constant", lambda: hn.layers.HardNetAff(constant_rows()), 4, compiled=True),
    Case("aff-moving", lambda: hn.layers.HardNetAff(moving_rows()), 4, 4, compiled=True),
    Case("aff-equality", lambda: hn.layers.HardNetAff(balance()), 4),
    Case("aff-box", lambda: hn.layers.HardNetAff(hn.Box(-torch.ones(3, dtype=torch.float64), 1.0)), 3),
    Case("aff-strict", lambda: hn.layers.HardNetAff(constant_rows(), strict=True), 4),
    Case("aff-eq", lambda: hn.layers.HardNetEq(balance()), 3),
    Case("projection-many-rows", lambda: hn.layers.Projection(many_rows()), 4),
    Case("projection-moving", lambda: hn.layers.Projection(moving_rows()), 4, 4),
    Case("projection-equality", lambda: hn.layers.Projection(balance() & hn.Box(-2.0, 2.0)), 4),
    Case("projection-relaxed", lambda: hn.layers.Projection(giving_way()), 4, 4),
    Case("projection-levels", lambda: hn.layers.Projection(giving_way_by_level()), 4, 4),
    Case("cvx-relaxed", lambda: hn.layers.HardNetCvx(hn.Relaxed(many_rows() & hn.Affine(STEPS, upper=-0.7))), 4),
    Case("cvx-polyhedron", lambda: hn.layers.HardNetCvx(many_rows()), 4),
    Case("cvx-simplex", lambda: hn.layers.HardNetCvx(hn.Simplex(4)), 4),
    Case("cvx-l1", lambda: hn.layers.HardNetCvx(hn.L1Ball(draw(4, seed=18), radius_of)), 4, 2, compiled=True),
    Case(
        "cvx-l1-beside",
        lambda: hn.layers.HardNetCvx(hn.L1Ball(0.1 * draw(4, seed=18), radius_of, wide_bound) & constant_rows()),
        4,
        4,
    ),
    Case("projection-transport", lambda: hn.layers.Projection(hn.Transport([0.7, 0.3], shares_of)), 4, 2),
    Case(
        "cvx-monotone", lambda: hn.layers.HardNetCvx(hn.Monotone(4, lower=-1.0, upper=wide_bound)), 4, 4, compiled=True
    ),
    Case(
        "projection-entropy",
        lambda: hn.layers.Projection(hn.Transport([0.7, 0.3], shares_of), metric="entropy"),
        4,
        2,
    ),
    Case(
        "projection-horizon", lambda: hn.layers.Projection(hn.Horizon(4, -1.0, 1.0, 0.5, 0.4, previous=last_of)), 4, 4
    ),
    Case(
        "projection-steps",
        lambda: hn.layers.Projection(hn.Monotone(4, upper=wide_bound, step=(0.1, 0.8), bend=(None, 0.3))),
        4,
        4,
    ),
    Case("cvx-scaled", lambda: hn.layers.HardNetCvx(hn.scaled(ball_of_x(), MEAN, STD)), 4, 2),
    Case(
        "projection-scaled", lambda: hn.layers.Projection(hn.scaled(moving_rows() & hn.Box(-3.0, 4.0), MEAN, STD)), 4, 4
    ),
    Case("cvx-ball", lambda: hn.layers.HardNetCvx(ball_of_x()), 4, 2),
    Case("cvx-quadratic", lambda: hn.layers.HardNetCvx(quadratic()), 4),
    Case("cvx-cone", lambda: hn.layers.HardNetCvx(cone()), 4),
    Case("cvx-lmi", lambda: hn.layers.HardNetCvx(matrix_inequality()), 3),
    Case("cvx-mixed", lambda: hn.layers.HardNetCvx(ball_of_x() & hn.Box(-0.6, 0.6) & quadratic()), 4, 2),
    Case("nonlinear", lambda: hn.layers.NonlinearLayer(saddle_in_a_shell()), 4, 4),
    Case("nonlinear-inside", lambda: hn.layers.NonlinearLayer(hn.Nonlinear(ellipsoid_rows, dim=4, upper=0.0)), 4, 2),
    Case(
        "nonlinear-retract",
        lambda: hn.layers.NonlinearLayer(saddle_in_a_shell(), mode="retract"),
        4,
        4,
        gradients=False,  # the projector is not the derivative of a retraction
    ),
    Case("cvx-own-projection", lambda: hn.layers.HardNetCvx(own_beside_rows()), 4, 2),
    Case("union", lambda: hn.layers.UnionLayer(island_or_strip()), 4, 4),
    Case(
        "union-nonlinear",
        lambda: hn.layers.UnionLayer(saddle_in_a_shell() | hn.Ball(2.0 * torch.ones(4, dtype=torch.float64), 0.5)),
        4,
        4,
    ),
    Case("dc3", lambda: hn.layers.DC3(balance()), 3),
    Case("dc3-moving", lambda: hn.layers.DC3(moving_rows()), 4, 4, compiled=True),
    Case("dc3-completion", lambda: hn.layers.DC3(moving_balance(), predicted=[1, 3], dim=4), 2, 4, compiled=True),
    Case("kkt-hpinn-moving", lambda: hn.layers.KKThPINN(half_moving_balance()), 4, 4, compiled=True),
    Case("acnet-moving", lambda: hn.layers.ACnet(moving_balance(), residuals=[0, 2], dim=4), 2, 4, compiled=True),
    Case("rayen-point", lambda: hn.layers.Rayen(constant_rows(), raw_as="point"), 4, compiled=True),
    Case("rayen-equality", lambda: hn.layers.Rayen(balance()), 3, compiled=True),
    Case("rayen-sigmoid", lambda: hn.layers.Rayen(hn.Simplex(4), radial="sigmoid"), 4, compiled=True),
    Case("rayen", lambda: hn.layers.Rayen(many_rows()), 4),
    Case("rayen-curved", lambda: hn.layers.Rayen(quadratic() & hn.Box(-2.0, 2.0)), 4),
    Case("linsat", lambda: hn.layers.LinSAT(positive_rows()), 4, spread=0.1),
    Case("cdgm", lambda: hn.layers.CDGM(constant_rows()), 4),
    Case("cone", lambda: hn.layers.Cone(homogeneous_rows()), 4),
    Case("cdgm-moving", lambda: hn.layers.CDGM(hn.Affine(STEPS, upper=wide_bound)), 4, 4, compiled=True),
    Case("linsat-moving", lambda: hn.layers.LinSAT(moving_total(), temperature=0.3), 4, 4, spread=0.1),
    Case("cone-box", lambda: hn.layers.Cone(hn.Affine(STEPS[:3], upper=0.0), box=0.5), 4, compiled=True),
    Case("kkt-hpinn", lambda: hn.layers.KKThPINN(simple_balance()), 4),
    Case("acnet", lambda: hn.layers.ACnet(simple_balance()), 2),
]
