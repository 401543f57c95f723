"""One convex quadratic ``1/2 y'Py + q'y + r <= 0``: exact projection by a one-dimensional root."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import INDEFINITE, NOT_FINITE, InfeasibleError, ShapeError, sentence
from hardnet.functional.derivatives import attach, keep_value
from hardnet.functional.samples import refuse, reject
from hardnet.modes import may_look, mode
from hardnet.nearest.policy import Once, OnInfeasible, OnInvalid, OnUnsolved, Policy, refuse_unsolved
from hardnet.products import times_each
from hardnet.shapes import broadcast_batch, check_number, require_float, require_like
from hardnet.solvers.algebra.small import ascending, solve_square
from hardnet.solvers.conic.blocks import POLISHING_ROOTS, Quadratics, convex, nearest_root, value_and_rounding
from hardnet.solvers.solution import Solution, Status
from hardnet.tolerances import ROUNDINGS


class Spectrum(NamedTuple):
    """``P = V diag(values) V'``, kept for a constant P: ``values (..., n)``, ``V (..., n, n)``, in float64."""

    values: Tensor
    V: Tensor


def diagonalize(P: Tensor) -> Spectrum:
    """The eigendecomposition of the symmetric part of P ``(..., n, n)``; NaN where P is not finite."""
    P = P.detach().double()
    finite = P.isfinite().all(-1).all(-1)[..., None, None]  # LAPACK refuses a whole batch for one NaN
    values, V = ascending(torch.where(finite, (P + P.mT) / 2, 0.0))
    return Spectrum(torch.where(finite.squeeze(-1), values, torch.nan), V)


def project_quadratic(
    raw: Tensor,
    P: Tensor,
    q: Tensor,
    r: Tensor | float,
    *,
    factor: Spectrum | None = None,
    on_infeasible: OnInfeasible = "auto",
    on_unsolved: OnUnsolved = "auto",
    on_invalid: OnInvalid = "raise",
    once: Once | None = None,
) -> Tensor:
    """``argmin |y - raw|  s.t.  1/2 y'Py + q'y + r <= 0``: ``y = (I + mu P)^-1 (raw - mu q)``.

    The value at y(mu) is convex and decreasing in mu, so Newton's method from zero reaches the root without safeguards.

    Args:
        raw: ``(*batch, n)``.
        P: ``(n, n)`` or ``(*batch, n, n)``, positive semidefinite; its antisymmetric part is dropped.
        q: ``(n,)`` or ``(*batch, n)``.
        r: A number, or ``(*batch)``.
        factor: `diagonalize` of a constant P.
        on_infeasible: What to do with an empty set: raise an `InfeasibleError`, or return NaN for that sample;
            ``"auto"`` raises in eager mode on a CPU.
        on_unsolved: The same for numbers of sizes that float64 cannot hold together; ``"best"`` is the last point.
        on_invalid: What to do with NaN or a P with a negative eigenvalue on a CPU in eager mode: raise an error, or
            return NaN.
        once: For the layers; every answer of this method is proved.
    """
    r, policy = _check(raw, P, q, r), Policy(on_infeasible, on_unsolved, on_invalid, once=once).checked()
    policy, best = policy.resolved(may_look(raw)), on_unsolved == "best"
    spectrum = diagonalize(P) if factor is None else factor
    if mode() != "eager":
        return _plain(raw, P, q, r, spectrum, best)
    find = lambda *_: _found(_nearest(raw, P, q, r, spectrum), q, spectrum, raw.dtype, best)
    y, status = attach(find, _derive, (raw, P, q, r), "a projection onto a quadratic")
    if may_look(y) and bool((status != int(Status.SOLVED)).any()):
        _diagnose(raw, P, q, r, spectrum, status, policy)
    return y


def _check(raw: Tensor, P: Tensor, q: Tensor, r: Tensor | float) -> Tensor:
    """Check shape, dtype and device of all arguments; return r as a tensor."""
    require_float("raw", raw)
    n = raw.shape[-1] if raw.dim() else 0
    batch = raw.shape[:-1]
    for name, value, core in (("P", P, (n, n)), ("q", q, (n,))):
        require_like(name, value, raw)
        if raw.dim() == 0 or value.shape[-len(core) :] != core:
            expected = f"shape {core} or (*batch, {', '.join(map(str, core))}) for raw of shape {tuple(raw.shape)}"
            raise ShapeError(sentence(name, expected, tuple(value.shape)))
        batch = broadcast_batch(name, batch, value.shape[: -len(core)])
    return check_number("r", r, raw)


