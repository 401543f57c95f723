"""Distributions on C(x): ``y = c + N z / (1 + gamma(z))`` carries a distribution on R^d to the inside of C(x).

N is an orthonormal basis of the directions of aff C(x), of dimension d, c a point strictly inside, and gamma the gauge
of ``C(x) - c`` along N: the map is a bijection of R^d onto the relative interior. A ray through c is mapped to itself,
``r -> r / (1 + r gamma)`` with the derivative ``(1 + r gamma)^-2``, and the d - 1 directions across shrink by
``1 / (1 + gamma)`` each, so that ``log |det| = -(d + 1) log(1 + gamma(z))``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, TransformedDistribution, constraints

from hardnet.certificate import check
from hardnet.errors import (
    BoundsError,
    DTypeError,
    NonFiniteError,
    ShapeError,
    UnsupportedSetError,
    in_samples,
    sample_indices,
    sentence,
)
from hardnet.functional.derivatives import keep_value
from hardnet.functional.gauge import Gauge, gauges_about, largest_gauge
from hardnet.layers.nearest import nearest
from hardnet.modes import full_precision
from hardnet.nearest.policy import Policy
from hardnet.products import times
from hardnet.region import Kind
from hardnet.sets.base import ConstraintSet
from hardnet.shapes import broadcast_batch
from hardnet.solvers.conic.blocks import Balls, Block, Quadratics, SecondOrder, SemiDefinite

__all__ = ["Feasible"]

THIN = 1e-8
"""A set whose center has at most this slack, relative to its size, counts as having no interior."""
FLAT = 1e-12
"""Singular values of unit equality rows below this count as zero, and rows that vary less along aff C(x) as constant.
"""
CENTER_STEPS = 400
"""The most damped Newton steps towards the center; a sample takes 20 to 60."""
CENTERED = 1e-9
"""Newton's decrement at which the center is found."""


