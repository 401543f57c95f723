"""RAYEN (Tordesillas et al., 2023): rays from an interior point, cut at the boundary of a constant convex set.

The same layer also implements two related maps: the ray shift of Konstantinov & Utkin (2023) and the soft radial map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hardnet.errors import (
    HardNetError,
    NonFiniteError,
    OptionError,
    ShapeError,
    UnsupportedSetError,
    sentence,
)
from hardnet.functional.gauge import Gauge, gauges_about, largest_gauge
from hardnet.layers.base import Guarantee, Layer
from hardnet.layers.constant_rows import poison, raise_for_invalid, take_raw
from hardnet.layers.options import LayerOptions, choice, vector
from hardnet.modes import working
from hardnet.products import times
from hardnet.region import Kind
from hardnet.sets.base import ConstraintSet
from hardnet.shapes import require_like
from hardnet.solvers.conic.blocks import Balls, Block, Intervals
from hardnet.solvers.offline import (
    THIN,
    Halfspaces,
    center_of,
    halfspaces,
    hull_of,
    largest_bound,
    least_slack,
)
from hardnet.tolerances import ROUNDINGS


class Rayen(Layer):
    """``y = y0 + N v / max(1, gauge(v))``: go from the interior point y0 along v, and stop at the boundary.

    y0 and the basis N of the affine hull are computed once, offline. A displacement v that stays inside the set is
    kept; one that leaves it loses only the gradient along the ray. The set must be constant.

    Args:
        constraint: Constant rows, quadratics, second-order cones, balls, matrix inequalities, or intersections (`&`)
            of these.
        radial: ``"clip"`` as published; ``"soft"`` is ``v / (1 + gauge)``, which stays strictly inside and loses no
            gradient; ``"boundary"`` is ``v / gauge``, always on the boundary; ``"sigmoid"`` is Konstantinov & Utkin's
            ``sigmoid(s) r / gauge(r)`` for raw = (s, r). The last two need a set that is bounded along every ray.
        raw_as: Whether raw is the ``"displacement"`` v, with one number per dimension of the affine hull, or a
            ``"point"`` with all n coordinates and ``v = N'(raw - y0)``.
        interior: y0 ``(n,)`` if known; it must satisfy every inequality strictly. This avoids the offline programs,
            which need the extra ``offline``.
        on_invalid: ``"raise"`` an error that names bad samples, or return ``"nan"`` for these samples alone.
    """

    name = "rayen"
    accepts = "constant convex sets with an interior: affine rows, quadratics, second-order cones, LMIs, and & of these"
    guarantee = Guarantee.EXACT
    identity_inside = False  # raw is a displacement from y0
    differentiable_numbers = False  # the set is constant

    @dataclass(frozen=True)
    class Options(LayerOptions):
        """`radial`, `raw_as`, `interior` and `on_invalid`, as above."""

        radial: Literal["clip", "soft", "boundary", "sigmoid"] = choice("clip", "soft", "boundary", "sigmoid")
        raw_as: Literal["displacement", "point"] = choice("displacement", "point")
        interior: tuple[float, ...] | None = vector()
        on_invalid: Literal["raise", "nan"] = choice("raise", "nan")

        def __post_init__(self) -> None:
            """Refuse the sigmoid for points: its scalar is an extra raw output, and a point has none."""
            super().__post_init__()
            if self.raw_as == "point" and self.radial == "sigmoid":
                raise OptionError(sentence("raw_as", "'displacement' with radial='sigmoid'", repr(self.raw_as)))

    options: Options
    center: Tensor
    basis: Tensor

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__(constraint, **options)
        with torch.device("cpu"):  # regardless of the default device
            self._exact = self._look_offline(self.options.interior)
        self._cuts: Tensor | None = None
        like = self._like()
        y0, basis = (exact.to(like.device, working(like.dtype)) for exact in self._exact)
        self.register_buffer("center", y0)  # persistent: the trained weights rely on both
        self.register_buffer("basis", basis)
        self.refresh()

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Accept only constant sets that consist of known blocks."""
        for part in constraint.parts:
            if not part.is_made_of(Kind.ROWS, Kind.CURVED):
                return f"{type(part).__name__} has no gauge in closed form; use method='auto'"
        if not constraint.constant:
            return "it depends on x or is learned, and its interior point is found once; use method='auto'"
        if any(number.is_meta for number in constraint.buffers()):
            return "its numbers are on the meta device, and an interior point is found from them; build it on the CPU"
        if constraint.dim is None:
            return "its dimension is not known; give one bound as a vector"
        return None

    @property
    def raw_dim(self) -> int:
        """The dimension of the affine hull, plus one for the sigmoid's scalar; n where raw is a point."""
        if self.options.raw_as == "point":
            return self.basis.shape[0]
        return self.basis.shape[1] + (self.options.radial == "sigmoid")

    def refactor(self) -> None:
        """Prepare the gauge of every piece about y0, in float64, and round it to the dtype of the set."""
        if any(not torch.equal(exact.to(own), own) for exact, own in zip(self._exact, self._kept(), strict=True)):
            self._exact = tuple(own.detach().to("cpu", torch.float64) for own in self._kept())  # loaded from a file
        y0, basis = self._exact
        like = self._like()
        self.center, self.basis = (exact.to(self.center.device, working(self.center.dtype)) for exact in self._exact)
        linear, curved = self._blocks()
        rows = self._cutting(halfspaces(linear, len(y0)), basis)
        slack, off = least_slack(rows, curved, y0), _distance_to_hull(rows, y0, basis)
        if not slack > 0 or off > 8 * torch.finfo(like.dtype).eps:
            got = f"a slack of {slack:.1e} and equalities off by {off:.1e} in {like.dtype}"
            raise UnsupportedSetError(sentence("interior", "a point strictly inside the set", got))
        self._rows = tuple(part.to(self.center) for part in (rows.A, rows.b, rows.b - rows.A @ y0))
        gauges = gauges_about(y0, basis, rows.A, rows.b, curved)
        self._gauges: list[Gauge] = [type(gauge)(*(field.to(self.center) for field in gauge)) for gauge in gauges]

    def _follow(self, raw: Tensor) -> None:
        """Round y0 and the basis again from their float64 values, so that an earlier shorter dtype loses no digits."""
        self.center, self.basis = (exact.to(raw.device, working(raw.dtype)) for exact in self._exact)
        super()._follow(raw)

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, raw_dim)`` to y ``(*batch, n)``."""
        require_like("center", self.center, raw)
        raw, bad = take_raw(raw, self)
        v = self._displacement(raw)
        gauge = largest_gauge(self._gauges, v)
        y = self._pulled_back(self.center + times(self.basis, v * self._factor(raw, v, gauge).unsqueeze(-1)))
        if self._keeps_points:
            y = torch.where((gauge <= 1).unsqueeze(-1), raw, y)  # a point in the set is returned bit for bit
        y = poison(y, bad | gauge.isnan())
        if self.options.on_invalid == "raise":
            raise_for_invalid(y, self._diagnose)
        return y

    def _pulled_back(self, y: Tensor) -> Tensor:
        """Y, moved towards the center by as much as rounding at the size of the center has put a row outside."""
        A, b, slack = self._rows
        with torch.no_grad():
            terms = ROUNDINGS / 4 * torch.finfo(y.dtype).eps * (times(A.abs(), y.abs()) + b.abs())
            excess = times(A, y) - b
            part = torch.where(excess > terms, (excess + terms) / slack, 0.0)
            moved = part.amax(-1, keepdim=True) * (y - self.center) if len(b) else torch.zeros_like(y)
        return y - moved

    @property
    def _keeps_points(self) -> bool:
        """Whether a raw output inside the set is returned unchanged: raw is a point, and the set has full dimension."""
        full = self.basis.shape[0] == self.basis.shape[1]
        return full and self.options.raw_as == "point" and self.options.radial == "clip"

    def _displacement(self, raw: Tensor) -> Tensor:
        """The displacement v, ``(*batch, k)``."""
        if self.options.raw_as == "point":
            return times(self.basis.mT, raw - self.center)
        return raw[..., 1:] if self.options.radial == "sigmoid" else raw

    def _factor(self, raw: Tensor, v: Tensor, gauge: Tensor) -> Tensor:
        """The factor to scale v by, ``(*batch)``; NaN where the ray should end at the boundary but never meets it."""
        if self.options.radial == "clip":
            return 1 / gauge.clamp_min(1)
        if self.options.radial == "soft":
            return 1 / (1 + gauge)
        meets = gauge > 0
        kept = torch.where(meets, 1 / torch.where(meets, gauge, 1), torch.nan)
        kept = torch.where((v == 0).all(dim=-1), 0, kept)  # no direction: the interior point itself
        return kept * raw[..., 0].sigmoid() if self.options.radial == "sigmoid" else kept

    def _cutting(self, rows: Halfspaces, basis: Tensor) -> Halfspaces:
        """The inequality rows that vary along the hull; decided once, in the dtype that the set was built in.

        Rounding to another dtype makes rows that are constant on the hull vary slightly; these must not be added.
        """
        if self._cuts is None or len(self._cuts) != len(rows.A):
            limit = max(1e-10, 4 * torch.finfo(self.center.dtype).eps)
            self._cuts = torch.linalg.vector_norm(rows.A @ basis, dim=-1) > limit
        return rows._replace(A=rows.A[self._cuts], b=rows.b[self._cuts])

    def _look_offline(self, interior: tuple[float, ...] | None) -> tuple[Tensor, ...]:
        """y0 and the basis of the affine hull, on the CPU in float64."""
        linear, curved = self._blocks()
        rows = halfspaces(linear, self.constraint.dim or 0)
        if interior is None:
            return center_of(rows, curved)
        hull, y0 = hull_of(rows), torch.tensor(interior, dtype=torch.float64, device="cpu")
        if y0.shape != hull.point.shape:
            raise ShapeError(sentence("interior", f"shape {tuple(hull.point.shape)}", tuple(y0.shape)))
        slack, off = least_slack(rows, curved, y0), (rows.C @ y0 - rows.d).abs().amax().item() if len(rows.C) else 0.0
        if not slack > THIN * min(1.0, largest_bound(rows)) or off > 1e-9 * (1 + y0.abs().max().item()):
            got = f"slack {slack:.2g} and equalities off by {off:.2g}"
            remedy = "leave it out, and it is computed"
            raise UnsupportedSetError(sentence("interior", "a point strictly inside every inequality", got, remedy))
        return y0, hull.basis

    def _blocks(self) -> tuple[list[Intervals], list[Block]]:
        """The linear and the curved pieces of the set, on the CPU in float64."""
        like = self._like()
        found = self.constraint.region(None, like).blocks(like)
        blocks = [block.cone() if isinstance(block, Balls) else block for block in found]
        exact = [type(block)(*(field.detach().to("cpu", torch.float64) for field in block)) for block in blocks]
        return [own for own in exact if isinstance(own, Intervals)], [
            own for own in exact if not isinstance(own, Intervals)
        ]

    def _like(self) -> Tensor:
        """The origin in the dtype and device of the set; `refusal` has ensured that its dimension is known."""
        origin = self.constraint.origin()
        return torch.zeros(0, dtype=torch.float64) if origin is None else origin

    def _kept(self) -> tuple[Tensor, Tensor]:
        return self.center, self.basis

    def _diagnose(self) -> HardNetError:
        """Why some sample of y is NaN."""
        text = f"raw: expected rays that meet the boundary with radial='{self.options.radial}', got an unbounded one"
        return NonFiniteError(f"{text}; use radial='clip' or 'soft'")


def _distance_to_hull(rows: Halfspaces, y0: Tensor, basis: Tensor) -> float:
    """How far y0 and the directions of the basis are off the equalities, relative to the size of their terms."""
    if not len(rows.C):
        return 0.0
    size = (rows.C.abs() @ y0.abs()).clamp_min(1) + rows.d.abs()
    off = [((rows.C @ y0 - rows.d).abs() / size).amax(), *(rows.C @ basis).abs().amax(dim=0)]
    return max(float(value) for value in off)
