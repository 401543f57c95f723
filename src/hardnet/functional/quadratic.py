"""One convex quadratic ``1/2 y'Py + q'y + r <= 0``: exact projection by a one-dimensional root."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hardnet.errors import InfeasibleError, NonFiniteError, SampleError, ShapeError, sentence
from hardnet.functional.inputs import broadcast_batch, check_number, require_float, require_like
from hardnet.functional.samples import Policy, look_is_free, refuse
from hardnet.functional.transforms import refuse_transforms
from hardnet.solvers.blocks import CONVEX
from hardnet.solvers.quadratic_root import evaluate, nearest_root


class Spectrum(NamedTuple):
    """``P = V diag(values) V'``, kept for a constant P: ``values (..., n)``, ``V (..., n, n)``, in float64."""

    values: Tensor
    V: Tensor


def diagonalize(P: Tensor) -> Spectrum:
    """The eigendecomposition of the symmetric part of P ``(..., n, n)``; NaN where P is not finite."""
    P = P.detach().double()
    finite = P.isfinite().all(-1).all(-1)[..., None, None]  # LAPACK refuses a whole batch for one NaN
    values, V = torch.linalg.eigh(torch.where(finite, (P + P.mT) / 2, 0.0))
    return Spectrum(torch.where(finite.squeeze(-1), values, torch.nan), V)


def project_quadratic(
    raw: Tensor,
    P: Tensor,
    q: Tensor,
    r: Tensor | float,
    *,
    factor: Spectrum | None = None,
    on_infeasible: Policy = "raise",
    on_invalid: Policy = "raise",
) -> Tensor:
    """``argmin |y - raw|  s.t.  1/2 y'Py + q'y + r <= 0``: ``y = (I + mu P)^-1 (raw - mu q)``.

    The value at y(mu) is convex and decreasing in mu, so Newton from zero climbs to the root without a safeguard.

    Args:
        raw: ``(*batch, n)``.
        P: ``(n, n)`` or ``(*batch, n, n)``, positive semidefinite; its antisymmetric part is dropped.
        q: ``(n,)`` or ``(*batch, n)``.
        r: A number, or ``(*batch)``.
        factor: `diagonalize` of a constant P.
        on_infeasible: What an empty set gives on a CPU in eager mode: an `InfeasibleError`, or NaN for that sample.
        on_invalid: What NaN or a P with a negative eigenvalue give on a CPU in eager mode: an error, or NaN.
    """
    r = _check(raw, P, q, r)
    refuse_transforms("the projection onto a quadratic")
    spectrum = diagonalize(P) if factor is None else factor
    y = _Quadratic.apply(raw, P, q, r, spectrum.values, spectrum.V)
    if look_is_free(y) and bool(y.isnan().any()):
        _diagnose(raw, q, r, spectrum, y, (on_infeasible, on_invalid))
    return y  # pyright: ignore[reportReturnType]


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


def _diagnose(raw: Tensor, q: Tensor, r: Tensor, spectrum: Spectrum, y: Tensor, policies: tuple[str, str]) -> None:
    """Say why samples have no answer, as far as the policies ask."""
    on_infeasible, on_invalid = policies
    bad = y.isnan().any(-1)
    finite = raw.isfinite().all(-1) & q.isfinite().all(-1) & r.isfinite() & spectrum.values.isfinite().all(-1)
    curved = _convex(spectrum)
    if on_invalid == "raise":
        refuse(bad & ~finite, NonFiniteError, "raw, P, q, r: expected finite numbers, got NaN or infinite")
        least = spectrum.values[..., 0].min().item()
        refuse(bad & finite & ~curved, SampleError, f"P: expected eigenvalues >= 0, got {least:.3g}")
    if on_infeasible == "raise":
        text = "the set is empty: expected a y with 1/2 y'Py + q'y + r <= 0, got a positive minimum"
        refuse(bad & finite & curved, InfeasibleError, text)


def _convex(spectrum: Spectrum) -> Tensor:
    """Whether P is positive semidefinite to rounding, ``(*batch)``."""
    return spectrum.values[..., 0] >= -CONVEX * spectrum.values.abs().amax(-1)


class _Quadratic(torch.autograd.Function):
    """With ``n = Py + q``, ``M = (I + mu P)^-1``: ``u = Mg - omega Mn``, ``omega = n'Mg / n'Mn``."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, P: Tensor, q: Tensor, r: Tensor, values: Tensor, V: Tensor) -> Tensor:
        """Solve in eigencoordinates in float64; samples inside keep raw bit for bit."""
        p, slope, constant = raw.detach().double(), q.detach().double(), r.detach().double()
        spread = values.clamp_min(0)
        turned, turned_q = _turn(V.mT, p), _turn(V.mT, slope)
        start, rounding = evaluate(turned, turned_q, constant, spread)
        inside = start <= 2 * rounding * torch.finfo(raw.dtype).eps / torch.finfo(torch.float64).eps
        z, mu = nearest_root(turned, turned_q, constant, spread)
        z, mu = torch.where(inside, turned, z), torch.where(inside, 0.0, mu)
        y = _turn(V, z)
        bad = ~_convex(Spectrum(values, V)).unsqueeze(-1)
        y = torch.where(bad, torch.nan, torch.where(inside, p, y))
        ctx.save_for_backward(y, mu, slope, spread, V)
        ctx.shapes = [(tensor.shape, tensor.dtype) for tensor in (raw, P, q, r)]
        return y.to(raw.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """``g_q = -mu u - omega y``, ``g_r = -omega``, ``g_P = -mu sym(u y') - omega/2 y y'``."""
        y, mu, q, spread, V = ctx.saved_tensors
        bad = y.isnan().any(-1, keepdim=True)
        y, mu, g = torch.where(bad, 0.0, y), torch.where(bad, 0.0, mu), torch.where(bad, 0.0, grad.double())
        spread, q = torch.where(bad, 0.0, spread), torch.where(bad, 0.0, q)
        g, damping = _turn(V.mT, g), 1 / (1 + mu * spread)
        normal = spread * _turn(V.mT, y) + _turn(V.mT, q)
        size = (normal * normal * damping).sum(-1, keepdim=True)
        pull = torch.where((mu > 0) & (size > 0), (normal * g * damping).sum(-1, keepdim=True) / size, 0.0)
        u = _turn(V, damping * (g - pull * normal))
        cross = u.unsqueeze(-1) * y.unsqueeze(-2)
        grad_P = -mu.unsqueeze(-1) * (cross + cross.mT) / 2 - pull.unsqueeze(-1) / 2 * y.unsqueeze(-1) * y.unsqueeze(-2)
        found = (u, grad_P, -mu * u - pull * y, -pull.squeeze(-1))
        fitted = (value.sum_to_size(shape).to(dtype) for value, (shape, dtype) in zip(found, ctx.shapes, strict=True))
        return *fitted, None, None


def _turn(V: Tensor, v: Tensor) -> Tensor:
    """``V v`` with batches."""
    return (V @ v.unsqueeze(-1)).squeeze(-1)
