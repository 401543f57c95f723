"""Exact optima of a suite's test instances, by the solvers of the extras: ``hardnet suite NAME --references``.

The files are in ``src/hardnet/problems/suites/data`` and are part of the repository, so that evaluation needs no
solver.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ConvergenceError, MissingExtraError
from hardnet.files import write_tensors
from hardnet.products import times
from hardnet_lab.experiments.optimal import Optimum, _casadi, _ipopt, _solve_all
from hardnet_lab.experiments.results import environment, write_json
from hardnet_lab.problems.suites import SuitePrograms
from hardnet_lab.problems.suites.acopf import Dispatch, Grid, Tables, admittance, draw_loads, read_grid
from hardnet_lab.problems.suites.hardnetpp import (
    CONTROL_WEIGHT,
    GOAL,
    LARGEST,
    OBSTACLE,
    STATES,
    STEPS,
    TERMINAL,
    TIME_STEP,
    UnicycleTask,
    advance,
    fresh_states,
)
from hardnet_lab.problems.suites.programs import ConeRows, Separable

if TYPE_CHECKING:
    from hardnet_lab.experiments.suites.catalog import Case

SOLVERS = ("numpy", "casadi", "clarabel")
"""Packages whose versions are recorded in a file, if they are installed."""


def write_references(cases: Sequence[Case], out: Path, device: torch.device, say: Callable[[str], None]) -> list[Path]:
    """Solve all test instances of the cases and write one file per case under `out`; Clarabel and IPOPT use the CPU."""
    paths = []
    for case in cases:
        path = out / f"{case.name}.json"
        content = solve_case(case, device)
        write_json(path, content)
        mean = sum(content["optimum"]) / len(content["optimum"])
        say(f"{case.name}: mean optimum {mean:.5f}, worst violation {content['worst_violation']:.1e}, {path}")
        paths.append(path)
    return paths


def solve_case(case: Case, device: torch.device) -> dict[str, Any]:
    """The optima of a case with the environment that made them; an error if an instance was not solved."""
    problem = case.build().to(device)
    x = problem.inputs(problem.test)
    best = case.solve(problem, x)
    if not best.value.isfinite().all():
        open_samples = (~best.value.isfinite()).sum().item()
        raise ConvergenceError(f"{case.name}: {open_samples} of {len(x)} test instances were not solved")
    metrics = problem.evaluate(lambda _: best.point.to(device), problem.test)
    made = environment(best.point.device)
    versions = {name: metadata.version(name) for name in SOLVERS if find_spec(name)}
    return {
        "case": case.name,
        "solver": best.solver,
        "checksum": problem.checksum,
        "worst_violation": metrics["worst_violation"].item(),
        "milliseconds": round(best.milliseconds, 3),
        "environment": made | {"versions": made["versions"] | versions},
        "optimum": best.value.tolist(),
    }


# Convex programs solved by Clarabel, one instance at a time; only for ``--references``.


CONIC_TOLERANCE = 1e-11
"""The solver's tolerance for the gap and the rows."""


def solve_convex(problem: SuitePrograms, x: Tensor) -> Optimum:
    """``min 1/2 y'Qy + p'y  s.t.  C y = x, A y <= b`` for every row of x."""
    clarabel, sparse = _packages()
    problem, x, began = problem.to("cpu"), x.cpu(), time.process_time()
    rows = sparse.csc_matrix(torch.cat([problem.C, problem.A]).numpy())
    Q, p = sparse.csc_matrix(sparse.diags_array(problem.Q.numpy())), problem.p.numpy()
    cones = [clarabel.ZeroConeT(problem.input_dim), clarabel.NonnegativeConeT(len(problem.b))]
    bounds = torch.cat([x, problem.b.expand(len(x), -1)], 1).numpy()
    found = [clarabel.DefaultSolver(Q, p, rows, bound, cones, _settings(clarabel)).solve() for bound in bounds]
    points = torch.tensor([answer.x for answer in found], dtype=x.dtype)
    solved = torch.tensor([answer.status == clarabel.SolverStatus.Solved for answer in found])
    value = problem.value(points, x).where(solved, torch.inf)
    return Optimum(value, points, 1e3 * (time.process_time() - began) / len(x), "Clarabel")


