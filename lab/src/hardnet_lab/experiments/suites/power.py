"""IPOPT for AC optimal power flow, used by ``hardnet suite acopf --references``, and the recording of the grids.

`record_grid` (with pypower, the extra ``power``) and `record_loads` made the data files of the problems.
"""

from __future__ import annotations

import copy
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import MissingExtraError
from hardnet_lab.experiments.optimal import Optimum, _casadi, _ipopt, _solve_all
from hardnet_lab.experiments.results import write_json
from hardnet_lab.experiments.stamp import environment
from hardnet_lab.problems.suites.acopf import Dispatch, draw_loads
from hardnet_lab.problems.suites.grid import Grid, Tables, admittance, read_grid


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
