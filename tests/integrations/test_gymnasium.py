"""The safety filter: actions in C(observation), an honest report, and a fallback where nothing is allowed."""

import numpy as np
import pytest
import torch

import hardnet as hn

gymnasium = pytest.importorskip("gymnasium")
from hardnet.integrations.gymnasium import SafetyFilter  # noqa: E402


class Recorder(gymnasium.Env):
    """Observes a number, and keeps the actions that it was given."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (2, 1), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken, self.seen = [], 1.0
        return np.array([self.seen], dtype=np.float32), {}

    def step(self, action):
        self.taken.append(action)
        self.seen -= 1.0
        return np.array([self.seen], dtype=np.float32), 0.0, False, False, {"own": 1}


def budget():
    """``y1 + y2 <= x``, and limits: empty below x = -4."""
    return hn.Affine([[1.0, 1.0]], upper=lambda x: x, name="budget")


def test_actions_satisfy_the_constraint_of_the_last_observation():
    env = SafetyFilter(Recorder(), budget())
    env.reset(seed=0)
    for x in (1.0, 0.0, -1.0, -2.0):
        _, _, _, _, info = env.step(np.array([[1.5], [1.0]], dtype=np.float32))
        taken = env.unwrapped.taken[-1]
        assert taken.shape == (2, 1)
        assert taken.dtype == np.float32
        assert taken.sum() <= x + 4 * np.finfo(np.float32).eps
        assert np.all(np.abs(taken) <= 2)
        assert info["safety"]["broken"] == ["budget"]
        assert info["own"] == 1
    assert env.report.by_name == {"budget": 4}
    assert "4 of 4 actions changed" in str(env.report)


def test_an_allowed_action_passes_bit_for_bit():
    env = SafetyFilter(Recorder(), budget())
    env.reset(seed=0)
    action = np.array([[0.1], [0.3]], dtype=np.float32)
    _, _, _, _, info = env.step(action)
    assert np.array_equal(env.unwrapped.taken[-1], action)
    assert info["safety"] == {"proposed": action, "displacement": 0.0, "broken": [], "fallback": False}
    assert (env.report.steps, env.report.interventions) == (1, 0)


def test_the_action_space_is_a_constraint_of_its_own():
    wide = np.array([[5.0], [-9.0]], dtype=np.float32)
    env = SafetyFilter(Recorder(), budget())
    env.reset(seed=0)
    env.step(wide)
    assert env.report.by_name == {"action_space[0]": 1, "action_space[1]": 1}
    free = SafetyFilter(Recorder(), budget(), bounds=False)
    free.reset(seed=0)
    free.step(wide)
    assert np.array_equal(free.unwrapped.taken[-1], wide)


@pytest.mark.parametrize("fallback", [np.full((2, 1), -2.0), lambda observation: [-2.0, -2.0]])
def test_an_empty_set_falls_back(fallback):
    env = SafetyFilter(Recorder(), budget(), fallback=fallback)
    env.reset(seed=0)
    env.unwrapped.seen = -8.0
    env.step(np.zeros((2, 1), dtype=np.float32))  # acts on the observation 1, and sees -9
    _, _, _, _, info = env.step(np.zeros((2, 1), dtype=np.float32))
    assert np.array_equal(env.unwrapped.taken[-1], np.full((2, 1), -2.0, dtype=np.float32))
    assert info["safety"]["fallback"]
    assert env.report.fallbacks == 1


def test_an_empty_set_without_a_fallback_is_an_error_that_names_its_rows():
    env = SafetyFilter(Recorder(), budget(), state=lambda observation: torch.full((1, 1), -9.0, dtype=torch.float64))
    env.reset(seed=0)
    with pytest.raises(hn.errors.InfeasibleError, match="budget"):
        env.step(np.zeros((2, 1), dtype=np.float32))


def test_relaxed_rows_need_no_fallback():
    env = SafetyFilter(Recorder(), hn.Relaxed(budget()))
    env.reset(seed=0)
    env._observation = np.array([-9.0])
    env.step(np.zeros((2, 1), dtype=np.float32))
    assert np.allclose(env.unwrapped.taken[-1], -2.0, rtol=0, atol=1e-12)
    assert env.report.fallbacks == 0


def test_discrete_actions_are_refused():
    env = Recorder()
    env.action_space = gymnasium.spaces.Discrete(3)
    with pytest.raises(hn.errors.OptionError, match="Box"):
        SafetyFilter(env, budget())
