"""Sets of equalities, however they are written: every method sees them, and their gradients are those of a formula."""

import pytest
import torch

import hardnet as hn
from tests.draws import draw

F64 = torch.float64


@pytest.mark.parametrize("written", ["equality", "bounds"])
@pytest.mark.parametrize(("m", "batch"), [(3, 15), (16, 16), (16, 64), (40, 17)])
def test_equalities_alone_have_the_gradient_of_their_formula(written, m, batch):
    A, b, raw = draw(m, 50, seed=1), draw(m, seed=2), draw(batch, 50, seed=3).requires_grad_()
    constraint = hn.Equality(A, b) if written == "equality" else hn.Affine(A, lower=b, upper=b)
    y = hn.layers.Projection(constraint)(raw)
    inverse = torch.linalg.pinv(A)
    assert torch.allclose(y, raw - (raw @ A.mT - b) @ inverse.mT, rtol=0, atol=1e-12)
    weight = draw(batch, 50, seed=4)
    (y * weight).sum().backward()
    assert torch.allclose(raw.grad, weight - weight @ A.mT @ inverse.mT, rtol=0, atol=1e-12)