def _packages() -> tuple[Any, Any]:
    """Clarabel, and scipy's sparse matrices, which it takes."""
    try:
        import clarabel
        from scipy import sparse
    except ImportError as error:
        raise MissingExtraError("clarabel", "offline") from error
    return clarabel, sparse


def _settings(clarabel: Any) -> Any:
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = CONIC_TOLERANCE
    return settings


# Large programs solved by our own interior-point method, many instances at once; only for ``--references``.
#
# ``min f(y)  s.t.  C y = x, A y <= b`` with ``f = sum Q_i y_i^2 / 2 + p_i y_i`` or ``p_i sin y_i``. With y = y0 + N z,
# N a basis of the null space of C and y0 = C⁺ x, which is strictly feasible, the slacks ``s = b - A y`` stay positive,
# and Newton's method follows ``N'(grad f + A'u) = 0, u s = mu`` as mu goes to zero:
#
#     (N'DN + G' diag(u / s) G) dz = -N' grad f - G'(mu / s),    du = (mu - u s + u G dz) / s,    G = A N,
#
# with D the second derivatives of f, in absolute value for a sample whose matrix is not positive definite. For an
# instance of 1000 variables Clarabel takes half a minute on one core and this method half a second, with the same value
# to 1e-10. Solutions are checked by their optimality conditions; a sample that fails them gets the value infinity.


CHUNK = 64
"""Instances solved at once on a CPU; ten times as many on a GPU."""
MOST_STEPS = 200
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
    for _ in range(MOST_STEPS):
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


# Training recipes for SnareNet's and FSNet's curved rows, and the optima of their programs by IPOPT.
#
# The optima are for ``hardnet suite snarenet --references`` and ``hardnet suite fsnet --references``.


TOLERANCE = 1e-10


def solve_separable(problem: Separable, x: Tensor) -> Optimum:
    """The best IPOPT run per sample: from ``C⁺ x``, and also from zero if the objective is smooth and not convex.

    If the program is not convex, this is a local optimum: the best known one.
    """
    casadi = _casadi()
    C = problem.C
    y, parameter = casadi.MX.sym("y", problem.output_dim), casadi.MX.sym("x", problem.input_dim)
    rows = _rows(casadi, problem, y, parameter)
    gaps = casadi.mtimes(C.numpy(), y) - parameter
    program = {"x": y, "p": parameter, "f": _value(casadi, problem, y), "g": casadi.vertcat(rows, gaps)}
    solver = _ipopt(program, TOLERANCE, **_second_order(casadi, problem, program))
    bounds: dict[str, Any] = {"lbg": [-casadi.inf] * rows.shape[0] + [0.0] * len(C), "ubg": 0.0}
    if problem.box is not None:
        bounds |= {"lbx": -problem.box, "ubx": problem.box}
    return _solve_all(x, _starts(problem, C, x), lambda p, guess: solver(x0=guess, p=p, **bounds), solver)


def _starts(problem: Separable, C: Tensor, x: Tensor) -> list[Tensor]:
    """``C⁺ x``, and also zero where a second start may help and the objective is differentiable at zero."""
    start = x @ torch.linalg.pinv(C).T
    return [start] if problem.curve == "identity" or problem.weight else [start, torch.zeros_like(start)]


def _value(casadi: Any, problem: Separable, y: Any) -> Any:
    """The symbolic objective."""
    value = 0.5 * casadi.dot(problem.Q.numpy(), y**2) + casadi.dot(problem.p.numpy(), _curve(casadi, problem.curve, y))
    return value + problem.weight * casadi.norm_2(y) if problem.weight else value


def _curve(casadi: Any, name: str, y: Any) -> Any:
    return y if name == "identity" else getattr(casadi, name)(y)


def _rows(casadi: Any, problem: Separable, y: Any, x: Any) -> Any:
    """The symbolic ``rows(y) - bound(x)``."""
    own, bound = problem.rows, problem.bound.numpy()
    if isinstance(own, ConeRows):
        return _lengths(casadi, own, y) - casadi.mtimes(own.c.numpy(), y) - bound
    rows = casadi.mtimes(own.G.numpy(), _curve(casadi, own.curve, y))
    if own.H is not None:
        rows = rows + casadi.mtimes(own.H.numpy(), y**2)
    return rows - (bound * casadi.cos(x) if problem.follows else bound)


