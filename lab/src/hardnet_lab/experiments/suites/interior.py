"""Large programs solved by our own interior-point method, many instances at once; only for ``--references``.

``min f(y)  s.t.  C y = x, A y <= b`` with ``f = sum Q_i y_i^2 / 2 + p_i y_i`` or ``p_i sin y_i``. With y = y0 + N z,
N a basis of the null space of C and y0 = C⁺ x, which is strictly feasible, the slacks ``s = b - A y`` stay positive,
and Newton's method follows ``N'(grad f + A'u) = 0, u s = mu`` as mu goes to zero:

    (N'DN + G' diag(u / s) G) dz = -N' grad f - G'(mu / s),    du = (mu - u s + u G dz) / s,    G = A N,

with D the second derivatives of f, in absolute value for a sample whose matrix is not positive definite. For an
instance of 1000 variables Clarabel takes half a minute on one core and this method half a second, with the same value
to 1e-10. Solutions are checked by their optimality conditions; a sample that fails them gets the value infinity.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet_lab.experiments.optimal import Optimum
from hardnet_lab.problems.suites import SuitePrograms

CHUNK = 64
"""Instances solved at once on a CPU; ten times as many on a GPU."""
STEPS = 200
"""Maximum number of Newton steps."""
LEAST = 1e-12
"""The last barrier parameter, in units of f: the value is then within ``LEAST * inequalities`` of a stationary one."""
SHRINK = 0.2
"""The next barrier parameter as a fraction of the mean complementarity."""
FRACTION = 0.995
"""Largest fraction of the way to the boundary that a step may go."""
STATIONARY = 1e-7
"""Largest gradient of the Lagrangian along the equalities that counts as zero."""


class _Reduced(NamedTuple):
    """The programs of some inputs, reduced to the null space of their equalities."""

    problem: SuitePrograms
    start: Tensor  # y0 (B, n)
    basis: Tensor  # N (n, k)
    G: Tensor  # A N (m, k)
    room: Tensor  # b - A y0 (B, m)

    def at(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Value ``(B,)``, and the first and second derivatives ``(B, n)`` of f at z ``(B, k)``."""
        y, Q, p = self.start + z @ self.basis.T, self.problem.Q, self.problem.p
        value = self.problem.value(y, y)
        if self.problem.convex:
            return value, Q * y + p, Q.expand_as(y)
        return value, Q * y + p * y.cos(), Q - p * y.sin()


class _State(NamedTuple):
    z: Tensor  # (B, k)
    dual: Tensor  # u (B, m)
    mu: Tensor  # (B, 1)


def solve_interior(problem: SuitePrograms, x: Tensor) -> Optimum:
    """The stationary points that Newton's method reaches from ``C⁺ x``; infinite where it did not converge."""
    began, chunk = time.process_time(), CHUNK if not x.is_cuda else 10 * CHUNK
    C, A = problem.C, problem.A
    basis = torch.linalg.qr(C.mT, mode="complete").Q[:, len(C) :]
    inverse = torch.linalg.pinv(C)
    values, points = [], []
    for part in x.split(chunk):
        start = part @ inverse.T
        value, point = _solve(_Reduced(problem, start, basis, A @ basis, problem.b - start @ A.T))
        values.append(value)
        points.append(point)
    spent = 1e3 * (time.process_time() - began) / len(x)
    return Optimum(torch.cat(values), torch.cat(points), spent, "interior-point method of our own, KKT verified")


def _solve(programs: _Reduced) -> tuple[Tensor, Tensor]:
    """Values ``(B,)``, infinite where the optimality conditions fail, and points ``(B, n)``."""
    z = programs.start.new_zeros(len(programs.start), programs.basis.shape[1])
    state = _State(z, 1 / programs.room, torch.ones_like(z[:, :1]))
    for _ in range(STEPS):
        state = _newton(programs, state)
        error, complementary = _errors(programs, state)
        if (error.amax() < STATIONARY) & (complementary.amax() <= 10 * LEAST):
            break
    error, complementary = _errors(programs, state)
    solved = (error < STATIONARY) & (complementary <= 100 * LEAST) & (state.dual >= 0).all(-1)
    value = programs.at(state.z)[0]
    return value.where(solved, torch.inf), programs.start + state.z @ programs.basis.T


