"""The data of the figures, computed from a model: learned functions, trajectories, descent paths."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from hardnet.layers.hardnet_aff import HardNetAff
from hardnet.model import HardNet
from hardnet_lab.problems import Piecewise, Policy, Problem, Programs, Unicycle, gradient_path
from hardnet_lab.problems.suites import SuiteProblem
from hardnet_lab.problems.unicycle import Rollout
from hardnet_lab.train import stacked_net


@torch.no_grad()
def picture(problem: Problem, model: HardNet) -> dict[str, Any]:
    """The data of the problem's figure for a model; empty if the problem has no figure."""
    training = model.training
    model.eval()
    shown = {name: rounded(value) for name, value in drawn(problem, model, stacked_net(model).seeds).items()}
    model.train(training)
    return shown


def first_seed(model: HardNet) -> HardNet:
    """The model of the first seed only, in evaluation mode, so that iterative layers spend no time on other seeds."""
    return HardNet(stacked_net(model).only(0), model.constraint, model.layer).eval()


@singledispatch
def drawn(problem: Problem, policy: Policy, seeds: int) -> dict[str, Tensor]:
    """The data of a problem's figure for a policy; empty for a problem without a figure."""
    return {}


@drawn.register
def _(problem: Piecewise, policy: Policy, seeds: int) -> dict[str, Tensor]:
    """The learned function on the grid: y ``(seeds, 401)``."""
    return {"y": policy(problem.test.expand(seeds, -1, -1)).squeeze(-1)}


@drawn.register
def _(problem: Programs, policy: Policy, seeds: int) -> dict[str, Tensor]:
    """The objective of every test instance by the first seed: ``(samples,)``."""
    return {"per_sample": problem.value(policy(problem.test.expand(seeds, -1, -1))[0])}


@drawn.register
def _(problem: SuiteProblem, policy: HardNet, seeds: int) -> dict[str, Tensor]:
    """The objective of every test instance by the first seed: ``(samples,)``."""
    x = problem.inputs(problem.test)
    return {"per_sample": problem.value(first_seed(policy)(x.unsqueeze(0))[0], x)}


@drawn.register
def _(problem: Unicycle, policy: Policy, seeds: int) -> dict[str, Tensor]:
    """The first test state's trajectory for each seed, ``(seeds, sub-steps, 2)``, and the first seed's costs."""
    states: list[Tensor] = []
    all_of_one = problem.test.expand(seeds, -1, -1)
    end = problem.rollout(policy, all_of_one, problem.cost_and_residual, record=_keep(states))
    return {"trajectory": torch.stack(states, 1), "per_sample": end.total[0, :, 0]}


def _keep(states: list[Tensor]) -> Callable[[Rollout], None]:
    """A recorder of positions."""
    return lambda now: states.append(now.state[:, 0, :2])


def gradient_paths() -> dict[str, Any]:
    """The four descents of Appendix C through HardNet-Aff."""
    enforce = HardNetAff(gradient_path.constraint())
    paths = []
    for case in gradient_path.CASES:
        path = gradient_path.descend(enforce, case)
        numbers = {name: rounded(value) for name, value in path._asdict().items()}
        paths.append(case._asdict() | numbers)
    return {"paths": paths}


def rounded(value: Tensor, digits: int = 5) -> Any:
    """Nested lists of numbers, rounded to the digits that a drawing can show."""
    if value.dim() == 0:
        return round(value.item(), digits)
    return [rounded(part, digits) for part in value]
