"""FSNet's programs: 100 outputs, 50 equalities ``C y = x``, 50 inequalities, every output in [-5, 5].

Numpy's legacy generator with seed 2025 draws, in this order, Q = 0.5 rand(n) (diagonal), p = U(-1, 1), C = U(-1, 1),
X = U(-1, 1) (10000 x 50), and then G = U(-1, 1) with ``h = sum_j |(G C⁺)_ij|`` and, for qcqp, H = U(0, 0.1); or, for
socp, y0 = U(-1, 1) and for every cone A_i, b_i, c_i = U(-1, 1) with ``d_i = |A_i y0 + b_i| - c_i'y0``. Torch's
generator with seed 2025 shuffles the samples: 7000 for training, 1000 for validation, 2000 for the test.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from hardnet_lab.problems.base import Hidden, random_state
from hardnet_lab.problems.suites.base import fingerprint
from hardnet_lab.problems.suites.separable import ConeRows, Objective, Separable, SeparableRows

SEED = 2025
PARTS = 7000, 1000, 2000
"""Samples for training, validation and test."""
N, EQUALITIES, INEQUALITIES, BOX = 100, 50, 50, 5.0
Shape = Literal["convex", "nonconvex", "nonsmooth"]
"""Shape of the objective and, with it, of the rows."""
Rows = Literal["qp", "qcqp", "socp"]


class FSNet(Separable):
    """One of FSNet's nine problems; those with nonconvex cones are not implemented.

    Args:
        shape: The objective is ``1/2 y'Qy + p'y`` (convex), ``1/2 y'Qy + p'sin y`` (nonconvex), or the latter
            ``+ 0.1 |y|`` (nonsmooth).
        rows: ``qp``: ``G y <= h`` if convex, otherwise ``G sin y <= h cos x``; ``qcqp``:
            ``1/2 y'H_i y + G_i'y <= h_i`` if convex, otherwise with ``G_i'cos y``; ``socp``:
            ``|A_i y + b_i| <= c_i'y + d_i``.
    """

    hidden = Hidden((1024, 1024, 1024, 1024), activation="silu")
    batch_size = 512

    def __init__(self, shape: Shape, rows: Rows) -> None:
        random = random_state(SEED)
        Q, p = random.rand(N) * 0.5, random.uniform(-1, 1, N)
        C, X = random.uniform(-1, 1, (EQUALITIES, N)), random.uniform(-1, 1, (sum(PARTS), EQUALITIES))
        drawn, inequalities, bound = _cones(random) if rows == "socp" else _separable(random, C, shape, rows)
        objective = Objective(torch.from_numpy(Q), torch.from_numpy(p))
        if shape != "convex":
            objective = objective._replace(curve="sin", weight=0.1 if shape == "nonsmooth" else 0.0)
        follows = shape != "convex" and rows == "qp"
        given = objective, torch.from_numpy(C), inequalities, bound, BOX
        super().__init__(f"fsnet-{shape}-{rows}", *given, follows=follows)
        train, validation, test = shuffled(torch.from_numpy(X))
        self.take_data(train, validation, test, fingerprint(Q, p, C, X, *drawn))


def shuffled(X: Tensor) -> list[Tensor]:
    """The samples in the published order of torch's generator, split into training, validation and test."""
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(SEED))
    return list(X[order].split(PARTS))


def _separable(random: Any, C: Any, shape: Shape, rows: Rows) -> tuple[list[Any], Any, Any]:
    """The arrays as drawn, the rows and their bound."""
    import numpy as np

    G = random.uniform(-1, 1, (INEQUALITIES, N))
    h = torch.from_numpy(np.abs(G @ np.linalg.pinv(C)).sum(1))
    given = torch.from_numpy(G)
    if rows == "qp":
        return [G], SeparableRows(given, curve="identity" if shape == "convex" else "sin"), h
    H = random.uniform(0, 0.1, (INEQUALITIES, N))
    curve = "identity" if shape == "convex" else "cos"
    return [G, H], SeparableRows(given, 0.5 * torch.from_numpy(H), curve), h


def _cones(random: Any) -> tuple[list[Any], Any, Any]:
    """The arrays as drawn, the cones and their bound d."""
    inside = torch.from_numpy(random.uniform(-1, 1, N))
    cones = [
        [random.uniform(-1, 1, size) for size in ((INEQUALITIES, N), INEQUALITIES, N)] for _ in range(INEQUALITIES)
    ]
    A, b, c = (torch.stack([torch.from_numpy(part) for part in parts]) for parts in zip(*cones, strict=True))
    rows = ConeRows(A, b, c)
    return [inside, A, b, c], rows, rows(inside, inside)
