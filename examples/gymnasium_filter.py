"""A safety filter around an environment: actions that push into an obstacle, which is never hit, and a report."""

import gymnasium
import numpy as np
import torch

import hardnet as hn
from hardnet.integrations.gymnasium import SafetyFilter

RADIUS, STEP = 1.0, 0.1


class Plane(gymnasium.Env):
    """A point that moves with the velocity that it is given, around a disc at the origin."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        """Begin beside the disc."""
        super().reset(seed=seed)
        self.position = np.array([2.0, 0.5])
        return self.position.copy(), {}

    def step(self, action):
        """Move; the reward asks for the center."""
        self.position = self.position + STEP * np.asarray(action, dtype=np.float64)
        return self.position.copy(), -float(np.abs(self.position).sum()), False, False, {}


def barrier(x: torch.Tensor) -> torch.Tensor:
    """``2 p'u >= -4 (|p|^2 - radius^2)``: the distance to the disc may shrink only so fast."""
    return -4 * (x.square().sum(-1, keepdim=True) - RADIUS**2 - 0.1)


def main() -> None:
    """Push towards the disc for 500 steps."""
    distance = hn.Affine(lambda x: 2 * x.unsqueeze(-2), lower=barrier, name="distance")
    env = SafetyFilter(Plane(), distance, fallback=np.zeros(2))
    position, _ = env.reset(seed=0)
    closest = np.inf
    env.action_space.seed(0)
    for _ in range(500):
        push = 0.5 * env.action_space.sample() - 2 * position / np.linalg.norm(position)
        position, *_ = env.step(np.clip(push, -2, 2))
        closest = min(closest, float(np.linalg.norm(position)))
    print(f"closest to the center: {closest:.3f} (the disc ends at {RADIUS})")
    print(env.report)


if __name__ == "__main__":
    main()
