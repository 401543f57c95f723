"""What the figures draw, computed from a model: learned functions, trajectories, descent paths.

Called by `hardnet.experiments.row`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from hardnet.layers.hardnet_aff import HardNetAff
from hardnet.model import HardNet
from hardnet.problems import Piecewise, Policy, Problem, Programs, Unicycle, gradient_path
from hardnet.problems.suites import SuiteProblem
from hardnet.problems.unicycle import Rollout
from hardnet.train import stacked_net


@torch.no_grad()
def picture(problem: Problem, model: HardNet) -> dict[str, Any]:
    """What the problem's figure shows of a model, per seed; empty where it has none."""
    training = model.training
    model.eval()
    shown = {name: rounded(value) for name, value in drawn(problem, model, stacked_net(model).seeds).items()}
    model.train(training)
    return shown


def first_seed(model: HardNet) -> HardNet:
    """The model of the first seed alone, for testing; layers that iterate take their time for every other."""
    return HardNet(stacked_net(model).only(0), model.constraint, model.layer).eval()


@singledispatch
def drawn(problem: Problem, policy: Policy, seeds: int) -> dict[str, Tensor]:
    """What the figure of a problem shows of a policy; nothing for a problem without a figure."""
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
    """Where the first test state goes with the policy of each seed, ``(seeds, sub-steps, 2)``, and all costs of one."""
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
    """Nested lists of numbers with as many digits as a drawing can show."""
    if value.dim() == 0:
        return round(value.item(), digits)
    return [rounded(part, digits) for part in value]
