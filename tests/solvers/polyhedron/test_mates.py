"""A sample's bits do not depend on its batch mates: bad, inside, hard or absent ones."""

import pytest
import torch

from hardnet.functional import project_affine as project
from hardnet.solvers import project_affine
from hardnet.solvers.polyhedron import projection
from tests.draws import draw
from tests.solvers.families import F64, gaussian

BACKENDS = [
    "auto",
    "torch",
    pytest.param("daqp", marks=pytest.mark.skipif(not projection.has_daqp(), reason="no daqp")),
]
SHAPES = [(20, 9), (7, 5), (5, 11), (30, 13), (9, 3), (13, 40)]


def mates(raw, A, lower, upper, seed):
    """The batch with other mates: one NaN, one inside, one empty and one far, in places that the seed draws."""
    places = torch.randperm(len(raw), generator=torch.Generator().manual_seed(seed))[: len(raw) // 2]
    raw, lower, upper = raw.clone(), lower.clone(), upper.clone()
    for kind, place in enumerate(places.tolist()):
        if kind % 4 == 0:
            raw[place, 0] = torch.nan
        elif kind % 4 == 1:
            lower[place], upper[place] = -1e3, 1e3
        elif kind % 4 == 2:
            raw[place] *= 1e6
        else:
            lower[place, 0], upper[place, 0] = 1.0, -1.0
    kept = torch.ones(len(raw), dtype=torch.bool)
    kept[places] = False
    return (raw, A, lower, upper), kept


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_mates_change_no_bit(n, m, shared, backend):
    for seed in range(8):
        arguments = gaussian(6, n, m, shared=shared, seed=seed)
        whole = project_affine(*arguments, backend=backend)
        other, kept = mates(*arguments, seed)
        found = project_affine(*other, backend=backend)
        assert torch.equal(found.y[kept], whole.y[kept])
        assert torch.equal(found.dual[kept], whole.dual[kept])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_mates_change_no_bit_of_a_gradient(n, m, shared):
    for seed in range(3):
        arguments = gaussian(6, n, m, shared=shared, seed=seed)
        weight = draw(6, n, seed=seed)
        grads = []
        other, kept = mates(*arguments, seed)
        for raw, A, lower, upper in (arguments, other):
            raw = raw.clone().requires_grad_()
            y = project(raw, A, lower, upper, on_infeasible="nan", on_invalid="nan")
            (y[kept] * weight[kept]).sum().backward()
            grads.append(raw.grad[kept])
        assert torch.equal(*grads)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_batch_has_an_empty_answer(backend):
    for n, m in ((3, 1), (4, 6), (9, 4)):
        found = project_affine(torch.zeros(0, n, dtype=F64), draw(m, n), upper=draw(m), backend=backend)
        assert found.y.shape == (0, n)
        assert found.status.shape == (0,)