def _diagnose(raw: Tensor, P: Tensor, q: Tensor, r: Tensor, spectrum: Spectrum, status: Tensor, policy: Policy) -> None:
    """Raise an error that says why samples have no answer, if the policy asks for one."""
    invalid = status == int(Status.INVALID)
    finite = raw.isfinite().all(-1) & q.isfinite().all(-1) & r.isfinite() & spectrum.values.isfinite().all(-1)
    if policy.on_invalid == "raise":
        reject(invalid & ~finite, NOT_FINITE, "raw, P, q, r")
        least = spectrum.values[..., 0].min().item()
        reject(invalid & finite, INDEFINITE, "P", f"the eigenvalue {least:.3g}")
    if policy.on_infeasible == "raise":
        text = "the set is empty: expected a y with 1/2 y'Py + q'y + r <= 0, got a positive minimum"
        refuse(status == int(Status.INFEASIBLE), InfeasibleError, text)
    if policy.on_unsolved == "raise" and bool((status == int(Status.NOT_CONVERGED)).any()):
        text = "raw, P, q, r: expected numbers of sizes that float64 can hold together, got no convergence"
        refuse_unsolved(solve_quadratic(raw, P, q, r), text)


@torch.no_grad()
def solve_quadratic(raw: Tensor, P: Tensor, q: Tensor, r: Tensor) -> Solution:
    """`project_quadratic` with its multiplier ``(*batch, 1)`` and status; no sample raises.

    The residual is the value at y, relative to the size of its terms. A set without interior has no multiplier; the one
    returned is some large number.
    """
    r = _check(raw, P, q, r)
    found = _nearest(raw, P, q, r, diagonalize(P))
    y, block = found.y.to(raw.dtype), Quadratics(P.double(), q.double(), r.double())
    size = block.scale(y.double())
    residual = (block.excess(y.double()).clamp_min(0) / torch.where(size > 0, size, 1.0)).squeeze(-1)
    return Solution(y, found.mu, found.status, torch.zeros_like(found.status, dtype=torch.int64), residual)


class Nearest(NamedTuple):
    """The answer in float64: y ``(*batch, n)``, mu ``(*batch, 1)``, and masks ``(*batch)``.

    Attributes:
        y: NaN where there is no answer.
        mu: The multiplier.
        inside: Whether raw is the answer.
        sound: Whether the numbers are finite and P is positive semidefinite.
        bad: Whether there is no answer.
        empty: Whether the set is empty.
        last: The last point where the method did not converge, else y.
    """

    y: Tensor
    mu: Tensor
    inside: Tensor
    sound: Tensor
    bad: Tensor
    empty: Tensor
    last: Tensor

    @property
    def status(self) -> Tensor:
        """The `Status` of each sample."""
        ended = torch.where(self.bad, int(Status.NOT_CONVERGED), int(Status.SOLVED))
        status = torch.where(self.empty, int(Status.INFEASIBLE), ended)
        return torch.where(self.sound, status, int(Status.INVALID)).to(torch.int8)


def _nearest(raw: Tensor, P: Tensor, q: Tensor, r: Tensor, spectrum: Spectrum) -> Nearest:
    """Solve in eigencoordinates in float64; a point inside the set, up to rounding of its dtype, is kept.

    The answer is judged by P itself: where outputs have different units, turning it back costs the small ones digits.
    """
    p, slope, constant = raw.detach().double(), q.detach().double(), r.detach().double()
    values, V = spectrum
    spread = values.clamp_min(0)
    turned, turned_q = times_each(V.mT, p), times_each(V.mT, slope)
    start, rounding = value_and_rounding(turned, turned_q, constant.unsqueeze(-1), spread)
    inside = start.isfinite() & (start <= 2 * rounding * torch.finfo(raw.dtype).eps / torch.finfo(torch.float64).eps)
    finite = p.isfinite().all(-1) & slope.isfinite().all(-1) & constant.isfinite()
    inside = inside & finite.unsqueeze(-1)
    found = nearest_root(turned, turned_q, constant, spread, noise=_noise(V, slope))
    sound = finite & convex(spectrum.values, raw.dtype)
    block = Quadratics(P.detach().double(), slope, constant)
    last, met = _settled(times_each(V, found.y), block, found.mu, spectrum, torch.finfo(raw.dtype).eps)
    bad = ~(sound & ((found.solved & met) | inside.squeeze(-1)))
    last = torch.where(inside, p, last)
    y, empty = torch.where(bad.unsqueeze(-1), torch.nan, last), found.empty & ~inside.squeeze(-1)
    last = torch.where((sound & ~empty).unsqueeze(-1), last, y)
    return Nearest(y, torch.where(inside, 0.0, found.mu), inside.squeeze(-1), sound, bad, empty, last)