class Feasible(Distribution):
    """The image of `base` under ``y = c + N z / (1 + gamma(z))``, a distribution on the relative interior of C(x).

    Its density is with respect to Lebesgue measure on aff C(x), whose dimension d, n less the independent equalities,
    is the same at every x: ``log p(y) = log p_base(z) + (d + 1) log(1 + gamma(z))``. Where a ray never leaves C(x)
    gamma is 0, so that unbounded sets work. At the center the map is ``y = c + N z``: scales of the base are in the
    units of y. The set is convex, of affine rows, boxes, equalities, balls, quadratics, cones and matrix inequalities.

    Args:
        base: A distribution with event shape ``(d,)``, such as ``Independent(Normal(mean, std), 1)``; its batch shape
            is that of x.
        constraint: C(x), with an interior relative to its declared equalities.
        x: The input that the set depends on.
        center: c, strictly inside: ``(n,)``, ``(*batch, n)`` or a function of x; learned where it asks for a gradient.
            None finds ``argmin |y - p|^2 / (2 reach^2) - sum_i log slack_i(y)``, with p the point of C(x) nearest to
            zero: the analytic center of a set that is small beside `reach`. It is unique, moves continuously with
            C(x), and carries the derivative to the numbers of the set.
        reach: How far from p the center of an unbounded set may be, > 0.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    base: Distribution
    constraint: ConstraintSet
    center: Tensor
    """c, ``(n,)`` or ``(*batch, n)`` float64; for a constant set it may be given to the next distribution."""

    @full_precision
    def __init__(
        self, base: Distribution, constraint: ConstraintSet, x: Any = None, *, center: Any = None, reach: float = 10.0
    ) -> None:
        _require_supported(base, constraint)
        if not (isinstance(reach, (int, float)) and 0 < reach < torch.inf):
            raise BoundsError(sentence("reach", "a number > 0", repr(reach)))
        self.constraint, self._x = constraint, x
        like = _like(base, constraint, x, center)
        self._dtype = like.dtype
        numbers = constraint.numbers(x, like)
        pieces = _Pieces.of(constraint, numbers, like)
        self._box = pieces.box
        if center is None:
            nearest = pieces.moved_onto_hull(_nearest_to_zero(constraint, numbers, like, x).double())
            center = _center(pieces, nearest, float(reach))
        else:
            center = self._given_center(pieces, center(x) if callable(center) else center, like)
        self.center, self._basis = center, pieces.basis
        self._gauges: list[Gauge] = gauges_about(center, pieces.basis, pieces.A, pieces.b, pieces.curved)
        d = pieces.basis.shape[-1]
        if base.event_shape != (d,):
            got = f"{tuple(base.event_shape)} of {type(base).__name__}"
            remedy = "wrap independent outputs in torch.distributions.Independent(base, 1)"
            raise ShapeError(sentence("base", f"event shape ({d},), the dimension of aff C(x)", got, remedy))
        batch = torch.broadcast_shapes(base.batch_shape, center.shape[:-1])
        self.base = base if base.batch_shape == batch else base.expand(batch)
        super().__init__(batch, like.shape[-1:], validate_args=False)

    def _given_center(self, pieces: _Pieces, center: Any, like: Tensor) -> Tensor:
        """A center as the user gives it, refused where it is not strictly inside, and moved onto aff C(x)."""
        given = torch.as_tensor(center, device=like.device).to(
            torch.float64 if not isinstance(center, Tensor) else None
        )
        if given.shape[-1:] != like.shape[-1:]:
            raise ShapeError(sentence("center", f"shape (*batch, {like.shape[-1]})", tuple(given.shape)))
        point = given.double()
        moved = pieces.moved_onto_hull(point)
        size = point.detach().abs().amax(-1) + moved.detach().abs().amax(-1)
        eps = torch.finfo(given.dtype).eps
        bad = ~((moved - point).detach().abs().amax(-1) <= 64 * eps * size)
        bad = bad | ~(pieces.slack(moved.detach()) > 0).all(-1)
        spot = moved.detach().to(like.dtype)  # rows that do not vary along aff C(x) have no slack, and may be missed
        bad = (
            bad
            | ~check(self.constraint, spot.expand(torch.broadcast_shapes(spot.shape, like.shape)), self._x).satisfied
        )
        if bool(bad.any()):
            samples = sample_indices(bad) if bad.dim() else []
            got = f"one that is not{in_samples(samples)}"
            raise BoundsError(sentence("center", "a point strictly inside C(x)", got, "leave it out, and it is found"))
        return moved

    def __repr__(self) -> str:
        """The set, its dimension, and the base."""
        label = " & ".join(part.label for part in self.constraint.parts)
        return f"Feasible({label} on {self.event_shape[0]} outputs, {self.base})"

    @property
    def has_rsample(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the base has one: the map is differentiable."""
        return self.base.has_rsample

    @property
    def support(self) -> constraints.Constraint:
        """C(x), by the terms of `hn.check`."""
        return _InSet(self.constraint, self._x)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Feasible:
        """The same distribution for a larger batch shape; the numbers of C(x) spread."""
        new: Any = self._get_checked_instance(Feasible, _instance)
        new.__dict__.update(self.__dict__, base=self.base.expand(torch.Size(batch_shape)))
        Distribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        return new

    def rsample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Samples ``(*sample_shape, *batch, n)``, differentiable in the base, the center and the numbers of the set."""
        return self.image(self.base.rsample(torch.Size(sample_shape)))

    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Samples ``(*sample_shape, *batch, n)`` without a graph."""
        return self.sample_with_latent(sample_shape)[0]

    @torch.no_grad()
    def sample_with_latent(self, sample_shape: Sequence[int] = torch.Size()) -> tuple[Tensor, Tensor]:
        """Samples y, and the latent z ``(*sample_shape, *batch, d)`` that each is the image of.

        Far out, rounding puts y on the boundary, where its latent is lost: keep z for a later `log_prob`.
        """
        latent = self.base.sample(torch.Size(sample_shape))
        return self.image(latent), latent

    def deterministic_sample(self) -> Tensor:
        """The image of the base's mode, ``(*batch, n)``: what a policy does when it does not explore."""
        try:
            mode = self.base.mode
        except NotImplementedError:
            expected = "a base with a mode"
            raise UnsupportedSetError(sentence("base", expected, type(self.base).__name__, "call image(z)")) from None
        return self.image(mode)

    @full_precision
    def image(self, latent: Tensor) -> Tensor:
        """``c + N z / (1 + gamma(z))`` for z ``(*sample_shape, *batch, d)``; exactly inside a box."""
        z = latent.double()
        y = self.center + times(self._basis, z / (1 + largest_gauge(self._gauges, z)).unsqueeze(-1))
        y = y.to(self._dtype)
        with torch.no_grad():
            lower, upper = self._box
            held = y if lower is None and upper is None else y.clamp(lower, upper)
        return keep_value(y, held)

    @full_precision
    def latent(self, y: Tensor) -> Tensor:
        """The z that y is the image of, ``(*sample_shape, *batch, d)``; NaN on the boundary, outside, or off aff C(x).

        ``z = w / (1 - gamma(w))`` with ``w = N'(y - c)``.
        """
        away = y.double() - self.center
        w = times(self._basis.mT, away)
        gauge = largest_gauge(self._gauges, w)
        size = y.double().abs().amax(-1) + self.center.abs().amax(-1)
        off = (away - times(self._basis, w)).abs().amax(-1) > 64 * torch.finfo(y.dtype).eps * size
        inside = (gauge < 1) & ~off
        z = w / torch.where(inside, 1 - gauge, 1.0).unsqueeze(-1)
        return torch.where(inside.unsqueeze(-1), z, torch.nan).to(self._dtype)

    @full_precision
    def log_prob(self, value: Tensor, latent: Tensor | None = None) -> Tensor:
        """``log p_base(z) + (d + 1) log(1 + gamma(z))``, ``(*sample_shape, *batch)``.

        Args:
            value: y ``(*sample_shape, *batch, n)``; -inf where it is on the boundary, outside, or off aff C(x).
            latent: The z of y where it was kept; then y is not looked at.
        """
        z = self.latent(value) if latent is None else latent
        out = z.isnan().any(-1, keepdim=True)
        z = torch.where(out, 0.0, z)
        stretch = torch.log1p(largest_gauge(self._gauges, z.double()))
        density = self.base.log_prob(z) + ((z.shape[-1] + 1) * stretch).to(z.dtype)
        return torch.where(out.squeeze(-1), -torch.inf, density)


