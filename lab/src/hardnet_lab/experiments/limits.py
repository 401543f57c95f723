"""Limits as data: the cost of the optimum and of controllers without a network, on each test set."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from importlib import metadata, resources
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ConvergenceError, HardNetError, sentence
from hardnet.files import write_atomically
from hardnet_lab.experiments.optimal import (
    CONTROL_LIMIT,
    Optimum,
    _barrier_rows,
    _casadi,
    _dynamics,
    _ipopt,
    optimal_control,
    optimal_programs,
)
from hardnet_lab.experiments.results import environment
from hardnet_lab.problems import Policy, Problem, Programs
from hardnet_lab.problems.barrier import nominal_control
from hardnet_lab.problems.unicycle import STEPS, TIME_STEP, Rollout, Unicycle

# The best known controls for the unicycle's simulator, free in every sub-step that it takes.
#
# The simulator cuts a step of 0.02 s where a control is large: a sub-step lasts ``min(rest of the step, 2 / |u|)``, and
# the policy is evaluated again in each. So a policy can do what no sequence of 50 controls can. Here the sub-steps of a
# given run are kept as a pattern and all its controls are optimized. The result is a run of the same simulator, never
# worse than the initial one. The solver is local and the pattern is one of many: a best known value, not a proof.


AREA = CONTROL_LIMIT * TIME_STEP
"""Upper bound on ``|u| * length`` of a sub-step."""


HOLDS = 1e-8
"""Allowed violation of a barrier row, integrated over one second: the solver's own tolerance."""


class Run(NamedTuple):
    """One sample's run through the simulator, sub-step by sub-step.

    Attributes:
        controls: ``(sub-steps, 2)``.
        lengths: ``(sub-steps,)``, in seconds.
        ends: ``(sub-steps,)``: whether the sub-step is the last of its step of 0.02 s.
        cost: Cost over the whole second.
        violation: The largest violation of a barrier, integrated over the second.
    """

    controls: Tensor
    lengths: Tensor
    ends: Tensor
    cost: float
    violation: float = 0.0


@torch.no_grad()
def runs_of(problem: Unicycle, policy: Policy, x: Tensor) -> list[Run]:
    """The runs of a policy from each state ``(samples, 5)``."""
    controls: list[Tensor] = []
    clocks: list[Tensor] = []

    def rate(x: Tensor, control: Tensor, y: Tensor, raw: Tensor) -> Tensor:
        controls.append(control)
        return problem.cost_and_residual(x, control, y, raw)

    def watch(now: Rollout) -> None:
        clocks.append(now.remaining)

    end = problem.rollout(policy, x, rate, record=watch)
    asked, clock = torch.stack(controls[1:], 1), torch.stack(clocks[:-1], 1)  # the first call only measures a shape
    longest = AREA / asked.abs().amax(-1)
    lengths = torch.minimum(clock, longest)
    taken = lengths > 0
    return [
        Run(asked[i][taken[i]], lengths[i][taken[i]], (clock <= longest)[i][taken[i]], *totals)
        for i, totals in enumerate(zip(end.total[:, 0].tolist(), end.total[:, 1:].amax(-1).tolist(), strict=True))
    ]


def improve(problem: Unicycle, x: Tensor, run: Run) -> Run:
    """The best controls with the run's own pattern of sub-steps, starting from the run; the run if none is better.

    The solver's result is replayed in the simulator: its cost there counts, and no barrier may be violated by more than
    `HOLDS`.
    """
    casadi = _casadi()
    program, bounds = _program(casadi, problem, run)
    solve = _ipopt(program, 1e-8)
    end = solve(x0=_guess(x, run).numpy(), p=x.numpy(), **bounds)
    if not solve.stats()["success"] or float(end["f"]) >= run.cost:
        return run
    count = len(run.lengths)
    found = replayed(problem, x, torch.from_numpy(end["x"].full().ravel())[: 2 * count].reshape(count, 2))
    return found if found is not None and found.cost < run.cost else run


def replayed(problem: Unicycle, x: Tensor, controls: Tensor) -> Run | None:
    """The run of these controls in the simulator, one per sub-step; None if a barrier or the pattern is violated."""
    step = iter([*controls, *controls[-1:].expand(len(controls), -1)])
    policy: Policy = lambda state: next(step).unsqueeze(0) - nominal_control(state)
    try:
        run = runs_of(problem, policy, x.unsqueeze(0))[0]
    except (StopIteration, ConvergenceError):
        return None
    return run if run.violation <= HOLDS and len(run.lengths) == len(controls) else None


