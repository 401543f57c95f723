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


def equal_bounds(kind, shift=0.0):
    """Two rows with equal bounds: constants, or functions of x that agree at every x, or, with a shift, at none."""
    A = draw(2, 4, seed=3)
    b = torch.tensor([0.4, -0.2], dtype=torch.float64)
    if kind == "constant":
        return hn.Affine(A, lower=b, upper=b + shift)
    return hn.Affine(A, lower=lambda x: b + x[..., :2], upper=lambda x: x[..., :2] + b + shift)


@pytest.mark.parametrize("kind", ["constant", "function of x"])
@pytest.mark.parametrize("method", ["aff", "aff-eq", "projection", "dc3", "acnet", "kkt-hpinn", "cdgm", "rayen"])
def test_equal_bounds_are_an_equality_or_the_refusal_says_how_to_write_it(method, kind):
    x = draw(3, 4, seed=7)
    said, y, constraint = "", None, equal_bounds(kind)
    try:
        layer = hn.layers.LAYERS[method](constraint)
        y = layer(draw(3, layer.raw_dim or 4, seed=8), x)
    except (hn.errors.UnsupportedSetError, hn.errors.ShapeError) as error:
        said = str(error)
    if y is None:
        assert "hn.Equality" in said or method in ("rayen", "cdgm")
    else:
        assert hn.check(constraint, y, x).ok


@pytest.mark.parametrize("kind", ["constant", "function of x"])
def test_bounds_a_little_apart_are_none(kind):
    x = draw(3, 4, seed=7)
    for method in ("aff-eq", "acnet"):
        with pytest.raises(hn.errors.UnsupportedSetError, match=r"hn\.Equality"):
            hn.layers.LAYERS[method](equal_bounds(kind, 1e-6))
    hn.layers.LAYERS["dc3"](equal_bounds(kind, 1e-6), dim=4)(draw(3, 4, seed=8), x)