class _InSet(constraints.Constraint):
    """y in C(x)."""

    event_dim = 1

    def __init__(self, constraint: ConstraintSet, x: Any) -> None:
        self.constraint, self.x = constraint, x

    def check(self, value: Tensor) -> Tensor:
        """Whether a certificate holds, ``(*batch)``; the batch of x stands last."""
        return check(self.constraint, value, self.x).satisfied


class _Pieces(NamedTuple):
    """C(x) in float64: ``A y <= b`` with rows of length one, curved blocks, and aff C(x).

    Attributes:
        A: ``(m, n)`` or ``(*batch, m, n)``.
        b: ``(m,)`` or ``(*batch, m)``; infinite where a row does not cut aff C(x).
        C: The equalities ``C y = d``, rows of length one.
        d: ``(k,)`` or ``(*batch, k)``.
        basis: N, orthonormal columns, ``(n, d)`` or ``(*batch, n, d)``.
        curved: The other blocks.
        box: The bounds of single outputs as they were given, None where absent.
    """

    A: Tensor
    b: Tensor
    C: Tensor
    d: Tensor
    basis: Tensor
    curved: list[Block]
    box: tuple[Tensor | None, Tensor | None]
    cores = {"A": 2, "b": 1, "C": 2, "d": 1, "basis": 2}

    @classmethod
    def of(cls, constraint: ConstraintSet, numbers: Any, like: Tensor) -> _Pieces:
        """Take the numbers of C(x) apart; the same rows must be equalities in every sample."""
        region = constraint.region_of(constraint.essential(numbers), like)
        joined = region.rows(like)
        A, lower, upper = (None if part is None else part.double() for part in joined.dense())
        assert A is not None
        absent = A.new_full(A.shape[-2:-1], torch.inf)
        lower, upper = -absent if lower is None else lower, absent if upper is None else upper
        length = torch.linalg.vector_norm(A.detach(), dim=-1)
        length = torch.where(length > 0, length, 1.0)
        A, lower, upper = A / length.unsqueeze(-1), lower / length, upper / length
        equal = _same_in_all_samples(lower == upper)
        C, d = A[..., equal, :], lower.expand(torch.broadcast_shapes(lower.shape, upper.shape))[..., equal]
        A, lower, upper = A[..., ~equal, :], lower[..., ~equal], upper[..., ~equal]
        basis = _basis(C)
        b = torch.cat(torch.broadcast_tensors(upper, -lower), dim=-1)
        A = torch.cat([A, -A], dim=-2)
        cuts = torch.linalg.vector_norm((A @ basis).detach(), dim=-1) > FLAT
        b = torch.where(cuts, b, torch.inf)
        kept = b.isfinite().flatten(0, -2).any(0) if b.dim() > 1 else b.isfinite()
        cones = [block.cone() if isinstance(block, Balls) else block for block in region.curved()]
        curved: list[Block] = [type(block)(*(field.double() for field in block)) for block in cones]
        _require_finite(like, [A, C, d, *(field for block in curved for field in block)])
        return cls(A[..., kept, :], b[..., kept], C, d, basis, curved, (joined.box_lower, joined.box_upper))

    def moved_onto_hull(self, y: Tensor) -> Tensor:
        """The nearest point of aff C(x): what y has lost by rounding comes back."""
        if not self.C.shape[-2]:
            return y
        return y - times(torch.linalg.pinv(self.C, rtol=FLAT), times(self.C, y) - self.d)

    def slack(self, y: Tensor) -> Tensor:
        """The slack of each piece at y ``(*batch, rows)``: positive strictly inside."""
        rows = [self.b - times(self.A, y), *(-block.excess(y) for block in self.curved)]  # pyright: ignore[reportAttributeAccessIssue]
        batch = torch.broadcast_shapes(*(row.shape[:-1] for row in rows))
        return torch.cat([row.expand(*batch, -1) for row in rows], dim=-1)

    def lifted(self) -> _Pieces:
        """The pieces in (y, t), where t raises every slack."""
        pad = torch.nn.functional.pad
        curved: list[Block] = []
        for block in self.curved:
            if isinstance(block, SecondOrder):
                curved.append(SecondOrder(pad(block.A, (0, 1)), block.b, pad(block.c, (0, 1), value=1.0), block.d))
            elif isinstance(block, SemiDefinite):
                eye = torch.eye(block.F0.shape[-1], dtype=block.F0.dtype, device=block.F0.device)
                curved.append(SemiDefinite(block.F0, torch.cat([block.F, eye.expand_as(block.F[:, :1])], dim=1)))
            else:
                assert isinstance(block, Quadratics)
                curved.append(Quadratics(pad(block.P, (0, 1, 0, 1)), pad(block.q, (0, 1), value=-1.0), block.r))
        basis = pad(self.basis, (0, 1, 0, 1))
        basis[..., -1, -1] = 1.0
        return self._replace(A=pad(self.A, (0, 1), value=-1.0), basis=basis, curved=curved)

    def map(self, function: Callable[[Tensor, int], Tensor]) -> _Pieces:
        """Apply ``function(number, core)`` to every tensor, where core counts its dimensions after the batch."""
        named = {name: function(getattr(self, name), core) for name, core in self.cores.items()}
        curved: list[Block] = [
            type(block)(*(function(field, core) for field, core in zip(block, block.cores, strict=True)))
            for block in self.curved
        ]
        return self._replace(curved=curved, **named)


