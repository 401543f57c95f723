"""DC3 on smooth functions: agreement with the affine layer, the implicit derivative, known points, errors."""

import pytest
import torch

from hardnet.errors import ConvergenceError, NonFiniteError, ShapeError, UnsupportedSetError
from hardnet.layers import DC3, SmoothDC3
from hardnet.sets import Affine, Equality, Smooth
from tests.draws import draw

F64 = torch.float64
A = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.2, -1.0]], dtype=F64)
C = torch.tensor([[1.0, 1.0, 2.0]], dtype=F64)


def circle():
    """y1^2 + y2^2 = x^2, y1 <= x / 2."""
    return Smooth(
        2,
        inequality=lambda y, x: y[..., :1] - x / 2,
        equality=lambda y, x: y.square().sum(-1, keepdim=True) - x.square(),
    )


def test_agrees_with_the_affine_layer():
    smooth = Smooth(3, lambda y, x: y @ A.mT - 0.1, lambda y, x: y @ C.mT - x)
    affine = Affine(A, upper=torch.full((2,), 0.1, dtype=F64)) & Equality(C, lambda x: x)
    x, raw = draw(2, 5, 1), draw(2, 5, 2, seed=1)
    expected = DC3(affine, predicted=[0, 1], step=1e-2)(raw, x)
    torch.testing.assert_close(SmoothDC3(smooth, predicted=[0, 1])(raw, x), expected, rtol=1e-11, atol=1e-11)
    free = Smooth(3, lambda y, x: y @ A.mT - 0.1)
    expected = DC3(affine.members[0], step=1e-2)(draw(4, 3))
    torch.testing.assert_close(SmoothDC3(free)(draw(4, 3)), expected, rtol=1e-11, atol=1e-11)


def test_nonlinear_equality_is_exact_and_the_inequality_converges():
    x = torch.tensor([[1.0], [2.0]], dtype=F64)
    raw = torch.tensor([[0.9], [-0.3]], dtype=F64)
    constraint = circle()
    layer = SmoothDC3(constraint, predicted=[0], start=1.0, step=0.4, steps=15, momentum=0.0)
    y = layer(raw, x)
    assert constraint.violation(y, x)[..., 1].max() < 1e-10
    torch.testing.assert_close(y[0], torch.tensor([0.5, 0.75**0.5], dtype=F64), rtol=0, atol=1e-6)
    assert y[1, 0] == -0.3


def test_extra_steps_stop_each_sample_by_itself():
    layer = SmoothDC3(
        circle(), predicted=[0], start=1.0, step=0.25, steps=0, extra_steps=15, momentum=0.0, tolerance=1e-2
    )
    x, raw = torch.ones(2, 1, dtype=F64), torch.tensor([[0.9], [0.505]], dtype=F64)
    assert torch.equal(layer.train()(raw, x)[:, :1], raw)
    y = layer.eval()(raw, x)
    assert y[0, 0].item() == pytest.approx(0.5 + 0.4 / 64)  # halved until at most 0.01
    assert y[1, 0] == 0.505


def test_gradients_through_newton_and_correction():
    layer = SmoothDC3(circle(), predicted=[0], start=1.0, step=0.05, steps=4, newton_tolerance=1e-13)
    x, raw = 1 + 0.1 * draw(3, 1).abs(), torch.tensor([[0.8], [0.1], [0.7]], dtype=F64)
    torch.autograd.gradcheck(layer, (raw.requires_grad_(), x.requires_grad_()))


def test_errors():
    with pytest.raises(UnsupportedSetError, match="Affine is not given by smooth functions; use method='dc3'"):
        SmoothDC3(Affine(A, upper=1.0))
    with pytest.raises(ShapeError, match="inequality, equality: expected at least one function"):
        Smooth(2)
    with pytest.raises(ShapeError, match="predicted: expected the coordinates that equalities leave to the network"):
        SmoothDC3(circle())
    with pytest.raises(ShapeError, match=r"predicted: expected distinct coordinates in 0\.\.1, got \[2\]"):
        SmoothDC3(circle(), predicted=[2])
    layer = SmoothDC3(circle(), predicted=[0], start=1.0, steps=0)
    with pytest.raises(ShapeError, match=r"raw: expected shape \(\*batch, 1\), got \(2, 2\)"):
        layer(draw(2, 2), torch.ones(2, 1, dtype=F64))
    x = torch.ones(2, 1, dtype=F64)
    with pytest.raises(NonFiniteError, match=r"raw: expected finite numbers, got NaN or inf.* in samples? 1"):
        layer(torch.tensor([[0.0], [torch.nan]], dtype=F64), x)
    with pytest.raises(
        ConvergenceError, match=r"equality: expected a solution to 1e-10, got no convergence in samples? 1"
    ) as caught:
        layer(torch.tensor([[0.0], [3.0]], dtype=F64), x)  # no point of the circle has y1 = 3
    assert caught.value.samples == [1]
    layer = SmoothDC3(circle(), predicted=[0], start=1.0, steps=0, on_invalid="nan")
    y = layer(torch.tensor([[0.0], [3.0]], dtype=F64), x)
    assert y[1].isnan().all()
    assert torch.equal(y[0], layer(torch.zeros(2, 1, dtype=F64), x)[0])
