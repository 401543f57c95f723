"""What the page on guarantees claims of theory: constants of approximation, and which derivative it is."""

from itertools import combinations

import pytest
import torch

import hardnet as hn
from tests.draws import draw

D = torch.float64


def sets():
    """Convex sets of 3 outputs, one with more rows than outputs, and the metric of the projection."""
    A = draw(7, 3, seed=1)
    yield "rows", hn.Affine(A, upper=draw(7, seed=2).abs()), None
    yield "a box and a row", hn.Box(-1.0, 0.5) & hn.Affine(A[:1], upper=0.2), None
    yield "a ball", hn.Ball(torch.zeros(3, dtype=D), 1.0), None
    yield "another metric", hn.Affine(A, upper=draw(7, seed=2).abs()), torch.tensor([0.1, 1.0, 20.0], dtype=D)


@pytest.mark.parametrize("name", [name for name, _, _ in sets()])
def test_the_nearest_point_approximates_with_constant_one(name):
    """|P(raw) - target| <= |raw - target| for every target in a convex set, in the norm of the projection."""
    constraint, metric = next((one, weight) for own, one, weight in sets() if own == name)
    options = {} if metric is None else {"metric": metric}
    model = hn.HardNet(torch.nn.Identity(), constraint, **({"method": "projection", **options} if options else {}))
    raw, target = 3 * draw(200, 3, seed=3), model(3 * draw(200, 3, seed=4))
    root = torch.ones(3, dtype=D) if metric is None else metric.sqrt()
    after, before = (((point - target) * root).norm(dim=-1) for point in (model(raw), raw))
    assert (after <= before + 1e-9).all()
    assert (after < 0.99 * before).any(), "the set must move something, or this says nothing"


def degenerate(kind):
    """A polyhedron of 3 outputs ``A y <= b`` and raw outputs whose nearest point is where many rows meet."""
    A = draw(6, 3, seed=5)
    if kind == "copies":
        A = torch.cat([A[:3], 2 * A[:2], A[:1]])
    if kind == "dependent":
        A = torch.cat([A[:3], A[:1] + A[1:2], A[1:2] + A[2:3], A[:1] + A[2:3]])
    corner = draw(3, seed=6)
    weights = draw(20, 6, seed=7).relu()  # some are zero: active rows without a multiplier
    return A, A @ corner, corner + weights @ A


@pytest.mark.parametrize("kind", ["any", "copies", "dependent"])
def test_the_derivative_to_raw_is_that_of_a_conservative_mapping(kind):
    """``I - A_K'(A_K A_K')^-1 A_K`` for independent active rows K that carry a multiplier: the HS-Jacobian."""
    A, upper, raws = degenerate(kind)
    for raw in raws:
        project = lambda raw: hn.functional.project_affine(raw, A, upper=upper)
        y, J = project(raw), torch.autograd.functional.jacobian(project, raw)
        active = (upper - A @ y <= 1e-9).nonzero().flatten().tolist()
        distances = [(J - own).abs().max().item() for own in hs_jacobians(A, active, raw - y)]
        assert min(distances) <= 1e-9, (kind, distances)


def hs_jacobians(A, active, gap):
    """All HS-Jacobians: K independent, and ``gap = A_K'dual`` with ``dual >= 0``."""
    for size in range(len(active) + 1):
        for K in combinations(active, size):
            rows = A[list(K)]
            if (size and torch.linalg.svdvals(rows)[-1] < 1e-9 * torch.linalg.svdvals(rows)[0]) or size > A.shape[-1]:
                continue
            inverse = torch.linalg.pinv(rows) if size else A.new_zeros(A.shape[-1], 0)
            dual = inverse.T @ gap
            if (rows.T @ dual - gap).abs().max() <= 1e-9 and (dual >= -1e-9).all():
                yield torch.eye(A.shape[-1], dtype=A.dtype) - inverse @ rows
