"""Second-order cones in an interior point method, with Nesterov and Todd's scaling, g cones of one size at a time.

The scaling W is the symmetric map with ``W z = W^-1 s = lam``; it stretches along one axis of the cone, so that it is
kept as a number `stretch` and a point `axis` of unit determinant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.products import LARGE, tiled_product, times_tiled
from hardnet.solvers.conic.barriers import TINY, Barrier, Local, Pair
from hardnet.solvers.conic.cones import SecondOrderImage


def _mirrored(v: Tensor) -> Tensor:
    """``J v``: the flat part with the other sign."""
    return torch.cat([-v[..., :-1], v[..., -1:]], -1)


def _determinant(v: Tensor) -> Tensor:
    """``t^2 - |u|^2`` without cancellation."""
    size, t = torch.linalg.vector_norm(v[..., :-1], dim=-1, keepdim=True), v[..., -1:]
    return (t - size) * (t + size)


def _jordan(a: Tensor, b: Tensor) -> Tensor:
    """The product of the cone: ``(a_t b_u + b_t a_u, a . b)``."""
    flat = a[..., -1:] * b[..., :-1] + b[..., -1:] * a[..., :-1]
    return torch.cat([flat, (a * b).sum(-1, keepdim=True)], -1)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """The x with ``a o x = b``."""
    flat, t = a[..., :-1], a[..., -1:]
    height = (t * b[..., -1:] - (flat * b[..., :-1]).sum(-1, keepdim=True)) / _determinant(a).clamp_min(TINY)
    return torch.cat([(b[..., :-1] - height * flat) / t, height], -1)


class ConeBarrier(Barrier):
    """``K_i y + k_i = s_i`` in second-order cones; pairs are ``(B, g, r)``."""

    def __init__(self, image: SecondOrderImage) -> None:
        self.image = image
        self.gram: Tensor | None = None
        if image.K.shape[0] == 1 and image.K.numel() >= LARGE:
            flat, height = image.K[..., :-1, :], image.K[..., -1:, :]
            self.gram = flat.mT @ flat - height.mT @ height

    def start(self, y: Tensor) -> Pair:
        """The value lifted into the cone, and the axis."""
        s = self.image.each(self.image.value(y))
        size = torch.linalg.vector_norm(s[..., :-1], dim=-1, keepdim=True)
        s = torch.cat([s[..., :-1], torch.maximum(s[..., -1:], size + 1)], -1)
        return Pair(s, torch.cat([torch.zeros_like(s[..., :-1]), torch.ones_like(size)], -1))

    def at(self, y: Tensor, pair: Pair) -> Local:
        """With the scaling of this pair."""
        return ConeLocal(self, y, pair)

    def dual(self, pair: Pair) -> Tensor:
        """In the polar cone."""
        return -pair.z.flatten(-2)

    def degree(self) -> int:
        """One for each cone."""
        return self.image.K.shape[-3]


class ConeLocal(Local):
    """The scaling at one pair."""

    def __init__(self, barrier: ConeBarrier, y: Tensor, pair: Pair) -> None:
        image = barrier.image
        self.image, self.gram, self.pair = image, barrier.gram, pair
        self.gap: Tensor = image.each(image.value(y)) - pair.s
        self.inner: Tensor = _determinant(pair.s).clamp_min(TINY)
        outer = _determinant(pair.z).clamp_min(TINY)
        one, other = pair.s / self.inner.sqrt(), pair.z / outer.sqrt()
        angle = ((1 + (one * other).sum(-1, keepdim=True)) / 2).sqrt()
        self.axis: Tensor = (one + _mirrored(other)) / (2 * angle)
        self.stretch: Tensor = (self.inner / outer).sqrt().sqrt()
        self.lam: Tensor = self.scale(pair.z)

    def scale(self, v: Tensor) -> Tensor:
        """``W v``."""
        flat, t = self.axis[..., :-1], self.axis[..., -1:]
        along = (flat * v[..., :-1]).sum(-1, keepdim=True)
        moved = v[..., :-1] + flat * (along / (1 + t) + v[..., -1:])
        return self.stretch * torch.cat([moved, along + t * v[..., -1:]], -1)

    def unscale(self, v: Tensor) -> Tensor:
        """``W^-1 v``, the same with the mirrored axis."""
        return _mirrored(self.scale(_mirrored(v))) / self.stretch.square()

    def _weigh(self, v: Tensor) -> Tensor:
        """``W^-2 v``."""
        return self.unscale(self.unscale(v))

    def hessian(self) -> Tensor:
        """``sum K'W^-2 K`` with ``W^-2 = (2 a a' - J) / stretch^2`` for the mirrored axis a."""
        K, share = self.image.K, self.stretch.square().reciprocal()
        if self.gram is None:
            axis = (_mirrored(self.axis).unsqueeze(-2) @ K).squeeze(-2)
            signed = _mirrored(torch.ones_like(self.axis)) * share
            bent = -K.flatten(-3, -2).mT @ (signed.flatten(-2).unsqueeze(-1) * K.flatten(-3, -2))
        else:
            axis = tiled_product(_mirrored(self.axis), K)
            bent = tiled_product(share.squeeze(-1), self.gram.flatten(-2)).unflatten(-1, self.gram.shape[-2:])
        return bent + 2 * axis.mT @ (share * axis)

    def pull(self, v: Tensor) -> Tensor:
        """``K'v``."""
        return times_tiled(self.image.K.flatten(-3, -2).mT, v.flatten(-2))

    def drive(self, target: Tensor, guess: Pair | None) -> Tensor:
        """``target s^-1 - z - W^-2 gap``, less the product of the guessed moves in the scaled cone."""
        aim = target[:, None, None] * _mirrored(self.pair.s) / self.inner - self.pair.z - self._weigh(self.gap)
        if guess is None:
            return aim
        return aim - self.unscale(_divide(self.lam, _jordan(self.unscale(guess.s), self.scale(guess.z))))

    def move(self, dy: Tensor, drive: Tensor) -> Pair:
        """Along K dy."""
        change = self.image.each(times_tiled(self.image.K.flatten(-3, -2), dy))
        return Pair(change + self.gap, drive - self._weigh(change))

    def reach(self, move: Pair) -> Tensor:
        """The first root of the determinant along each move."""
        return torch.minimum(_first_root(self.pair.s, move.s), _first_root(self.pair.z, move.z))


def _first_root(v: Tensor, move: Tensor) -> Tensor:
    """The smallest positive root of ``a t^2 + 2 b t + c``, the determinant along the move, over all cones ``(B,)``."""
    c, mirrored = _determinant(v), _mirrored(move)
    b, a = (v * mirrored).sum(-1, keepdim=True), (move * mirrored).sum(-1, keepdim=True)
    root = c / ((b * b - a * c).clamp_min(0).sqrt() - b).clamp_min(TINY)
    return root.flatten(1).amin(-1)