def _lengths(casadi: Any, cones: ConeRows, y: Any) -> Any:
    """``|A_i y + b_i|`` of every cone; CasADi stores matrices by columns, so each column is a cone."""
    m, k = cones.b.shape
    inside = casadi.reshape(casadi.mtimes(cones.A.flatten(0, 1).numpy(), y) + cones.b.flatten().numpy(), k, m)
    return casadi.sqrt(casadi.sum1(inside**2)).T


def _second_order(casadi: Any, problem: Separable, program: dict[str, Any]) -> dict[str, Any]:
    """The Hessian of the Lagrangian for cones, written out because CasADi's own takes a second per sample.

    ``Q + sum_i w_i (A_i'A_i - g_i g_i' / l_i²)`` with ``l_i = |A_i y + b_i|``, ``w_i = multiplier_i / l_i`` and
    ``g_i = A_i'(A_i y + b_i)``.
    """
    cones, y = problem.rows, program["x"]
    if not isinstance(cones, ConeRows):
        return {}
    A = cones.A
    m, _, n = A.shape
    gram, shift = A.mT @ A, times(A.mT, cones.b)
    weight, multipliers = casadi.MX.sym("weight"), casadi.MX.sym("multipliers", program["g"].shape[0])
    lengths = _lengths(casadi, cones, y)
    w = multipliers[:m] / lengths
    pulls = casadi.reshape(casadi.mtimes(gram.flatten(0, 1).numpy(), y) + shift.flatten().numpy(), n, m)
    bend = casadi.reshape(casadi.mtimes(gram.flatten(1).T.contiguous().numpy(), w), n, n)
    second = weight * casadi.diag(problem.Q.numpy()) + bend
    second -= casadi.mtimes(pulls, casadi.repmat(w / lengths**2, 1, n) * pulls.T)
    names = ["x", "p", "lam_f", "lam_g"], ["second"]
    given = [y, program["p"], weight, multipliers]
    return {"hess_lag": casadi.Function("second", given, [casadi.triu(casadi.densify(second))], *names)}


# IPOPT for AC optimal power flow, used by ``hardnet suite acopf --references``, and the recording of the grids.
#
# `record_grid` (with pypower, the extra ``power``) and `record_loads` made the data files of the problems.


def program(tables: Tables, near: bool = False) -> tuple[Any, Any]:
    """IPOPT over (Pg, Qg, V, angle) with the loads as parameters and the balance of every bus as rows.

    Args:
        tables: The grid.
        near: Whether to find the dispatch nearest to a point, passed after the loads, instead of the cheapest.
    """
    casadi = _casadi()
    G, B = admittance(tables)
    buses, made = len(tables.bus), len(tables.gen)
    place = {int(number): index for index, number in enumerate(tables.bus[:, 0].tolist())}
    y = casadi.SX.sym("y", 2 * made + 2 * buses)
    given = casadi.SX.sym("p", 2 * buses + (y.numel() if near else 0))
    pg, qg, v, angle = casadi.vertsplit(y, [0, made, 2 * made, 2 * made + buses, y.numel()])
    balance = [given[row] for row in range(2 * buses)]
    for i, j in ((G != 0) | (B != 0)).nonzero().tolist():
        g, b, turn = float(G[i, j]), float(B[i, j]), angle[i] - angle[j]
        balance[i] += v[i] * v[j] * (g * casadi.cos(turn) + b * casadi.sin(turn))
        balance[buses + i] += v[i] * v[j] * (g * casadi.sin(turn) - b * casadi.cos(turn))
    for index, number in enumerate(tables.gen[:, 0].tolist()):
        balance[place[int(number)]] -= pg[index]
        balance[buses + place[int(number)]] -= qg[index]
    cost = tables.gencost.numpy()
    price = (casadi.dot(cost[:, 0], pg**2) + casadi.dot(cost[:, 1], pg) + float(cost[:, 2].sum())) / tables.base**2
    value = 0.5 * casadi.sumsqr(y - given[2 * buses :]) if near else price
    solve = _ipopt({"x": y, "p": given, "f": value, "g": casadi.vertcat(*balance)}, 1e-10)
    return solve, {"lbg": [0.0] * (2 * buses), "ubg": [0.0] * (2 * buses)}


