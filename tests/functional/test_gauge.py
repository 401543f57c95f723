"""Gauges: known answers for every kind of set, finite gradients, and the definition itself."""

import pytest
import torch

from hardnet.functional.gauge import cone_gauge, largest_gauge, linear_gauge, quadratic_gauge, spectral_gauge
from tests.draws import draw, tensor

F64 = torch.float64
EYE = torch.eye(2, dtype=F64)


def triangle():
    """y >= 0, y1 + y2 <= 1 about (1/4, 1/4)."""
    return linear_gauge(tensor([-1.0, 0.0], [0.0, -1.0], [1.0, 1.0]), tensor(0.0, 0.0, 1.0), tensor(0.25, 0.25), EYE)


def disc(center=(0.5, 0.0)):
    """The unit disc about a point inside it."""
    return quadratic_gauge(2 * EYE, tensor(0.0, 0.0), tensor(-1.0).squeeze(), tensor(*center), EYE)


def lorentz():
    """|(y1, y2)| <= y3 about (0, 0, 1)."""
    A = tensor([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    height = tensor(0.0, 0.0, 1.0)
    return cone_gauge(A, tensor(0.0, 0.0), height, tensor(0.0).squeeze(), height, torch.eye(3, dtype=F64))


def matrix_disc():
    """[[1 + y1, y2], [y2, 1 - y1]] >= 0, which is the unit disc, about 0."""
    F = tensor([[1.0, 0.0], [0.0, -1.0]], [[0.0, 1.0], [1.0, 0.0]])
    return spectral_gauge(EYE, F, tensor(0.0, 0.0), EYE)


def test_triangle():
    assert triangle()(tensor(1.0, 1.0) / 2**0.5).item() == pytest.approx(2 * 2**0.5, abs=1e-12)
    assert triangle()(tensor(0.6, -0.8)).item() == pytest.approx(3.2, abs=1e-12)


@pytest.mark.parametrize(("v", "expected"), [((1.0, 0.0), 2.0), ((-1.0, 0.0), 2 / 3), ((0.0, 1.0), 1.1547005383792517)])
def test_disc(v, expected):
    assert disc()(tensor(*v)).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("v", "expected"),
    [((1, 0, 0), 1), ((0, 0, 1), 0), ((0.6, 0, 0.8), 0), ((0.8, 0, -0.6), 1.4), ((0, 0, -1), 1)],
)
def test_cone(v, expected):
    v = tensor(*(float(entry) for entry in v))
    assert largest_gauge([lorentz()], v).item() == pytest.approx(expected, abs=1e-12)


def test_matrix_disc_is_one_in_every_direction():
    angle = torch.linspace(0, 6, 50, dtype=F64)
    v = torch.stack([angle.cos(), angle.sin()], dim=-1)
    torch.testing.assert_close(matrix_disc()(v), torch.ones(50, dtype=F64), rtol=0, atol=1e-14)


def test_the_same_disc_by_three_pieces():
    y0 = tensor(0.3, -0.4)
    cone = cone_gauge(EYE, tensor(0.0, 0.0), tensor(0.0, 0.0), tensor(1.0).squeeze(), y0, EYE)
    F = tensor([[1.0, 0.0], [0.0, -1.0]], [[0.0, 1.0], [1.0, 0.0]])
    spectral = spectral_gauge(EYE, F, y0, EYE)
    v = draw(40, 2)
    torch.testing.assert_close(cone(v), disc((0.3, -0.4))(v), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(spectral(v), disc((0.3, -0.4))(v), rtol=1e-12, atol=1e-12)
    boundary = y0 + v / spectral(v).unsqueeze(-1)
    torch.testing.assert_close(
        torch.linalg.vector_norm(boundary, dim=-1), torch.ones(40, dtype=F64), rtol=1e-13, atol=0
    )


def test_a_far_boundary_is_found_without_cancellation():
    """y1^2 <= y2 + 1 about 0, almost straight up: the root is 1e-9 of its terms."""
    parabola = quadratic_gauge(
        tensor([2.0, 0.0], [0.0, 0.0]), tensor(0.0, -1.0), tensor(-1.0).squeeze(), tensor(0.0, 0.0), EYE
    )
    gauge = parabola(tensor(1e-5, 1.0))
    y = tensor(1e-5, 1.0) / gauge
    assert (y[0] ** 2 - y[1] - 1).abs() / y[1] < 1e-14


@pytest.mark.parametrize(("build", "dim"), [(triangle, 2), (disc, 2), (matrix_disc, 2), (lorentz, 3)])
def test_homogeneous_with_gradients(build, dim):
    gauge = build()
    v = draw(6, dim, seed=3)
    torch.testing.assert_close(gauge(3 * v), 3 * gauge(v))
    torch.autograd.gradcheck(gauge, (v.requires_grad_(),))


def test_gradients_are_finite_at_double_roots_repeated_eigenvalues_and_zero():
    for gauge, point in (
        (lorentz(), tensor(0.0, 0.0, -1.0)),
        (matrix_disc(), tensor(0.0, 0.0)),
        (disc(), tensor(0.0, 0.0)),
        (triangle(), tensor(0.0, 0.0)),
    ):
        point = point.requires_grad_()
        (gradient,) = torch.autograd.grad(largest_gauge([gauge], point), point)
        assert gradient.isfinite().all()


def matrix_box():
    """diag(1 + y1, 1 - y1, 1 + y2) >= 0: of an order for which LAPACK rejects NaN."""
    F = torch.stack([torch.diag(tensor(1.0, -1.0, 0.0)), torch.diag(tensor(0.0, 0.0, 1.0))])
    return spectral_gauge(torch.eye(3, dtype=F64), F, tensor(0.0, 0.0), EYE)


def test_nan_stays_in_its_sample():
    v = tensor([torch.nan, 0.0], [1.0, 0.0])
    for gauge in (matrix_disc(), matrix_box(), disc(), triangle()):
        value = largest_gauge([gauge], v)
        assert value[0].isnan()
        assert torch.equal(value[1], largest_gauge([gauge], v[1:])[0])