def _program(casadi: Any, problem: Unicycle, run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """The program over controls, lengths and states; a cut sub-step lasts exactly as long as its control allows."""
    count = len(run.lengths)
    controls, lengths, states = (casadi.SX.sym(name, rows, count) for name, rows in (("u", 2), ("l", 1), ("s", 5)))
    state = initial = casadi.SX.sym("x", 5)
    equal, areas, rows, cost, elapsed = [], [], [], 0, 0
    for index in range(count):
        control, length, after = controls[:, index], lengths[index], states[:, index]
        rate = _dynamics(casadi, state, control)
        cost += length * _running_cost(casadi, problem, state, control)
        equal.append(after - state - length * rate)
        elapsed += length
        if run.ends[index]:
            equal.append(elapsed - TIME_STEP)
            elapsed = 0
        else:
            largest = int(run.controls[index].abs().argmax())
            equal.append(float(run.controls[index, largest].sign()) * control[largest] * length - AREA)
        areas.append(control * length)
        rows.append(_barrier_rows(casadi, state, rate))
        state = after
    held = [casadi.vertcat(*part) for part in (equal, areas, rows)]
    unknown = casadi.vertcat(casadi.vec(controls), casadi.vec(lengths), casadi.vec(states))
    program = {"x": unknown, "p": initial, "f": cost, "g": casadi.vertcat(*held)}
    return program, _bounds(casadi, count, *(part.numel() for part in held))


def _bounds(casadi: Any, count: int, equal: int, areas: int, rows: int) -> dict[str, Any]:
    """Bounds for the given numbers of equalities, control areas and barrier rows, and for the unknowns."""
    lower = [0.0] * equal + [-AREA] * areas + [0.0] * rows
    upper = [0.0] * equal + [AREA] * areas + [casadi.inf] * rows
    least = [-casadi.inf] * (2 * count) + [0.0] * count + [-casadi.inf] * (5 * count)
    return {"lbg": lower, "ubg": upper, "lbx": least}


def _running_cost(casadi: Any, problem: Unicycle, state: Any, control: Any) -> Any:
    """``x'Qx + u'Ru``."""
    return casadi.dot(problem.state_weight.numpy(), state**2) + problem.control_weight * casadi.sumsqr(control)


def _guess(x: Tensor, run: Run) -> Tensor:
    """The unknowns at the run itself: controls, lengths and the resulting states."""
    states = []
    for control, length in zip(run.controls, run.lengths, strict=True):
        _, _, heading, speed, turn = x.unbind(-1)
        rate = torch.stack([speed * heading.cos(), speed * heading.sin(), turn])
        x = x + length * torch.cat([rate, control])
        states.append(x)
    return torch.cat([run.controls.flatten(), run.lengths, torch.stack(states).flatten()])


def cut(run: Run, pieces: tuple[int, ...]) -> Run:
    """A run of 50 whole steps with the first ones cut into `pieces` sub-steps each, as a pattern to start from.

    The sub-steps of a cut step have equal lengths, and the larger control is ``2 / length`` in all but the last.
    """
    controls, lengths, ends = [], [], []
    for step, control in enumerate(run.controls):
        count = pieces[step] if step < len(pieces) else 1
        needed = AREA / (TIME_STEP / count)
        scale = needed / float(control.abs().max()) if count > 1 else 1.0
        controls += [control * scale] * (count - 1) + [control]
        lengths += [TIME_STEP / count] * count
        ends += [False] * (count - 1) + [True]
    numbers = torch.tensor(lengths, dtype=run.controls.dtype)
    return Run(torch.stack(controls), numbers, torch.tensor(ends), float("inf"))


def path_of(x: Tensor, run: Run) -> list[list[float]]:
    """Positions along a run from x ``(5,)``, rounded for drawing."""
    states = _guess(x, run)[3 * len(run.lengths) :].reshape(-1, 5)
    return [[round(number, 4) for number in state[:2].tolist()] for state in (x, *states)]


DATA = resources.files("hardnet_lab.experiments") / "data"
PATTERNS = ((2,), (2, 2), (1, 2))
"""Numbers of sub-steps into which the first steps are cut, for the best known controls."""
SEED = 17
"""The seed of every data set."""


def load(name: str) -> dict[str, Any] | None:
    """The shipped limits of a problem; None for those without (the piecewise problems, whose limit is zero)."""
    file = DATA / f"limits-{name}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def compute(out: Path, names: Iterable[str] | None = None) -> list[Path]:
    """Compute the limits of the named problems (default: all) and write one JSON file each under `out`."""
    chosen = list(LIMITS) if names is None else list(names)
    unknown = [name for name in chosen if name not in LIMITS]
    if unknown:
        raise HardNetError(sentence("names", f"some of {', '.join(LIMITS)}", ", ".join(unknown)))
    paths = []
    for name in chosen:
        content = {"problem": name, "seed": SEED, **LIMITS[name](), "environment": _environment(name)}
        path = out / f"limits-{name}.json"
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
        paths.append(path)
    return paths


def _environment(name: str) -> dict[str, Any]:
    """What the numbers were made with."""
    made = environment(torch.device("cpu"))
    versions = {package: metadata.version(package) for package in ("numpy", "casadi")}
    command = f"hardnet_lab.experiments.limits.compute(out, ['{name}'])"
    return made | {"command": command, "versions": made["versions"] | versions}


def program_limits(problem: Programs) -> dict[str, Any]:
    """The optimum of every test instance."""
    best = optimal_programs(problem, problem.test)
    metrics = problem.evaluate(lambda _: best.point, problem.test)
    row = _row("optimizer", "Optimizer (IPOPT)", metrics, best.milliseconds)
    row["per_sample"] = _rounded(best.value)
    return {"limit": _limit(problem, "optimum by IPOPT", best), "rows": [row]}


def control_limits(problem: Unicycle) -> dict[str, Any]:
    """The open-loop optimum of every test state, and the controllers without a network."""
    best = _best_control(problem)
    rows = [_optimal_row(problem, best), *(_controller_row(problem, *entry) for entry in _controllers(problem))]
    known = _best_known(problem, best)
    return {
        "limit": _limit(problem, "best known controls in the simulator's own sub-steps", known[0]),
        "rows": [known[1], *rows],
    }


def _best_known(problem: Unicycle, best: Optimum) -> tuple[Optimum, dict[str, Any]]:
    """The best known runs of the simulator itself, in which controls are free in every sub-step, and their row.

    They start from the 50 optimal controls, with the first steps cut according to each of `PATTERNS`. A local solver
    and a few patterns do not prove optimality: a better run may exist, so the value is called the best known.
    """
    began = time.process_time()
    step = iter(_fifty(best).unbind(1))
    whole = runs_of(problem, lambda x: next(step) - nominal_control(x), problem.test)
    runs = [_best_run(problem, x, run) for x, run in zip(problem.test, whole, strict=True)]
    value = torch.tensor([run.cost for run in runs], dtype=torch.float64)
    spent = 1e3 * (time.process_time() - began) / len(runs)
    violation = torch.tensor([run.violation for run in runs], dtype=torch.float64)
    metrics = {"cost": value.mean(), "max_violation": violation.mean(), "mean_violation": violation.mean()}
    row = _row("optimal", "Best known controls, free in every sub-step (IPOPT)", metrics, spent)
    row |= {"per_sample": _rounded(value), "trajectory": path_of(problem.test[0], runs[0])}
    return Optimum(value, best.point, spent), row


def _best_run(problem: Unicycle, x: Tensor, whole: Run) -> Run:
    """The cheapest of the uncut run and the runs improved from each pattern."""
    found = [improve(problem, x, cut(whole, pattern)) for pattern in PATTERNS]
    return min([whole, *found], key=lambda run: run.cost)


def _fifty(best: Optimum) -> Tensor:
    """The 50 optimal controls of each sample, ``(samples, 50, 2)``, clamped exactly to their bounds."""
    return best.point[:, : 2 * STEPS].reshape(-1, STEPS, 2).clamp(-CONTROL_LIMIT, CONTROL_LIMIT)


def _best_control(problem: Unicycle) -> Optimum:
    """The better result from two starts: zero controls and the nominal controls."""
    nominal = []
    problem.rollout(_zero, problem.test, _record_control(nominal), substeps=STEPS)
    starts = [torch.zeros(len(problem.test), STEPS, 2, dtype=torch.float64), torch.stack(nominal[1:], 1)]
    return optimal_control(problem, problem.test, starts)


def _record_control(controls: list[Tensor]) -> Callable[..., Tensor]:
    """An integrand that records every control passed to it."""

    def keep(x: Tensor, control: Tensor, y: Tensor, raw: Tensor) -> Tensor:
        controls.append(control)
        return torch.zeros_like(x[..., :1])

    return keep


def _optimal_row(problem: Unicycle, best: Optimum) -> dict[str, Any]:
    """Replay the optimal controls in the simulator; their cost there must be the optimum's."""
    step = iter(_fifty(best).unbind(1))
    policy: Policy = lambda x: next(step) - nominal_control(x)
    states: list[Tensor] = []
    end = problem.rollout(
        policy, problem.test, problem.cost_and_residual, substeps=STEPS, record=lambda now: states.append(now.state)
    )
    metrics = {"cost": end.total[:, 0].mean()} | _violations(end.total[:, 1:])
    row = _row("open-loop", "Optimal open-loop control, 50 controls (IPOPT)", metrics, best.milliseconds)
    return row | {"per_sample": _rounded(best.value), "trajectory": _path(states)}


def _controllers(problem: Unicycle) -> list[tuple[str, str, Policy]]:
    """Name, label and policy of each controller; a policy returns the residual added to the nominal control."""
    return [
        ("nominal", "Nominal controller", _zero),
        ("cbf-qp", "CBF-QP", lambda x: nearest_safe(problem, x, _zero(x))),
        ("cbf-qp-published", "CBF-QP (published objective)", lambda x: nearest_safe(problem, x, nominal_control(x))),
        ("aff-zero", "HardNet-Aff of a zero residual", lambda x: closed_form(problem, x)),
    ]


def _controller_row(problem: Unicycle, method: str, label: str, policy: Policy) -> dict[str, Any]:
    """Cost, violations, time of one evaluation of all test states, and the first trajectory."""
    states: list[Tensor] = []
    end = problem.rollout(policy, problem.test, problem.cost_and_residual, record=lambda now: states.append(now.state))
    metrics = {"cost": end.total[:, 0].mean()} | _violations(end.total[:, 1:])
    row = _row(method, label, metrics, _milliseconds(policy, problem.test))
    return row | {"per_sample": _rounded(end.total[:, 0]), "trajectory": _path(states)}


def _milliseconds(policy: Policy, x: Tensor, repeats: int = 20) -> float:
    """Processor time of one evaluation, after one warm-up evaluation."""
    policy(x)
    began = time.process_time()
    for _ in range(repeats):
        policy(x)
    return 1e3 * (time.process_time() - began) / repeats


def nearest_safe(problem: Unicycle, x: Tensor, raw: Tensor) -> Tensor:
    """The Euclidean projection of raw onto the two barrier rows, by trying every set of active rows."""
    A, upper = problem.barriers.both(x)
    excess = (A * raw.unsqueeze(-2)).sum(-1) - upper
    single = raw.unsqueeze(-2) - A * (excess / A.square().sum(-1)).unsqueeze(-1)
    both = raw - torch.linalg.solve(A, excess)
    tries = torch.cat([raw.unsqueeze(-2), single, both.unsqueeze(-2)], -2)
    slack = (upper.unsqueeze(-2) - tries @ A.mT).amin(-1)
    allowed = slack >= -1e-9 * (1 + upper.abs().amax(-1, keepdim=True))
    distance = (tries - raw.unsqueeze(-2)).square().sum(-1).masked_fill(~allowed, torch.inf)
    return torch.take_along_dim(tries, distance.argmin(-1)[..., None, None], -2).squeeze(-2)


def closed_form(problem: Unicycle, x: Tensor) -> Tensor:
    """HardNet-Aff of a zero residual: ``-A⁻¹ relu(-upper)``."""
    A, upper = problem.barriers.both(x)
    return -torch.linalg.solve(A, (-upper).clamp_min(0))


def _zero(x: Tensor) -> Tensor:
    return torch.zeros_like(x[..., :2])


def _violations(integral: Tensor) -> dict[str, Tensor]:
    return {"max_violation": integral.amax(-1).mean(), "mean_violation": integral.mean()}


def _limit(problem: Problem, label: str, best: Optimum) -> dict[str, Any]:
    return {"metric": problem.objective, "value": best.value.mean().item(), "label": label}


def _row(method: str, label: str, metrics: dict[str, Tensor], milliseconds: float) -> dict[str, Any]:
    values = {name: [value.item()] for name, value in metrics.items()}
    return {"method": method, "label": label, "metrics": values, "timing": {"test_ms": milliseconds}}


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 8) for value in values.tolist()]


def _path(states: list[Tensor]) -> list[list[float]]:
    """Positions of the first test state along its rollout, rounded for drawing."""
    return [[round(number, 4) for number in state[0, :2].tolist()] for state in states]


LIMITS: dict[str, Callable[[], dict[str, Any]]] = {
    "opt": lambda: program_limits(Programs()),
    "opt-dc3": lambda: program_limits(Programs(dc3_order=True)),
    "opt-convex": lambda: program_limits(Programs(dc3_order=True, convex=True)),
    "cbf": lambda: control_limits(Unicycle()),
}
"""Computes the limits of each problem; opt-* use the data of the DC3 paper."""