def _require_supported(base: Any, constraint: Any) -> None:
    """Refuse what is no distribution, and sets that have no gauge in closed form."""
    if not isinstance(base, Distribution):
        raise DTypeError(sentence("base", "a torch.distributions.Distribution", type(base).__name__))
    if not isinstance(constraint, ConstraintSet):
        raise DTypeError(sentence("constraint", "a set", type(constraint).__name__, "build one with hn.Affine, ..."))
    for part in constraint.parts:
        if not part.is_made_of(Kind.ROWS, Kind.CURVED):
            expected = "a convex set of affine rows, balls, quadratics, cones and matrix inequalities"
            remedy = "write these as rows or blocks, or project samples by a layer"
            raise UnsupportedSetError(sentence("constraint", expected, type(part).__name__, remedy))


def _like(base: Distribution, constraint: ConstraintSet, x: Any, center: Any) -> Tensor:
    """Zeros ``(*batch, n)`` in the dtype of the base's samples."""
    inner: Any = base
    while isinstance(inner, TransformedDistribution):
        inner = inner.base_dist
    point = constraint.origin_at(x)
    point = center if point is None and isinstance(center, Tensor) else point
    if point is None and not base.event_shape:
        raise ShapeError(sentence("base", "a distribution of vectors, event shape (d,)", "one of numbers"))
    n = base.event_shape[-1] if point is None else point.shape[-1]
    batch = base.batch_shape if point is None else broadcast_batch("x", base.batch_shape, point.shape[:-1])
    return inner.mean.new_zeros(*batch, n)


