"""Random blocks with a common interior point (the origin), shared by the tests of curved sets."""

import torch

from hardnet.solvers import Block, Intervals, Quadratics, SecondOrder, SemiDefinite
from tests.draws import draw

D = torch.float64


def rows(batch: int, n: int, m: int, seed: int = 0) -> Intervals:
    upper = 0.2 + draw(batch, m, seed=seed + 1).abs()
    return Intervals(draw(batch, m, n, seed=seed), torch.full((batch, m), -torch.inf, dtype=D), upper)


def balance(n: int) -> Intervals:
    zero = torch.zeros(1, 1, dtype=D)
    return Intervals(torch.ones(1, 1, n, dtype=D), zero, zero)


def cone(batch: int, n: int, k: int, seed: int = 0) -> SecondOrder:
    b = 0.3 * draw(batch, k, seed=seed + 1)
    d = torch.linalg.vector_norm(b, dim=-1) + 0.5
    return SecondOrder(draw(batch, k, n, seed=seed), b, 0.4 * draw(batch, n, seed=seed + 2), d)


def matrix(batch: int, n: int, k: int, seed: int = 0) -> SemiDefinite:
    F = draw(batch, n, k, k, seed=seed)
    return SemiDefinite(torch.eye(k, dtype=D).expand(batch, k, k).clone(), (F + F.mT) / 2)


def quadratic(batch: int, n: int, rank: int, seed: int = 0) -> Quadratics:
    root = draw(batch, n, rank, seed=seed)
    return Quadratics(root @ root.mT, draw(batch, n, seed=seed + 1), -torch.ones(batch, dtype=D))


def ball(center: list[float], radius: float) -> SecondOrder:
    eye = torch.eye(len(center), dtype=D)
    return SecondOrder(eye, -torch.tensor(center, dtype=D), torch.zeros_like(eye[0]), torch.tensor(radius, dtype=D))


def half_plane(normal: list[float], least: float) -> Intervals:
    lower = torch.tensor([least], dtype=D)
    return Intervals(torch.tensor([normal], dtype=D), lower, torch.full_like(lower, torch.inf))


def families(batch: int, n: int, seed: int = 0) -> dict[str, list[Block]]:
    """Every kind alone and mixed; the origin is strictly inside of all but the balance."""
    rows_, cone_ = rows(batch, n, 2 * n, seed), cone(batch, n, 3, seed + 10)
    matrix_, quadratic_ = matrix(batch, n, 3, seed + 20), quadratic(batch, n, n - 1, seed + 30)
    return {
        "rows": [rows_],
        "cone": [cone_],
        "matrix": [matrix_],
        "quadratic": [quadratic_],
        "rows and cone": [rows_, cone_],
        "balance, cone and quadratic": [balance(n), cone_, quadratic_],
        "two quadratics": [quadratic_, quadratic(batch, n, n, seed + 40)],
        "all": [rows_, cone_, matrix_, quadratic_],
    }