def solve_with(grid: Grid, tables: Tables, parameters: Tensor, near: bool = False) -> Optimum:
    """Dispatches ``(samples, size)`` for rows of parameters, with the nominal dispatch as the start."""
    solve, rows = program(tables, near)
    bounds = {"lbx": grid.lower.tolist(), "ubx": grid.upper.tolist()}
    start = grid.nominal.expand(len(parameters), -1)
    return _solve_all(parameters, [start], lambda p, guess: solve(x0=guess, p=p, **bounds, **rows), solve)


def solve_dispatch(problem: Dispatch, x: Tensor) -> Optimum:
    """The cheapest dispatch for every x, as outputs of the problem."""
    grid = copy.deepcopy(problem.grid).cpu()
    best = solve_with(grid, read_grid(grid.case), x.cpu())
    return best if problem.output_dim == grid.size else best._replace(point=grid.chosen(best.point))


def record_grid(case: str, folder: Path) -> None:
    """Write the tables of a pypower case with the cheapest dispatch at its own loads."""
    try:
        content = getattr(import_module(f"pypower.{case}"), case)()
    except ImportError:
        raise MissingExtraError("pypower") from None
    used, base = content["gen"][:, 7] > 0, float(content["baseMVA"])
    scale = [base**2, base, 1.0]
    found = {
        "bus": content["bus"],
        "gen": content["gen"][used][:, :10],
        "branch": content["branch"][content["branch"][:, 10] > 0][:, :11],
        "gencost": content["gencost"][used][:, 4:7] * scale,
    }
    bus, gen, branch, gencost = (torch.tensor(part.tolist(), dtype=torch.float64) for part in found.values())
    tables = Tables(base, bus, gen, branch, gencost, torch.zeros(0))
    stamp = environment(torch.device("cpu"))
    versions = stamp["versions"] | {name: metadata.version(name) for name in ("casadi", "pypower")}
    made = {"source": f"pypower.{case}, in the columns of MATPOWER's case format", "base": base}
    made |= {name: part.tolist() for name, part in found.items()} | {"environment": stamp | {"versions": versions}}
    write_json(folder / f"grid-{case}.json", made | {"nominal": _nominal(tables)})


def _nominal(tables: Tables) -> list[float]:
    """The cheapest dispatch at the loads of the tables, from a flat start."""
    solve, rows = program(tables)
    made, buses, base = len(tables.gen), len(tables.bus), tables.base
    slack = (tables.bus[:, 1] == 3).tolist()
    angle = [0.0 if fixed else float("inf") for fixed in slack]
    low = torch.cat([tables.gen[:, 9] / base, tables.gen[:, 4] / base, tables.bus[:, 12]]).tolist()
    high = torch.cat([tables.gen[:, 8] / base, tables.gen[:, 3] / base, tables.bus[:, 11]]).tolist()
    loads = (torch.cat([tables.bus[:, 2], tables.bus[:, 3]]) / base).tolist()
    bounds = {"lbx": [*low, *(-end for end in angle)], "ubx": [*high, *angle]}
    found = solve(x0=[0.0] * (2 * made) + [1.0] * buses + [0.0] * buses, p=loads, **bounds, **rows)
    return found["x"].full().ravel().tolist()


def record_loads(case: str, folder: Path, count: int) -> None:
    """Write which of the drawn loads have no dispatch: those on which IPOPT does not converge from the nominal one."""
    grid = Grid(case)
    best = solve_with(grid, read_grid(case), draw_loads(grid, count))
    without = (~best.value.isfinite()).nonzero().squeeze(-1).tolist()
    content = {"case": case, "drawn": count, "without": without, "milliseconds": best.milliseconds}
    write_json(folder / f"loads-{case}.json", content | {"environment": environment(torch.device("cpu"))})


# IPOPT for HardNet++'s unicycle: optima of its test poses, and the trajectories that give its training poses.


