"""Safe control of a unicycle between two elliptical obstacles: the paper's problem cbf."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ConvergenceError, name_samples
from hardnet_lab.problems.barrier import Barriers, nominal_control
from hardnet_lab.problems.base import (
    DC3Settings,
    Policy,
    Problem,
    both_outputs,
    moved,
    random_state,
    split,
    violation_metrics,
)

TIME_STEP = 0.02
STEPS = 50
CONTROL_SCALE = 100.0
"""Sub-steps are shortened so that ``|u| * sub-step <= CONTROL_SCALE * TIME_STEP`` for every control."""
MOST_SUBSTEPS = 20000
"""An unbounded rollout fails after this many sub-steps."""

Integrand = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""From state ``(*batch, 5)`` and control, output y and raw, each ``(*batch, 2)``, to rates ``(*batch, k)``."""


class Rollout(NamedTuple):
    """The progress of every sample, each with its own clock.

    Attributes:
        state: ``(*batch, 5)``: position, heading, speed and turning rate.
        remaining: Time left in the sample's current step of 0.02 s; zero when the sample has finished.
        steps: Steps not yet finished, including the current one.
        total: ``(*batch, k)``: the integrals so far.
    """

    state: Tensor
    remaining: Tensor
    steps: Tensor
    total: Tensor


