"""Training recipes for SnareNet's and FSNet's curved rows, and the optima of their programs by IPOPT.

The optima are for ``hardnet suite snarenet --references`` and ``hardnet suite fsnet --references``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hardnet.products import times
from hardnet_lab.experiments.optimal import Optimum, _casadi, _ipopt, _solve_all
from hardnet_lab.experiments.recipes import Recipe
from hardnet_lab.experiments.suites.programs import WIDE
from hardnet_lab.problems import Hidden
from hardnet_lab.problems.suites.separable import ConeRows, Separable

TOLERANCE = 1e-10
_NETWORK = Hidden((2048, 2048), dropout=(0.2, 0.0), activation="silu", skip=True, kaiming=False)
_SETTINGS = {
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "weight_decay": 0.1,
    "batch_size": 512,
    "warm_epochs": 0,
    "soft_weight": 3.0,
}
_CHOSEN = (
    "Network and optimizer as for the affine programs; the penalty weight of 1, 3 and 10 by the gap of 48 validation "
    "samples of snarenet-qcqp50 and fsnet-nonconvex-qp, all rows enforced, after 40 epochs of a network of width 512."
)
LOOSE = Recipe(
    "loose",
    ("nonlinear",),
    _NETWORK,
    _SETTINGS | {"capture": True},
    {"mode": "nearest", "on_infeasible": "nearest", "on_unsolved": "best", "on_invalid": "nan"},
    epochs=300,
    chosen=_CHOSEN,
    needs_gpu=True,
    loose="equalities",
    label="",
)
"""Curved rows: the cost of projecting what a penalty leaves is of second order, so training omits the layer."""
LONGER_LOOSE = replace(
    LOOSE,
    name="longer",
    epochs=1200,
    chosen="Four times the epochs of the recipe that it is made from; no other number of epochs was tried.",
    label=", longer training",
)
"""The same network, trained longer."""
LONGER_CONES = replace(
    LONGER_LOOSE,
    settings=LOOSE.settings | {"learning_rate": 5e-4, "soft_weight": 1.0},
    chosen="The best of sixteen variants on the validation rows, one seed (choice-fsnet-convex-socp).",
)
"""Cones are most curved near their tips: a lower learning rate and a lower penalty."""
BOXED = replace(
    WIDE,
    name="boxed",
    methods=("projection",),
    settings=WIDE.settings | {"soft_weight": 3.0, "penalize_enforced": True},
    loose="rows",
)
"""Affine rows and a box that is seldom active: without the box the factors have half the size."""
LOOSER = replace(LOOSE, settings=LOOSE.settings | {"soft_weight": 1.0})
"""For rows with more curvature."""
PENALIZED = Recipe("penalized", ("soft",), _NETWORK, _SETTINGS, epochs=300, chosen=_CHOSEN, needs_gpu=True, label="")
"""The same network with only the penalty."""


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
