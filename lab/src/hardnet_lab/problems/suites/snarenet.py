"""SnareNet's programs: 100 outputs and 50 equalities ``C y = x`` beside affine or quadratic inequalities.

Numbers are drawn with numpy's legacy generator, seed 2025. noncvx draws in the order of HardNet's paper; cvx_qcqp
draws, in this order, Q = 0.5 rand(n) (diagonal), p = U(-1, 1), C = U(-1, 1), X = U(-0.5, 0.5), G = U(-1, 1),
H = U(0, 0.1) (diagonals), and bounds ``y'H_i y + G_i'y`` by ``h_i = |C⁺'H_i C⁺|₂ r² + |G_i C⁺| r + 0.1`` with r the
largest norm of any x, so that C⁺ x is feasible.
"""

from __future__ import annotations

from typing import Any

import torch

from hardnet_lab.problems.base import DC3Settings, Hidden, random_state, split
from hardnet_lab.problems.programs import draw
from hardnet_lab.problems.suites.base import fingerprint
from hardnet_lab.problems.suites.separable import Objective, Separable, SeparableRows

SEED, SAMPLES = 2025, 10000
N, EQUALITIES = 100, 50
MARGIN = 0.1


class Noncvx(Separable):
    """``min 1/2 y'Qy + p'sin y  s.t.  A y <= b, C y = x``: HardNet's recipe with a different seed."""

    hidden = Hidden()

    def __init__(self) -> None:
        drawn = draw(N, 50, EQUALITIES, SAMPLES, seed=SEED)
        Q, p, A, b, C, X = (torch.from_numpy(part) for part in drawn[:6])
        self.dc3 = DC3Settings(steps=10, step_size=1e-7, predicted=tuple(drawn.predicted.tolist()))
        super().__init__("snarenet-noncvx", Objective(Q, p, "sin"), C, SeparableRows(A), b)
        self.take_data(*split(X), fingerprint(Q, p, A, C, X))


class ConvexQCQP(Separable):
    """``min 1/2 y'Qy + p'y  s.t.  y'H_i y + G_i'y <= h_i (i = 1..m), C y = x``."""

    hidden = Hidden()
    batch_size = 100

    def __init__(self, inequalities: int) -> None:
        random = random_state(SEED)
        Q, p = random.rand(N) * 0.5, random.uniform(-1, 1, N)
        C, X = random.uniform(-1, 1, (EQUALITIES, N)), random.uniform(-0.5, 0.5, (SAMPLES, EQUALITIES))
        G, H = random.uniform(-1, 1, (inequalities, N)), random.uniform(0, 0.1, (inequalities, N))
        objective = Objective(torch.from_numpy(Q), torch.from_numpy(p))
        rows = SeparableRows(torch.from_numpy(G), torch.from_numpy(H))
        bound = torch.from_numpy(_bound(C, X, G, H))
        super().__init__(f"snarenet-qcqp{inequalities}", objective, torch.from_numpy(C), rows, bound)
        self.take_data(*split(torch.from_numpy(X)), fingerprint(Q, p, C, X, G, H))


def _bound(C: Any, X: Any, G: Any, H: Any) -> Any:
    """The bounds h, ``(m,)``."""
    import numpy as np

    inverse, longest = np.linalg.pinv(C), np.linalg.norm(X, axis=1).max()
    curvature = np.linalg.norm(np.einsum("na,mn,nb->mab", inverse, H, inverse), 2, axis=(1, 2))
    return curvature * longest**2 + np.linalg.norm(G @ inverse, axis=1) * longest + MARGIN
