"""Proximal policy optimization with actions that must hold: a density on C(x) beside projecting and clipping samples.

A point walks to a goal among three discs: actions are velocities in a box, and a row beside each disc bounds how fast
it is approached, so that limits depend on the state. All arms have the same networks, first weights, starts and noise:

    feasible   ``hn.distributions.Feasible``: the bijection onto the set, with its density
    wide       the same with latents eight times as large, since the boundary is far away in them
    project    a Gaussian whose samples are projected; the density is that of the raw action
    clip       a Gaussian whose samples are clipped to the box, then pulled back over each row, one after the other
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

import hardnet as hn
from hardnet_lab.experiments.results import environment, write_json

ARMS = ("feasible", "wide", "project", "clip")
SEEDS = 5
WALKERS, STEPS, ROUNDS, EPOCHS, BATCH = 64, 32, 150, 4, 512
DISCS = torch.tensor([[0.0, 0.35, 0.35], [0.35, -0.4, 0.3], [-0.45, -0.25, 0.25]])
GOAL, PACE, ALPHA = torch.tensor([0.9, 0.0]), 0.1, 2.0


def away(x: Tensor) -> Tensor:
    """``2 (p - disc)``, ``(*batch, 3, 2)``: how the squared distance to each disc grows with the action."""
    return 2 * (x[..., None, :2] - DISCS[:, :2])


def least(x: Tensor) -> Tensor:
    """``-alpha (|p - disc|^2 - r^2)``, at most -0.05, ``(*batch, 3)``: so fast may a disc be approached."""
    room = (x[..., None, :2] - DISCS[:, :2]).square().sum(-1) - DISCS[:, 2].square()
    return -ALPHA * room.clamp_min(0.05 / ALPHA)


LIMITS = hn.Box(-1.0, 1.0, name="speed") & hn.Affine(away, lower=least, name="disc")


class Policy(nn.Module):
    """A Gaussian for raw actions or latents ``(*batch, 2)``, and a value."""

    def __init__(self) -> None:
        super().__init__()
        body = lambda outputs: nn.Sequential(
            nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
        )
        self.mean, self.value = body(2), body(1)
        self.log_std = nn.Parameter(torch.full((2,), -0.5))

    def forward(self, x: Tensor) -> Independent:
        """The distribution before the limits."""
        return Independent(Normal(self.mean(x), self.log_std.exp()), 1)


def played(arm: str) -> Callable[[Independent, Tensor, Tensor], Tensor]:
    """What an arm makes of a sample, ``(base, sample, x) -> action``."""
    layer = hn.layers.Projection(LIMITS)

    def clip(base: Independent, raw: Tensor, x: Tensor) -> Tensor:
        action, rows, floor = raw.clamp(-1, 1), away(x), least(x)
        for row, low in zip(rows.unbind(-2), floor.unbind(-1), strict=True):
            miss = (low - (row * action).sum(-1)).clamp_min(0) / row.square().sum(-1)
            action = action + miss.unsqueeze(-1) * row
        return action.clamp(-1, 1)

    # zero is strictly inside at every state, so that no center is to be found
    feasible = lambda base, z, x: hn.distributions.Feasible(base, LIMITS, x, center=torch.zeros(2)).image(z)
    choices = {
        "feasible": feasible,
        "wide": lambda base, z, x: feasible(base, 8 * z, x),
        "project": lambda base, raw, x: layer(raw, x),
        "clip": clip,
    }
    return choices[arm]


def move(p: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """The next place ``(*batch, 2)`` and the reward: progress towards the goal, less a cost of speed."""
    after = (p + PACE * action).clamp(-1.2, 1.2)
    gain = (p - GOAL).norm(dim=-1) - (after - GOAL).norm(dim=-1)
    return after, 10 * gain - 0.02 * action.square().sum(-1)


def starts(count: int) -> Tensor:
    """Places left of the discs."""
    return torch.stack([-1.1 + 0.2 * torch.rand(count), 1.6 * torch.rand(count) - 0.8], -1)


def run(arm: str, seed: int) -> dict[str, Any]:
    """Train one arm and play its mode: returns, and the largest violation of any action that was played."""
    torch.manual_seed(seed)
    policy, play = Policy(), played(arm)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    worst, broken, count, curve, began = 0.0, 0, 0, [], time.process_time()
    for round_ in range(ROUNDS):
        torch.manual_seed(1000 * seed + round_)  # the same starts and noise for every arm
        p, history = starts(WALKERS), []
        with torch.no_grad():
            for _ in range(STEPS):
                base = policy(p)
                sample = base.sample()
                action = play(base, sample, p)
                certificate = hn.check(LIMITS, action, p)
                worst, count = max(worst, certificate.max_violation), count + WALKERS
                broken += int((~certificate.satisfied).sum())
                after, reward = move(p, action)
                history.append((p, sample, base.log_prob(sample), reward, policy.value(p).squeeze(-1)))
                p = after
            last = policy.value(p).squeeze(-1)
        curve.append(torch.stack([entry[3] for entry in history]).sum(0).mean().item())
        improve(policy, optimizer, history, last)
    with torch.no_grad():
        torch.manual_seed(seed)
        p, total = starts(1024), torch.zeros(1024)
        for _ in range(STEPS):
            base = policy(p)
            action = play(base, base.mode, p)
            worst = max(worst, hn.check(LIMITS, action, p).max_violation)
            p, reward = move(p, action)
            total += reward
    at_goal = ((p - GOAL).norm(dim=-1) < 0.15).double().mean().item()
    seconds = time.process_time() - began
    return {"arm": arm, "seed": seed, "return": total.mean().item(), "at_goal": at_goal, "max_violation": worst,
            "broken": broken / count, "curve": curve, "seconds": seconds}  # fmt: skip


def improve(policy: Policy, optimizer: torch.optim.Optimizer, history: list[Any], last: Tensor) -> None:
    """One round of clipped steps; the factor ``(1 + gamma)^(d + 1)`` of a density on C(x) cancels in their ratio."""
    states, samples, before, rewards, values = (torch.stack(parts) for parts in zip(*history, strict=True))
    advantage, carried = torch.zeros_like(rewards), torch.zeros_like(last)
    for step in reversed(range(len(rewards))):
        following = last if step + 1 == len(rewards) else values[step + 1]
        carried = rewards[step] + 0.97 * following - values[step] + 0.97 * 0.95 * carried
        advantage[step] = carried
    flat = [part.flatten(0, 1) for part in (states, samples, before, advantage, advantage + values)]
    for _ in range(EPOCHS):
        for index in torch.randperm(len(flat[0])).split(BATCH):
            x, sample, old, gain, target = (part[index] for part in flat)
            gain = (gain - gain.mean()) / (gain.std() + 1e-6)
            ratio = (policy(x).log_prob(sample) - old).exp()
            loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            loss = loss + 0.5 * (policy.value(x).squeeze(-1) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()


def main_table(device: str = "cpu", out: Path | None = None) -> None:
    """Run all arms and seeds on a CPU, print a table, and write the figures."""
    rows = [run(arm, seed) for seed in range(SEEDS) for arm in ARMS]
    for arm in ARMS:
        own = [row for row in rows if row["arm"] == arm]
        returns = ", ".join(f"{row['return']:.2f}" for row in own)
        first = torch.tensor([sum(row["curve"]) / ROUNDS for row in own]).mean().item()
        reached = torch.tensor([row["at_goal"] for row in own]).mean().item()
        print(
            f"{arm:9} return of the mode {returns}; mean while learning {first:.2f}; at the goal {reached:.0%}; worst "
            f"violation {max(row['max_violation'] for row in own):.1e}, {max(row['broken'] for row in own):.2%} broken"
        )
    if out is not None:
        write_json(out, {"environment": environment(device), "rows": rows}, indent=1)