def _same_in_all_samples(equal: Tensor) -> Tensor:
    """Which rows are equalities, ``(rows,)``; refused where that depends on the sample."""
    rows = equal.flatten(0, -2) if equal.dim() > 1 else equal.unsqueeze(0)
    every, some = rows.all(0), rows.any(0)
    if bool((every != some).any()):
        bad = (equal & ~every).any(-1)
        got = f"equal bounds of an inequality{in_samples(sample_indices(bad))}"
        expected = "the same dimension of C(x) at every x"
        raise UnsupportedSetError(sentence("constraint", expected, got, "keep its bounds apart"))
    return every


def _basis(C: Tensor) -> Tensor:
    """Orthonormal directions N along ``C y = 0``: those of a fixed frame, made orthogonal one after the other.

    It moves smoothly with C, as the null space of an SVD does not.
    """
    n = C.shape[-1]
    eye = torch.eye(n, dtype=C.dtype, device=C.device)
    if not C.shape[-2]:
        return eye
    rank = (torch.linalg.svdvals(C.detach()) > FLAT * C.shape[-2]).sum(-1)
    least, most = int(rank.min()), int(rank.max())
    if least != most or most == n:
        got = "equalities that leave a single point" if least == most else f"{least} to {most} independent equalities"
        raise UnsupportedSetError(sentence("constraint", "the same dimension of C(x), at least 1, at every x", got))
    frame = torch.cos(torch.arange(1, n * (n - most) + 1, dtype=C.dtype, device=C.device).square())
    along = (eye - torch.linalg.pinv(C, rtol=FLAT) @ C) @ frame.reshape(n, n - most)
    Q, R = torch.linalg.qr(along)
    return Q * R.diagonal(dim1=-2, dim2=-1).sign().detach().unsqueeze(-2)


def _require_finite(like: Tensor, numbers: Sequence[Tensor]) -> None:
    """Refuse numbers of the set that are not finite."""
    if any(not bool(number.isfinite().all()) for number in numbers):
        raise NonFiniteError(sentence("constraint", "finite numbers", "NaN or infinity"))


def _nearest_to_zero(constraint: ConstraintSet, numbers: Any, like: Tensor, x: Any) -> Tensor:
    """The point of C(x) nearest to zero; an empty set is an error that names its rows."""
    return nearest(constraint, like, x, Policy("raise" if constraint.polyhedral else "auto"), formulas=False)


def _center(pieces: _Pieces, p: Tensor, reach: float) -> Tensor:
    """``argmin |y - p|^2 / (2 reach^2) - sum log slack`` on aff C(x), ``(n,)`` or ``(*batch, n)``.

    Damped Newton steps from p, first in (y, t) with every slack raised by t until all are positive without it, then in
    y alone; a step of ``1 / (1 + decrement)`` stays inside, since the function is self-concordant. One more step,
    which is differentiated, gives y the derivative of the minimizer.
    """
    slack = pieces.slack(p.detach())
    batch = torch.broadcast_shapes(p.shape[:-1], slack.shape[:-1])
    if not slack.shape[-1]:
        return p

    def spread(number: Tensor, core: int) -> Tensor:
        own = number.shape[number.dim() - core :]
        return number.expand(*(batch or (1,)), *own).reshape(batch.numel(), *own)

    flat, start = pieces.map(spread), spread(p, 1)
    fixed = flat.map(lambda number, core: number.detach())
    with torch.no_grad():
        u, thin = _inside(fixed, start.detach(), reach)
        if bool(thin.any()):
            got = f"one without{in_samples(sample_indices(thin.reshape(batch)) if batch else [])}"
            remedy = "write rows that always hold with equality as hn.Equality"
            expected = "a set with an interior relative to its equalities"
            raise UnsupportedSetError(sentence("constraint", expected, got, remedy))
        for _ in range(CENTER_STEPS):
            slope, bend = _barrier(fixed, start.detach(), u, reach)
            step, decrement = _newton(slope, bend)
            u = u - step
            if bool((decrement < CENTERED).all()):
                break
    y = start + times(flat.basis, u)
    numbers = (start, *flat[:5], *(field for block in flat.curved for field in block))
    if torch.is_grad_enabled() and any(number.requires_grad for number in numbers):
        slope, bend = _barrier(flat, start, u, reach)
        moved = u - torch.linalg.solve(bend.detach(), slope.unsqueeze(-1)).squeeze(-1)
        y = keep_value(start + times(flat.basis, moved), y)
    return y.reshape(*batch, y.shape[-1])


