"""The nearest point in relative entropy: ``argmin sum_j y_j log(y_j / exp(raw_j)) - y_j  s.t.  A y = b``.

The answer is ``y = exp(raw + A'dual)``. Newton's method works in a basis: the largest independent outputs stand for
their rows, ``Q = M A`` is the identity on them, and every row of ``Q y = M b`` is measured relative to its own output,
so that an output of 1e-30 is found with as many digits as one of 1. Steps are damped as for any sum of exponentials
(``log(1 + d) / d`` for a change of scores by d), and large scores are approached through smaller ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.limits import FIRST_SPREAD, GROWTH, LAST_STEP, LEAST_PIVOT, LEAST_SCORE, ROUGH, SWEEPS
from hardnet.products import times


class Basis(NamedTuple):
    """The rows in the basis of the largest outputs, from the largest down; rows that others imply come last.

    Attributes:
        Q: ``(B, k, n)``; zero in the rows that others imply.
        b: ``M b``, ``(B, k)``.
        M: ``(B, k, k)``.
        output: Which output stands for a row, ``(B, k)``.
        used: Whether one does, ``(B, k)``.
    """

    Q: Tensor
    b: Tensor
    M: Tensor
    output: Tensor
    used: Tensor

    def at(self, values: Tensor) -> Tensor:
        """The entries ``(B, k)`` of a vector ``(B, n)`` that stand for the rows; 1 where none does."""
        return torch.where(self.used, values.gather(-1, self.output), 1.0)


def find_basis(A: Tensor, b: Tensor, score: Tensor) -> Basis:
    """Gauss-Jordan elimination of ``[A, b, I]`` ``(B, k, n)`` with the largest scores first."""
    (B, k, n), samples = A.shape, torch.arange(len(A), device=A.device)
    eye = torch.eye(k, dtype=A.dtype, device=A.device).expand(B, k, k)
    T = torch.cat([A, b.unsqueeze(-1), eye], dim=-1)
    output = torch.zeros(B, k, dtype=torch.long, device=A.device)
    used = torch.zeros(B, k, dtype=torch.bool, device=A.device)
    for _ in range(k):
        size = torch.where(used.unsqueeze(-1), 0.0, T[..., :n].abs())
        able = (size.amax(-2) > LEAST_PIVOT) & (score > LEAST_SCORE)
        found = able.any(-1)
        j = torch.where(able, score, -torch.inf).argmax(-1)
        row = size[samples, :, j].argmax(-1)
        column, at = T[samples, :, j], T[samples, row]
        at = at / torch.where(found, column[samples, row], 1.0).unsqueeze(-1)
        here = torch.nn.functional.one_hot(row, k).bool()
        turned = T - torch.where(here, 0.0, column).unsqueeze(-1) * at.unsqueeze(-2)
        turned = torch.where(here.unsqueeze(-1), at.unsqueeze(-2), turned)
        T = torch.where(found[:, None, None], turned, T)
        output = torch.where(here & found.unsqueeze(-1), j.unsqueeze(-1), output)
        used = used | (here & found.unsqueeze(-1))
    order = torch.where(used, score.gather(-1, output), -torch.inf).argsort(-1, descending=True)
    T, output, used = T.gather(1, order.unsqueeze(-1).expand_as(T)), output.gather(1, order), used.gather(1, order)
    M = T[..., n + 1 :]
    size = times(M.abs(), b.abs())
    level = torch.where(T[..., n].abs() <= 16 * torch.finfo(T.dtype).eps * size, 0.0, T[..., n])
    return Basis(torch.where(used.unsqueeze(-1), T[..., :n], 0.0), level, M, output, used)


def outputs(score: Tensor) -> Tensor:
    """``exp(score)``, zero where it would underflow."""
    return torch.where(score > LEAST_SCORE, score, -torch.inf).exp()


def newton_step(basis: Basis, y: Tensor, right: Tensor) -> Tensor:
    """``(Q diag(y) Q')⁻¹ right``, ``(B, k)``, by a factor scaled to a unit diagonal."""
    root = basis.at(y).sqrt()
    H = (basis.Q * y.unsqueeze(-2)) @ basis.Q.mT / (root.unsqueeze(-1) * root.unsqueeze(-2))
    H = H + torch.diag_embed((~basis.used).to(H.dtype))
    factor = torch.linalg.cholesky_ex(H)[0]
    return torch.cholesky_solve((right / root).unsqueeze(-1), factor).squeeze(-1) / root


def sweep(score: Tensor, A: Tensor, b: Tensor) -> Tensor:
    """Rescale the outputs of each row of zeros and ones, one after another, so that they have its sum."""
    for row, total in zip(A.unbind(-2), b.unbind(-1), strict=True):
        inside = row != 0
        log_sum = torch.where(inside, score, -torch.inf).logsumexp(-1)
        fits = ((row == 0) | (row == 1)).all(-1) & (total > 0) & (log_sum > -torch.inf)
        move = torch.where(fits, total.clamp_min(0).log() - log_sum, 0.0)
        score = torch.where(inside & fits.unsqueeze(-1), score + move.unsqueeze(-1), score)
    return score


@torch.no_grad()
def solve_entropic(raw: Tensor, A: Tensor, b: Tensor, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """``log y`` ``(B, n)``, which samples are solved, and the steps taken; all in float64, ``A (B, k, n)``.

    A and b may be shared, with a batch of one.
    """
    A, b = A.expand(len(raw), -1, -1), b.expand(len(raw), -1)
    part = (FIRST_SPREAD / (raw.amax(-1) - raw.amin(-1)).clamp_min(1e-300)).clamp(max=1.0).unsqueeze(-1)
    empty = ((A >= 0).all(-1) & (b == 0)).unsqueeze(-1) & (A > 0)  # a sum of zero of outputs >= 0
    score = torch.where(empty.any(-2), -torch.inf, part * raw)
    for _ in range(SWEEPS):
        score = sweep(score, A, b)
    done = ~raw.isfinite().all(-1)
    solved, steps = torch.zeros_like(done), torch.zeros_like(done, dtype=torch.long)
    for _ in range(limit):
        y = outputs(score)
        basis = find_basis(A, b, score)
        left = torch.where(basis.used, basis.b - times(basis.Q, y), 0.0)
        worst = (left.abs() / basis.at(y)).amax(-1, keepdim=True)
        done = done | ~(worst.squeeze(-1) < torch.inf)
        ahead = torch.where((part < 1) & (worst < ROUGH), (1 / part).clamp(max=GROWTH) - 1, 0.0)
        s = newton_step(basis, y, left - ahead * part * times(basis.Q, y * raw))
        step = times(basis.Q.mT, s)
        longest = torch.where(y > 0, step.abs(), 0.0).amax(-1, keepdim=True)
        damped = torch.where(longest < 0.7, 1.0, longest.log1p() / longest)
        moved = torch.where(ahead > 0, sweep(score + ahead * part * raw + step, A, b), score + damped * step)
        last = (part == 1) & (worst <= LAST_STEP) & (longest <= LAST_STEP)
        score = torch.where(done.unsqueeze(-1), score, moved)
        part = torch.where(done.unsqueeze(-1), part, (part * (1 + ahead)).clamp(max=1.0))
        steps = steps + ~done
        implied = (basis.used | (basis.b == 0)).all(-1)
        solved, done = solved | (~done & last.squeeze(-1) & implied), done | last.squeeze(-1)
        if bool(done.all()):
            break
    return score, solved, steps


@torch.no_grad()
def cotangents(gradient: Tensor, score: Tensor, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """``u`` for raw ``(B, n)`` and ``w`` for b ``(B, k)``: ``u = y (g - A'w)`` with ``A u = 0``.

    With ``f = g - Q'g_basis``, zero in the basis, nothing large cancels: ``u = y (f - Q's)``, ``w = M'(s + g_basis)``.
    """
    basis, y = find_basis(A.expand(len(score), -1, -1), b.expand(len(score), -1), score), outputs(score)
    own = torch.where(basis.used, gradient.gather(-1, basis.output), 0.0)
    f = gradient - times(basis.Q.mT, own)
    stands = torch.zeros_like(f).scatter_add(-1, basis.output, basis.used.to(f.dtype)) > 0
    f = torch.where(stands, 0.0, f)
    s = newton_step(basis, y, torch.where(basis.used, times(basis.Q, y * f), 0.0))
    return y * (f - times(basis.Q.mT, s)), times(basis.M.mT, torch.where(basis.used, s + own, 0.0))


@torch.no_grad()
def multipliers(score: Tensor, raw: Tensor, A: Tensor, b: Tensor) -> Tensor:
    """The dual ``(B, k)`` of ``log y = raw + A'dual``; zero for rows that others imply."""
    basis = find_basis(A.expand(len(score), -1, -1), b.expand(len(score), -1), score)
    own = torch.where(basis.used, (score - raw).gather(-1, basis.output), 0.0)
    return times(basis.M.mT, own)