TURNS = ((0.0, 0.0), (1.1, -0.8), (-1.1, 0.8), (0.5, 0.5), (-0.5, -0.5))
"""Turning rates of the starts in the first five and the next five steps: straight, around either side, arcs."""


def plan_program(steps: int) -> tuple[Any, dict[str, list[float]]]:
    """IPOPT for a horizon of `steps` steps, and its bounds; the unknowns are the states, then the controls."""
    casadi = _casadi()
    states, controls, first = casadi.SX.sym("s", 3, steps), casadi.SX.sym("u", 2, steps), casadi.SX.sym("x", 3)
    gaps, keep, cost, before = [], [], 0, first
    for step in range(steps):
        state, control = states[:, step], controls[:, step]
        speed, turn = casadi.vertsplit(control)
        rate = casadi.vertcat(speed * casadi.cos(before[2]), speed * casadi.sin(before[2]), turn)
        gaps.append(state - before - TIME_STEP * rate)
        keep.append(OBSTACLE[0] * state[0] ** 2 + OBSTACLE[1] * state[1] ** 2)
        error = state - casadi.DM(GOAL)
        error = casadi.vertcat(error[0], error[1], casadi.atan2(casadi.sin(error[2]), casadi.cos(error[2])))
        weight = casadi.DM.ones(3) + (casadi.DM(TERMINAL) if step == steps - 1 else 0)
        cost += casadi.dot(weight, error**2) + CONTROL_WEIGHT * casadi.sumsqr(control)
        before = state
    unknown = casadi.vertcat(casadi.vec(states), casadi.vec(controls))
    free = [casadi.inf] * (3 * steps)
    bounds = {
        "lbx": [-entry for entry in free] + [0.0, -LARGEST[1]] * steps,
        "ubx": free + list(LARGEST) * steps,
        "lbg": [0.0] * (3 * steps) + [1.0] * steps,
        "ubg": [0.0] * (3 * steps) + [casadi.inf] * steps,
    }
    return _ipopt({"x": unknown, "p": first, "f": cost, "g": casadi.vertcat(*gaps, *keep)}, 1e-9), bounds


def starts(x: Tensor, steps: int, turns: tuple[tuple[float, float], ...]) -> list[Tensor]:
    """States and controls to start from, ``(samples, 5 steps)`` each: half speed with the given turning rates."""
    found = []
    for early, late in turns:
        rates = [early] * 5 + [late] * 5 + [0.0] * (steps - 10)
        controls = torch.tensor([[1.0, rate] for rate in rates], dtype=x.dtype).expand(len(x), -1, -1)
        state, states = x, []
        for control in controls.unbind(1):
            state = advance(state, control)
            states.append(state)
        found.append(torch.cat([*states, controls.flatten(1)], 1))
    return found


def solve_plan(problem: UnicycleTask, x: Tensor) -> Optimum:
    """The best solution from five starts for every pose, as outputs of the problem."""
    solve, bounds = plan_program(STEPS)
    x = x.cpu()
    best = _solve_all(x, starts(x, STEPS, TURNS), lambda p, guess: solve(x0=guess, p=p, **bounds), solve)
    return best if problem.output_dim > STATES else best._replace(point=best.point[:, STATES:])


def record_states(path: Path, count: int = 1000, steps: int = 20) -> None:
    """Write every pose of the optimal trajectories over 20 steps from fresh poses with seed 7, in float32."""
    solve, bounds = plan_program(steps)
    x = fresh_states(7, count)
    best = _solve_all(x, starts(x, steps, TURNS[:3]), lambda p, guess: solve(x0=guess, p=p, **bounds), solve)
    states = torch.cat([x.unsqueeze(1), best.point[:, : 3 * steps].unflatten(1, (steps, 3))], 1)
    made = environment(torch.device("cpu"))
    versions = made["versions"] | {"casadi": metadata.version("casadi"), "numpy": metadata.version("numpy")}
    about = {"made_by": "hardnet_lab.experiments.suites.references.record_states", "seed": 7, "solver": best.solver}
    write_tensors(path, {"states": states.float()}, about | {"environment": made | {"versions": versions}})