def _settled(y: Tensor, block: Quadratics, mu: Tensor, spectrum: Spectrum, eps: float) -> tuple[Tensor, Tensor]:
    """Y moved onto the boundary as a change of mu would, and whether it meets the certificate's rule, ``(*batch)``."""
    damping, V = 1 / (1 + mu * spectrum.values.clamp_min(0)), spectrum.V
    P, look = (block.P + block.P.mT) / 2, may_look(y)
    least = torch.where(block.r == 0, eps, 0.0).unsqueeze(-1)  # where no other number gives the row a size

    def judged(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient, the value, and whether the value is zero or negative by the rule."""
        reach, bent = y.abs() + least, times_each(P, y)
        size = times_each(P.abs(), reach) / 2 + block.q.abs()
        value = ((bent / 2 + block.q) * y).sum(-1, keepdim=True) + block.r.unsqueeze(-1)
        size = (size * reach).sum(-1, keepdim=True) + block.r.abs().unsqueeze(-1)
        return bent + block.q, value, value <= ROUNDINGS * eps * size

    slope, value, met = judged(y)
    for _ in range(POLISHING_ROOTS):
        if look and bool(met.all()):
            break
        way = times_each(V, damping * times_each(V.mT, slope))
        fall = (slope * way).sum(-1, keepdim=True)
        y = y - torch.where(~met & (fall > 0), value / torch.where(fall > 0, fall, 1.0), 0.0) * way
        slope, value, met = judged(y)
    return y, met.squeeze(-1)


def _plain(raw: Tensor, P: Tensor, q: Tensor, r: Tensor, spectrum: Spectrum, best: bool) -> Tensor:
    """The same answer in plain operations, for graphs and transforms.

    Newton steps on mu from the root change no value but carry derivatives: one step the first, two up to the third.
    """
    found = _nearest(raw, P, q, r, spectrum)
    p, P, q, r = raw.double(), (P + P.mT).double() / 2, q.double(), r.double().unsqueeze(-1)
    mu = torch.where(found.bad.unsqueeze(-1), 0.0, found.mu)
    eye = torch.eye(raw.shape[-1], dtype=p.dtype, device=p.device)
    for _ in range(2):
        y, through = _point(p, P, q, mu, eye)
        value = ((times_each(P, y) / 2 + q) * y).sum(-1, keepdim=True) + r
        fall = ((times_each(P, y) + q) * through).sum(-1, keepdim=True)
        mu = torch.where(mu > 0, mu + (value - value.detach()) / torch.where(fall > 0, fall, 1.0), mu)
    y, _ = _point(p, P, q, mu, eye)
    y = keep_value(y, found.last if best else found.y)
    return torch.where(found.inside.unsqueeze(-1), raw, y.to(raw.dtype))


def _point(p: Tensor, P: Tensor, q: Tensor, mu: Tensor, eye: Tensor) -> tuple[Tensor, Tensor]:
    """``y = (I + mu P)^-1 (p - mu q)`` and ``(I + mu P)^-1 (P y + q)``."""
    M = eye + mu.unsqueeze(-1) * P
    y = solve_square(M, p - mu * q)
    return y, solve_square(M, times_each(P, y) + q)


def _found(found: Nearest, q: Tensor, spectrum: Spectrum, dtype: torch.dtype, best: bool) -> Any:
    """``(y, status)``, samples inside with raw bit for bit, and what the derivative needs."""
    saved = found.y, found.mu, q.detach().double(), spectrum.values.clamp_min(0), spectrum.V
    return ((found.last if best else found.y).to(dtype, copy=True), found.status), saved


def _derive(grad: Tensor, saved: Any, inputs: Any, needed: Any) -> tuple[Tensor, ...]:
    """``u``, ``g_P = -mu sym(u y') - omega/2 y y'``, ``g_q = -mu u - omega y``, ``g_r = -omega``.

    With ``n = Py + q``, ``M = (I + mu P)^-1``: ``u = Mg - omega Mn``, ``omega = n'Mg / n'Mn``.
    """
    y, mu, q, spread, V = saved
    bad = y.isnan().any(-1, keepdim=True)
    y, mu, g = torch.where(bad, 0.0, y), torch.where(bad, 0.0, mu), torch.where(bad, 0.0, grad.double())
    spread, q = torch.where(bad, 0.0, spread), torch.where(bad, 0.0, q)
    g, damping = times_each(V.mT, g), 1 / (1 + mu * spread)
    normal = spread * times_each(V.mT, y) + times_each(V.mT, q)
    size = (normal * normal * damping).sum(-1, keepdim=True)
    pull = torch.where((mu > 0) & (size > 0), (normal * g * damping).sum(-1, keepdim=True) / size, 0.0)
    u = times_each(V, damping * (g - pull * normal))
    cross = u.unsqueeze(-1) * y.unsqueeze(-2)
    grad_P = -mu.unsqueeze(-1) * (cross + cross.mT) / 2 - pull.unsqueeze(-1) / 2 * y.unsqueeze(-1) * y.unsqueeze(-2)
    return u, grad_P, -mu * u - pull * y, -pull.squeeze(-1)


def _noise(V: Tensor, q: Tensor) -> Tensor:
    """The rounding of ``V'q``: a q that leaves the range of P by no more than this counts as in the range."""
    return 4 * q.shape[-1] * torch.finfo(q.dtype).eps * times_each(V.mT.abs(), q.abs())
