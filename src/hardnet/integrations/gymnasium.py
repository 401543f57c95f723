"""Gymnasium: an environment whose actions satisfy a constraint that depends on the observation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hardnet.certificate import check
from hardnet.errors import BoundsError, HardNetError, InfeasibleError, MissingExtraError, OptionError, sentence
from hardnet.layers.auto import build_layer
from hardnet.layers.base import Layer
from hardnet.sets.affine import Box
from hardnet.sets.base import ConstraintSet

try:
    import gymnasium
    import numpy as np
except ImportError as error:
    raise MissingExtraError("gymnasium", "rl") from error


@dataclass
class SafetyReport:
    """What a filter has done since it was built.

    Attributes:
        steps: Number of actions.
        interventions: Actions that were changed.
        fallbacks: Actions replaced by the fallback because C(x) was empty.
        by_name: For each row, how many proposed actions violated it.
        displacement: The largest distance between a proposed action and the action taken.
    """

    steps: int = 0
    interventions: int = 0
    fallbacks: int = 0
    by_name: Counter[str] = field(default_factory=Counter)
    displacement: float = 0.0

    def __str__(self) -> str:
        """One line; the rows that were violated most often first."""
        rows = ", ".join(f"{name} {count}" for name, count in self.by_name.most_common())
        text = f"{self.interventions} of {self.steps} actions changed, by up to {self.displacement:.3g}"
        return f"{text}; {self.fallbacks} fallbacks" + (f"; broken: {rows}" if rows else "")


class SafetyFilter(gymnasium.ActionWrapper):
    """``step(a)`` takes the action in C(x) that is nearest to a, where x is the last observation.

    An action already in C(x) is unchanged. ``info["safety"]`` of every step describes what was done, and `report` has
    the totals. The action is computed in float64 (or the dtype of the set's tensors) and rounded to the dtype of the
    action space.

    Args:
        env: An environment with a `Box` action space.
        constraint: C(x) on actions, flattened to ``(n,)``.
        method: As for `hn.HardNet`; its raw outputs must be actions.
        fallback: What to do where C(x) is empty: an action, a function from the observation to an action, or None to
            raise the error. A relaxed set (`hn.Relaxed`) needs none.
        state: A function from an observation to the x of the set for one sample; by default the observation as a
            tensor ``(1, d)``.
        bounds: Whether actions must also stay in the action space; its rows are named ``action_space``.
        options: Options of the method's layer.
    """

    layer: Layer
    dtype: torch.dtype
    fallback: Any
    state: Callable[[Any], Any] | None

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        constraint: ConstraintSet,
        *,
        method: str = "auto",
        fallback: Any = None,
        state: Callable[[Any], Any] | None = None,
        bounds: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, gymnasium.spaces.Box):
            raise OptionError(sentence("env", "an action space of real numbers (Box)", str(space)))
        if bounds and bool((np.isfinite(space.low) | np.isfinite(space.high)).any()):
            low, high = (side.astype(np.float64).ravel().tolist() for side in (space.low, space.high))
            constraint = constraint & Box(low, high, name="action_space")
        self.layer = build_layer(constraint, method, **options)
        origin = constraint.origin()
        self.dtype = torch.float64 if origin is None else origin.dtype
        self.fallback, self.state = fallback, state
        self.report: SafetyReport = SafetyReport()
        self._observation: Any = None
        self._last: dict[str, Any] = {}

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, but not the report."""
        self._observation, info = super().reset(**kwargs)
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take the filtered action; ``info["safety"]`` describes what was done."""
        self._observation, reward, terminated, truncated, info = super().step(action)
        return self._observation, reward, terminated, truncated, info | {"safety": self._last}

    def action(self, action: Any) -> Any:
        """The action to take instead of `action`."""
        given = np.asarray(action, dtype=self.action_space.dtype)
        raw = torch.as_tensor(given, dtype=self.dtype).reshape(1, -1)
        x = self._input()
        with torch.no_grad():
            certificate = check(self.layer.constraint, raw, x)
            broken = [name for name, row in certificate.by_name().items() if row.satisfied < 1]
            y = self._enforce(raw, x)
        taken = self._fall_back() if y is None else y.reshape(given.shape).numpy().astype(given.dtype)
        taken = given if y is not None and torch.equal(y, raw) else taken
        self._record(broken, given, taken, fell_back=y is None)
        return taken

    def _input(self) -> Any:
        """The x of the last observation."""
        if self.state is not None:
            return self.state(self._observation)
        if self._observation is None:
            return None
        return torch.as_tensor(np.asarray(self._observation), dtype=self.dtype).reshape(1, -1)

    def _enforce(self, raw: Tensor, x: Any) -> Tensor | None:
        """The nearest action; None where there is none but a fallback is given."""
        try:
            y = self.layer(raw, x)
        except (InfeasibleError, BoundsError):
            if self.fallback is None:
                raise
            return None
        if bool(y.isfinite().all()):
            return y
        if self.fallback is None:
            raise HardNetError("the constraint has no finite action at this observation, and there is no fallback")
        return None

    def _fall_back(self) -> Any:
        """The action of the fallback, in the form that the environment takes."""
        action = self.fallback(self._observation) if callable(self.fallback) else self.fallback
        return np.asarray(action, dtype=self.action_space.dtype).reshape(self.action_space.shape)

    def _record(self, broken: list[str], given: Any, taken: Any, *, fell_back: bool) -> None:
        """Add one action to the report."""
        displacement = float(np.linalg.norm(np.asarray(taken - given, dtype=np.float64)))
        self._last = {"proposed": given, "displacement": displacement, "broken": broken, "fallback": fell_back}
        self.report.steps += 1
        self.report.interventions += int(displacement > 0 or fell_back)
        self.report.fallbacks += int(fell_back)
        self.report.by_name.update(broken)
        self.report.displacement = max(self.report.displacement, displacement)