def _slack(programs: _Reduced, z: Tensor) -> Tensor:
    return programs.room - z @ programs.G.T


def _errors(programs: _Reduced, state: _State) -> tuple[Tensor, Tensor]:
    """The largest entry of ``N'(grad f + A'u)`` and of ``u s``, per sample."""
    gradient = programs.at(state.z)[1] @ programs.basis + state.dual @ programs.G
    return gradient.abs().amax(-1), (state.dual * _slack(programs, state.z)).abs().amax(-1)


def _newton(programs: _Reduced, state: _State) -> _State:
    """One step, cut so that slacks and multipliers stay positive and the barrier function falls, and the new mu."""
    z, dual, mu = state
    slack = _slack(programs, z)
    value, gradient, curvature = programs.at(z)
    weight = dual / slack
    barrier = gradient @ programs.basis + (mu / slack) @ programs.G
    dz = _direction(programs, curvature, weight, barrier)
    ds = -dz @ programs.G.T
    du = mu / slack - dual - weight * ds
    merit = value - mu.squeeze(-1) * slack.log().sum(-1)
    slope = (barrier * dz).sum(-1)
    step = _line_search(programs, z, dz, mu, merit, slope, _to_boundary(slack, ds))
    z = z + step * dz
    dual = dual + _to_boundary(dual, du) * du
    slack = _slack(programs, z)
    dual = torch.minimum(torch.maximum(dual, 1e-4 * mu / slack), 1e4 * mu / slack)
    near = (programs.at(z)[1] @ programs.basis + dual @ programs.G).abs().amax(-1, keepdim=True) < 10 * mu
    mean = (dual * slack).mean(-1, keepdim=True)
    return _State(z, dual, torch.where(near | (step == 1), (SHRINK * torch.minimum(mean, mu)).clamp_min(LEAST), mu))


def _direction(programs: _Reduced, curvature: Tensor, weight: Tensor, barrier: Tensor) -> Tensor:
    """``-H^-1 barrier``; if H is not positive definite, it is made with the absolute values of the curvature."""

    def matrix(diagonal: Tensor, weight: Tensor) -> Tensor:
        root = (programs.basis.T * diagonal.unsqueeze(1)) @ programs.basis
        return root + (programs.G.T * weight.unsqueeze(1)) @ programs.G

    factor, failed = torch.linalg.cholesky_ex(matrix(curvature, weight))
    wrong = failed.nonzero().squeeze(-1)
    if len(wrong):
        least = curvature[wrong].abs().clamp_min(1e-3)
        factor[wrong] = torch.linalg.cholesky(matrix(least, weight[wrong]))
    return -torch.cholesky_solve(barrier.unsqueeze(-1), factor).squeeze(-1)


def _to_boundary(value: Tensor, change: Tensor) -> Tensor:
    """The longest step ``(B, 1)``, at most 1, that keeps ``value + step change`` positive."""
    ratio = torch.where(change < 0, -value / change, torch.inf)
    return (FRACTION * ratio.amin(-1, keepdim=True)).clamp_max(1.0)


def _line_search(
    programs: _Reduced, z: Tensor, dz: Tensor, mu: Tensor, merit: Tensor, slope: Tensor, step: Tensor
) -> Tensor:
    """Halve the step of each sample until ``f - mu sum log s`` decreases sufficiently for its slope, up to rounding."""
    least = 1e-12 * merit.abs().clamp_min(1.0)
    for _ in range(30):
        point = z + step * dz
        after = programs.at(point)[0] - mu.squeeze(-1) * _slack(programs, point).log().sum(-1)
        worse = ~(after <= merit + 1e-4 * step.squeeze(-1) * slope + least)
        if not worse.any():
            break
        step = torch.where(worse.unsqueeze(-1), step / 2, step)
    return step
