"""Activation checkpointing: every layer gives the same answers and gradients, and saves nothing that is read twice."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import hardnet as hn
from tests.cases import CASES
from tests.draws import draw

D = torch.float64


def gradients(layer, raw, x, run):
    raw = raw.clone().requires_grad_()
    x = None if x is None else x.clone().requires_grad_()
    y = run(layer, raw, x)
    (y * draw(*y.shape, seed=2)).sum().backward()
    return [y, raw.grad, *([] if x is None or x.grad is None else [x.grad])]


def agree(layer, raw, x, reentrant):
    run = lambda layer, *given: checkpoint(layer, *given, use_reentrant=reentrant)
    plain, saved = gradients(layer, raw, x, lambda layer, *given: layer(*given)), gradients(layer, raw, x, run)
    for found, expected in zip(saved, plain, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_layer_can_be_checkpointed(case, reentrant):
    x, raw = case.data()
    agree(case.layer(), raw, x, reentrant)


@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
@pytest.mark.parametrize("kind", ["many rows", "shared rows", "box", "tangent", "metric", "strict", "few", "sparse"])
def test_every_route_of_a_polyhedron_can_be_checkpointed(kind, reentrant):
    n = 40 if kind == "shared rows" else 6
    m = {"shared rows": 48, "few": 3, "sparse": 8, "box": 3}.get(kind, 12)
    options = {
        "tangent": {"gradient": "tangent"},
        "metric": {"metric": [1.0] * 3 + [2.0] * 3},
        "strict": {"strict": True},
    }
    A = draw(m, n, seed=1)
    constraint = hn.Affine(A.to_sparse_csr() if kind == "sparse" else A, upper=torch.ones(m, dtype=D))
    if kind == "box":
        constraint = hn.Box(-1.0, 1.0) & constraint
    method = "cvx" if kind == "sparse" else "projection"
    agree(hn.layers.LAYERS[method](constraint, **options.get(kind, {})), 3 * draw(20, n, seed=3), None, reentrant)
