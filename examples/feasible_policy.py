"""A stochastic policy whose every sample holds: a battery and a generator meet a demand within their limits."""

import torch
from torch import nn
from torch.distributions import Independent, Normal

import hardnet as hn


def least(state):
    """The battery takes at most what is free, the generator gives nothing negative."""
    charge = state[..., :1]
    return torch.cat([-(1.05 - charge).clamp(max=0.5), torch.zeros_like(charge)], -1)


def most(state):
    """The battery gives at most what it holds."""
    charge = state[..., :1]
    return torch.cat([(charge + 0.05).clamp(max=0.5), torch.ones_like(charge)], -1)


ALLOWED = hn.Box(least, most, name="power") & hn.Equality([[1.0, 1.0]], lambda state: state[..., 1:2], name="demand")


def main() -> None:
    """Learn by the score function to use the battery first: the generator's cost grows with the square of its power."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    log_std = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([*net.parameters(), log_std], lr=1e-2)
    for step in range(60):
        state = torch.stack([torch.rand(256), 0.1 + 0.8 * torch.rand(256)], -1)
        # demand and limits leave a line: the base has one number per state
        policy = hn.distributions.Feasible(Independent(Normal(net(state), log_std.exp()), 1), ALLOWED, state)
        power, latent = policy.sample_with_latent()
        reward = -power[:, 1].square()
        assert hn.check(ALLOWED, power, state).ok
        advantage = (reward - reward.mean()) / reward.std()
        loss = -(advantage * policy.log_prob(power, latent)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: mean cost {-reward.mean():.3f}, every sample holds")
    state = torch.tensor([[0.9, 0.4], [0.0, 0.4]])
    policy = hn.distributions.Feasible(Independent(Normal(net(state), log_std.exp()), 1), ALLOWED, state)
    print("full and empty battery, its power and the generator's:", policy.deterministic_sample().tolist())


if __name__ == "__main__":
    main()