class Unicycle(Problem):
    """``min ∫ x'Qx + u'Ru dt`` over one second, where ``u = nominal(x) + y(x)`` and y satisfies two barrier rows.

    The state is (p_x, p_y, heading, speed, turning rate), the controls are the two accelerations. Euler steps of
    0.02 s are divided into sub-steps where a control is large. Every sample has its own clock and no longer changes
    once its second is over, so a single loop handles the whole batch without reading values.
    """

    barriers: Barriers
    train: Tensor
    validation: Tensor
    test: Tensor

    objective = "cost"
    name = "cbf"
    input_dim, encoded_dim, output_dim = 5, 6, 2
    batch_size = 100
    soft_weight: float = 0.01
    loss_cap: float = 20000.0
    loop_budget = 80
    dc3 = DC3Settings(steps=5, step_size=1e-7, test_steps=5)

    def __init__(self) -> None:
        self.constraint = self.barriers = Barriers()
        self.train, self.validation, self.test = split(initial_states())
        self.state_weight: Tensor = torch.tensor([100.0, 100.0, 0.0, 0.1, 0.1], dtype=torch.float64)
        self.control_weight: float = 0.1

    def encode(self, x: Tensor) -> Tensor:
        """``(p_x, p_y, cos heading, sin heading, speed, turning rate)``."""
        px, py, heading, speed, turn = x.unbind(-1)
        return torch.stack([px, py, heading.cos(), heading.sin(), speed, turn], -1)

    def loss(self, policy: Policy, x: Tensor, soft_weight: float = 0.0, displacement: float = 0.0) -> Tensor:
        """``∫ cost + soft_weight * sum residual^2 + displacement * |y - raw|^2 dt``; a sample stops at 20000."""
        rate = self._loss_rate(soft_weight, displacement)
        return self.rollout(policy, x, rate, cap=self.loss_cap).total[..., 0]

    def bounded_loss(
        self, policy: Policy, x: Tensor, soft_weight: float, budget: int, displacement: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """The same in exactly `budget` sub-steps, and which samples have not finished by then."""
        rate = self._loss_rate(soft_weight, displacement)
        end = self.rollout(policy, x, rate, cap=self.loss_cap, substeps=budget)
        return end.total[..., 0], end.remaining > 0

    def evaluate(self, policy: Policy, x: Tensor) -> dict[str, Tensor]:
        """Mean cost, and the violations integrated along the rollout."""
        total = self.rollout(policy, x, self.cost_and_residual).total
        return {"cost": total[..., 0].mean(-1)} | violation_metrics(total[..., 1:])

    def cost_and_residual(self, x: Tensor, control: Tensor, y: Tensor, raw: Tensor) -> Tensor:
        """``x'Qx + u'Ru`` and the residuals of the two barriers: ``(*batch, 3)``."""
        return torch.cat([self._cost(x, control).unsqueeze(-1), self._residual(x, y)], -1)

    def rollout(
        self,
        policy: Policy,
        x: Tensor,
        integrand: Integrand,
        *,
        cap: float | None = None,
        substeps: int | None = None,
        record: Callable[[Rollout], None] | None = None,
    ) -> Rollout:
        """Follow the policy for one second from each state.

        Args:
            policy: Maps states ``(*batch, 5)`` to outputs y ``(*batch, 2)``, which are added to the nominal control.
            x: Initial states ``(*batch, 5)``.
            integrand: The rates to integrate.
            cap: A sample stops once its first integral has reached this value.
            substeps: Run exactly this many sub-steps without reading values; by default until all have finished.
            record: Called with the rollout before each sub-step and at the end.

        Returns:
            The final rollout; ``remaining > 0`` marks samples that did not finish in the given sub-steps.
        """
        now = self._start(x, integrand)
        for count in range(MOST_SUBSTEPS if substeps is None else substeps):
            if substeps is None and count >= STEPS and not (now.remaining > 0).any():
                break
            if record is not None:
                record(now)
            now = self.substep(policy, now, integrand, cap)
        else:
            if substeps is None:
                _refuse_endless(now)
        if record is not None:
            record(now)
        return now

    def substep(self, policy: Policy, now: Rollout, integrand: Integrand, cap: float | None) -> Rollout:
        """One Euler step of each sample on its own clock, of length zero where the sample has finished."""
        x = now.state
        y, raw = both_outputs(policy(x))
        control = nominal_control(x) + y
        length, remaining, steps = _advance(now, control.detach())
        total = now.total + length.unsqueeze(-1) * integrand(x, control, y, raw)
        if cap is not None:
            remaining = torch.where(total[..., 0].detach() >= cap, 0, remaining)
        _, _, heading, speed, turn = x.unbind(-1)
        rate = torch.stack([speed * heading.cos(), speed * heading.sin(), turn], -1)
        state = x + length.unsqueeze(-1) * torch.cat([rate, control], -1)
        return Rollout(state, remaining, steps, total)

    def _start(self, x: Tensor, integrand: Integrand) -> Rollout:
        """The rollout with all clocks at the start."""
        clock = torch.full_like(x[..., 0], TIME_STEP)
        y = torch.zeros_like(x[..., :2])
        return Rollout(x, clock, torch.full_like(clock, STEPS), torch.zeros_like(integrand(x, y, y, y)))

    def _loss_rate(self, soft_weight: float, displacement: float) -> Integrand:
        """``x'Qx + u'Ru + soft_weight * sum residual^2 + displacement * |y - raw|^2``; zero weights skip the term."""

        def rate(x: Tensor, control: Tensor, y: Tensor, raw: Tensor) -> Tensor:
            cost = self._cost(x, control)
            if soft_weight:
                cost = cost + soft_weight * self._residual(x, y).square().sum(-1)
            if displacement:
                cost = cost + displacement * moved(y, raw)
            return cost.unsqueeze(-1)

        return rate

    def _cost(self, x: Tensor, control: Tensor) -> Tensor:
        """``x'Qx + u'Ru`` per sample."""
        return (x.square() * self.state_weight).sum(-1) + self.control_weight * control.square().sum(-1)

    def _residual(self, x: Tensor, y: Tensor) -> Tensor:
        """``relu(A y - upper)`` of the two barriers, as sums of products rather than batched 2x2 products."""
        A, upper = self.barriers.both(x)
        return ((A * y.unsqueeze(-2)).sum(-1) - upper).clamp_min(0)


def _advance(now: Rollout, control: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``length = min(remaining, 0.02 * min_j 100 / |u_j|)``, and the clock after it; nothing here has a gradient."""
    longest = CONTROL_SCALE * TIME_STEP / control.abs().amax(-1)
    length = torch.minimum(now.remaining, longest)
    remaining = now.remaining - length
    ended = (remaining <= 0) & (length > 0)  # a finished sample does not end another step
    steps = now.steps - ended.to(length.dtype)
    remaining = torch.where(ended & (steps > 0), TIME_STEP, remaining)
    return length, remaining, steps


def _refuse_endless(now: Rollout) -> None:
    """Raise an error that names the samples whose controls need more than `MOST_SUBSTEPS` for one second."""
    samples = [tuple(index) for index in (now.remaining > 0).nonzero().tolist()]
    message = f"rollout: {MOST_SUBSTEPS} sub-steps did not reach one second in samples {name_samples(samples)}"
    raise ConvergenceError(f"{message}; their controls are too large", samples)


def initial_states() -> Tensor:
    """1000 safe states, uniform in a box to the left of the obstacles: ``(1000, 5)``."""
    low = torch.tensor([-4.0, 0.0, -math.pi / 4, 0.0, 0.0], dtype=torch.float64)
    high = torch.tensor([-3.5, 0.5, -math.pi / 8, 0.0, 0.0], dtype=torch.float64)
    weight = torch.from_numpy(random_state(17).rand(1000, 5))
    return weight * low + (1 - weight) * high


def cbf() -> Unicycle:
    """The experiment of the paper."""
    return Unicycle()
