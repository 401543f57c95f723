"""Derivatives of nonlinear rows: closed forms, finite differences, second order, every number that requires one."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import hardnet as hn
from hardnet.functional import project_nonlinear, solve_nonlinear
from hardnet.structure import BoxedRows
from tests.nonlinear_problems import KNOWN, ellipse, equality, parabola, real, sphere, torus


def jacobian(g, raw, x=None, **options):
    project = lambda point: project_nonlinear(point, g, x, lower=0.0, upper=0.0, **options)
    return torch.autograd.functional.jacobian(project, raw)


def test_known_derivatives():
    torch.testing.assert_close(jacobian(sphere, real([3.0, 4.0])), real([[0.128, -0.096], [-0.096, 0.072]]))
    B = real([[1.0911868681, -0.1426862710], [-0.1426862710, 0.0186580067]])  # more than 1: the concave side
    torch.testing.assert_close(jacobian(ellipse, real([1.0, 0.2])), B, rtol=0, atol=1e-9)
    exact = jacobian(parabola, real([1.5, 0.5]), real([0.5]))
    torch.testing.assert_close(exact, real([[4.0, -2.0], [-2.0, 1.0]]) / 7)


def test_the_projector_leaves_the_curvature_out():
    found = jacobian(sphere, real([3.0, 4.0]), gradient="projector")
    normal = real([0.6, 0.8])
    torch.testing.assert_close(found, torch.eye(2, dtype=torch.float64) - torch.outer(normal, normal))
    again = jacobian(sphere, real([3.0, 4.0]), mode="retract")
    torch.testing.assert_close(again, found)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_gradients_of_the_known_problems(known):
    layer, raw = hn.layers.NonlinearLayer(equality(known)), known.raw.clone().requires_grad_()
    x = None if known.x is None else known.x.clone().requires_grad_()
    assert gradcheck(layer, (raw,) if x is None else (raw, x))


def test_second_derivatives_to_raw_x_and_a_captured_parameter():
    raw, x = real([[1.5, 0.5], [3.0, 2.0]]).requires_grad_(), real([[0.5], [0.2]]).requires_grad_()
    width = real([1.3, 0.9]).requires_grad_()

    def project(raw, x, width):
        rows = lambda y, x: width[0] * (y[..., :1] / 2).square() + x.square() + width[1] * y[..., 1:]
        return project_nonlinear(raw, rows, x, lower=0.0, upper=0.0)

    assert gradcheck(project, (raw, x, width))
    assert gradgradcheck(project, (raw, x, width))


def test_derivatives_to_bounds_rows_and_a_box():
    generator = torch.Generator().manual_seed(0)
    raw = (2 * torch.randn(4, 3, generator=generator, dtype=torch.float64)).requires_grad_()
    A, low = real([[1.0, -0.5, 0.3]]).requires_grad_(), real([-0.5, -0.6, -0.7]).requires_grad_()
    inner, outer = real([1.0]).requires_grad_(), real([1.2]).requires_grad_()

    def project(raw, A, low, inner, outer):
        rows = BoxedRows(A, None, real([0.1]), low, None)
        return project_nonlinear(raw, sphere, lower=inner - 1, upper=outer - 1, rows=rows)

    assert gradcheck(project, (raw, A, low, inner, outer))


def test_failed_samples_send_no_gradient_to_their_mates():
    raw = real([[3.0, 4.0], [1.0, 2.0]]).requires_grad_()
    x = real([[0.0], [9.0]]).requires_grad_()
    rows = lambda y, x: y.square().sum(-1, keepdim=True) - 1 + x
    y = project_nonlinear(raw, rows, x, lower=0.0, upper=0.0, on_infeasible="nearest", on_unsolved="best")
    y.sum().backward()
    torch.testing.assert_close(raw.grad, real([[0.032, -0.024], [0.0, 0.0]]))
    assert x.grad[1] == 0
    assert x.grad[0].isfinite()


def test_any_structure_of_x():
    raw = real([[3.0, 4.0], [1.0, 2.0]])
    x = {"radius": real([[1.0], [2.0]]), "shared": 3, "center": real([[0.0, 0.0], [1.0, 0.0]])}
    rows = lambda y, x: (y - x["center"]).square().sum(-1, keepdim=True) - x["radius"].square()
    found = solve_nonlinear(raw, rows, x, lower=0.0, upper=0.0)
    torch.testing.assert_close(found.y, real([[0.6, 0.8], [1.0, 2.0]]))
    assert found.dual.shape == (2, 1)
    many = solve_nonlinear(
        raw.expand(3, 2, 2),
        rows,
        {**x, "radius": x["radius"].expand(3, 2, 1), "center": x["center"].expand(3, 2, 2)},
        lower=0.0,
        upper=0.0,
    )
    assert many.y.shape == (3, 2, 2)
    assert many.status.shape == (3, 2)


def test_the_torus_against_its_formula():
    generator = torch.Generator().manual_seed(3)
    raw = 2 * torch.randn(200, 3, generator=generator, dtype=torch.float64)
    around = torch.linalg.vector_norm(raw[:, :2], dim=-1, keepdim=True)
    center = torch.cat([2 * raw[:, :2] / around, torch.zeros_like(around)], dim=-1)
    away = raw - center
    expected = center + 0.5 * away / torch.linalg.vector_norm(away, dim=-1, keepdim=True)
    y = project_nonlinear(raw, torus, lower=0.0, upper=0.0)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-9)