def _inside(pieces: _Pieces, p: Tensor, reach: float) -> tuple[Tensor, Tensor]:
    """u ``(B, d)`` with ``p + N u`` strictly inside, and which samples have none ``(B,)``: the least t, from above."""
    lifted, origin = pieces.lifted(), torch.nn.functional.pad(p, (0, 1))
    least = pieces.slack(p).amin(-1)
    enough = THIN * p.abs().amax(-1) + THIN * 1e-4 * reach
    v = torch.nn.functional.pad(torch.zeros_like(pieces.basis[:, 0]), (0, 1))
    v[:, -1] = (2 * -least).clamp_min(0) + 0.1 * reach
    force = 1 / v[:, -1]
    degree = 2 * sum(field.shape[-1] for field in (pieces.slack(p), p))
    for _ in range(CENTER_STEPS):
        open_ = (v[:, -1] > -enough) & (force * enough < degree)
        if not bool(open_.any()):
            break
        slope, bend = _barrier(lifted, origin, v, reach)
        slope[:, -1] += force
        step, decrement = _newton(slope, bend)
        v = torch.where(open_.unsqueeze(-1), v - step, v)
        force = torch.where(decrement < 0.5, 4 * force, force)
    u = v[:, :-1]
    return u, ~(pieces.slack(p + times(pieces.basis, u)) > 0).all(-1) | (v[:, -1] > -enough)


def _newton(slope: Tensor, bend: Tensor) -> tuple[Tensor, Tensor]:
    """The damped Newton step ``(B, d)`` and its decrement ``(B,)``; whole steps where the decrement is below 1/4."""
    step, singular = torch.linalg.solve_ex(bend, slope.unsqueeze(-1))
    step = torch.where((singular == 0).unsqueeze(-1), step.squeeze(-1), 0.0)
    decrement = (step * slope).sum(-1).clamp_min(0).sqrt()
    return step / (1 + torch.where(decrement < 0.25, 0.0, decrement)).unsqueeze(-1), decrement


def _barrier(pieces: _Pieces, p: Tensor, u: Tensor, reach: float) -> tuple[Tensor, Tensor]:
    """Slope ``(B, d)`` and Hessian ``(B, d, d)`` of ``|u|^2 / (2 reach^2) - sum log slack`` at ``y = p + N u``.

    The barrier of a cone is that of ``(c'y + d)^2 - |A y + b|^2``, that of a matrix the logarithm of its determinant.
    ``-log f`` has the slope ``g = -f' / f`` and the Hessian ``g g' - f'' / f``.
    """
    y = p + times(pieces.basis, u)
    inverse = 1 / (pieces.b - times(pieces.A, y))
    slope = times(pieces.A.mT, inverse)
    bend = (pieces.A * inverse.square().unsqueeze(-1)).mT @ pieces.A
    for block in pieces.curved:
        if isinstance(block, SemiDefinite):
            F0, F = ((number + number.mT) / 2 for number in block)
            scaled = torch.linalg.solve((F0 + torch.einsum("bk,bkij->bij", y, F)).unsqueeze(1), F)
            slope = slope - scaled.diagonal(dim1=-2, dim2=-1).sum(-1)
            bend = bend + torch.einsum("bkij,blji->bkl", scaled, scaled)
            continue
        if isinstance(block, SecondOrder):
            w, h = times(block.A, y) + block.b, (block.c * y).sum(-1) + block.d
            value = h.square() - w.square().sum(-1)
            first = 2 * (h.unsqueeze(-1) * block.c - times(block.A.mT, w))
            second = 2 * (block.c.unsqueeze(-1) * block.c.unsqueeze(-2) - block.A.mT @ block.A)
        else:
            assert isinstance(block, Quadratics)
            P = (block.P + block.P.mT) / 2
            value, first = -(y * (0.5 * times(P, y) + block.q)).sum(-1) - block.r, -times(P, y) - block.q
            second = -P
        own = -first / value.unsqueeze(-1)
        slope, bend = slope + own, bend + own.unsqueeze(-1) * own.unsqueeze(-2) - second / value[:, None, None]
    eye = torch.eye(u.shape[-1], dtype=u.dtype, device=u.device) / reach**2
    return times(pieces.basis.mT, slope) + u / reach**2, pieces.basis.mT @ bend @ pieces.basis + eye
