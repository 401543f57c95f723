"""The two cones: known answers, derivatives at repeated eigenvalues, and the eigenbasis they are computed from."""

import pytest
import torch

from hardnet.errors import DTypeError, ShapeError
from hardnet.functional import project_psd, project_second_order_cone
from hardnet.solvers.conic.blocks import order, pack, second_order_frame, semidefinite_frame, unpack
from tests.draws import draw

pytestmark = pytest.mark.core

D = torch.float64


@pytest.mark.parametrize(
    ("z", "expected"),
    [
        ([3.0, 4, 0], [1.5, 2, 2.5]),
        ([3.0, 4, 1], [1.8, 2.4, 3]),
        ([3.0, 4, 5], [3, 4, 5]),
        ([0.3, 0.4, -2], [0, 0, 0]),
        ([0.0, 0, -1], [0, 0, 0]),
    ],
)
def test_second_order_known_answers(z, expected):
    found = project_second_order_cone(torch.tensor(z, dtype=D))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=D), rtol=0, atol=1e-15)


def test_second_order_known_jacobian():
    z = torch.tensor([3.0, 4, 1], dtype=D)
    found = torch.autograd.functional.jacobian(project_second_order_cone, z)
    expected = torch.tensor([[0.564, -0.048, 0.3], [-0.048, 0.536, 0.4], [0.3, 0.4, 0.5]], dtype=D)
    torch.testing.assert_close(found, expected)


def test_second_order_gradcheck_in_all_three_regions():
    z = torch.cat([draw(4, 4), torch.tensor([[0.1, 0.2, 0, 3.0], [0.1, 0.2, 0, -3.0]], dtype=D)]).requires_grad_()
    assert torch.autograd.gradcheck(project_second_order_cone, z)


@pytest.mark.parametrize(
    ("X", "expected"),
    [
        ([[0.0, 1], [1, 0]], [[0.5, 0.5], [0.5, 0.5]]),
        ([[1.0, 2], [2, -1]], [[1.6180339887, 1], [1, 0.6180339887]]),
        ([[-1.0, 0], [0, -2]], [[0, 0], [0, 0]]),
    ],
)
def test_psd_known_answers(X, expected):
    torch.testing.assert_close(project_psd(torch.tensor(X, dtype=D)), torch.tensor(expected, dtype=D))


def test_psd_gradcheck_and_symmetry():
    X = draw(3, 4, 4).requires_grad_()
    assert torch.autograd.gradcheck(project_psd, X)
    torch.testing.assert_close(project_psd(X), project_psd(X.mT))


def test_psd_gradient_of_repeated_eigenvalues():
    X = torch.diag(torch.tensor([2.0, 2.0, -1.0, -1.0], dtype=D)).requires_grad_()
    assert torch.autograd.gradcheck(project_psd, X)  # autograd through eigh gives NaN here


def test_psd_nan_stays_in_its_sample():
    X = draw(3, 2, 2)
    bad = X.clone()
    bad[1, 0, 0] = torch.nan
    found = project_psd(bad)
    assert bool(found[1].isnan().all())
    assert torch.equal(found[[0, 2]], project_psd(X)[[0, 2]])


def test_packing_keeps_inner_products():
    X, Y = (draw(5, 3, 3, seed=s) for s in (1, 2))
    X, Y = X + X.mT, Y + Y.mT
    torch.testing.assert_close((pack(X) * pack(Y)).sum(-1), (X * Y).sum((-1, -2)), rtol=0, atol=1e-14)
    torch.testing.assert_close(unpack(pack(X), 3), X, rtol=0, atol=1e-15)
    assert [order(k * (k + 1) // 2) for k in range(1, 60)] == list(range(1, 60))


def packed_frame(z, tolerance):
    return semidefinite_frame(*torch.linalg.eigh(unpack(z, order(z.shape[-1]))), tolerance)


@pytest.mark.parametrize(("frame", "size"), [(second_order_frame, 4), (packed_frame, 6)])
def test_frames_are_orthonormal_bases_with_eigenvalues_in_the_unit_interval(frame, size):
    z = draw(20, size)
    found = frame(z, torch.zeros(20, 1, dtype=D))
    eye = torch.eye(size, dtype=D).expand(20, -1, -1)
    turned = found.rotate(eye)
    torch.testing.assert_close(turned @ turned.mT, eye, rtol=0, atol=1e-14)
    torch.testing.assert_close(found.restore(turned), eye, rtol=0, atol=1e-14)
    assert bool(((found.delta >= 0) & (found.delta <= 1)).all())


def test_errors():
    with pytest.raises(ShapeError, match="height last"):
        project_second_order_cone(torch.zeros(1, dtype=D))
    with pytest.raises(ShapeError, match=r"X: expected shape \(\*batch, k, k\)"):
        project_psd(torch.zeros(2, 3, dtype=D))
    with pytest.raises(DTypeError, match="floating-point"):
        project_psd(torch.zeros(2, 2, dtype=torch.int64))
