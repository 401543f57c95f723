"""The nonlinear layer: known answers, stationary points, warm starts, other sets beside its rows."""

import pytest
import torch

import hardnet as hn
from hardnet.layers import NonlinearLayer
from hardnet.solvers.nonlinear.solve import NonlinearStatus as Status
from tests.draws import draw
from tests.nonlinear_problems import (
    CIRCLE,
    F64,
    FEED,
    KNOWN,
    ellipse,
    equality,
    pooling,
    pooling_limits,
    real,
    sphere,
)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_known_nearest_points(known):
    layer = NonlinearLayer(equality(known))
    found = layer.solve(known.raw, known.x)
    assert (found.status == Status.OK).all()
    # the answers have 12 digits, and the KKT conditions hold to 1e-10
    torch.testing.assert_close(layer(known.raw, known.x), known.y, rtol=0, atol=5e-12)
    assert hn.check(layer.constraint, found.y, known.x).ok
    if known.dual is not None:
        torch.testing.assert_close(found.dual, known.dual, rtol=0, atol=5e-12)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_a_retraction_is_feasible_and_no_nearer_than_the_nearest_point(known):
    y = NonlinearLayer(equality(known), mode="retract")(known.raw, known.x)
    assert hn.check(equality(known), y, known.x).ok
    near, far = (torch.linalg.vector_norm(known.raw - point, dim=-1) for point in (known.y, y))
    assert (far >= near - 1e-11).all()


def test_outside_of_a_ball():
    raw = 1.2 * draw(200, 3)
    y = NonlinearLayer(hn.Nonlinear(sphere, dim=3, lower=0.0))(raw)
    inside = torch.linalg.vector_norm(raw, dim=-1, keepdim=True) < 1
    torch.testing.assert_close(y, torch.where(inside, raw / torch.linalg.vector_norm(raw, dim=-1, keepdim=True), raw))
    assert torch.equal(y[~inside.squeeze(-1)], raw[~inside.squeeze(-1)])


def test_pooling_has_a_formula():
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(100, 4, generator=generator, dtype=F64) + 0.5
    x[:, 1] += x[:, 0]
    raw = 2.0 * draw(100, 5, seed=3)
    s, q = x[:, 0] + x[:, 1], (3 * x[:, 0] + x[:, 1]) / (x[:, 0] + x[:, 1])
    wishes = [raw[:, 1], s - raw[:, 2], x[:, 2] - raw[:, 3], raw[:, 4] - x[:, 3] + s]
    t = torch.stack(wishes).mean(0)
    t = torch.minimum(torch.maximum(t, -0.5 * x[:, 2] / (2 - q)), s - 0.5 * x[:, 3] / (2 - q))
    expected = torch.stack([q, t, s - t, x[:, 2] - t, x[:, 3] - s + t], dim=-1)
    constraint = hn.Nonlinear(pooling, dim=5, lower=0.0, upper=0.0) & hn.Nonlinear(pooling_limits, dim=5, upper=0.0)
    torch.testing.assert_close(NonlinearLayer(constraint)(raw, x), expected, rtol=0, atol=1e-10)


def test_the_column_with_outputs_that_must_not_be_negative():
    known = next(known for known in KNOWN if known.name == "column")
    constraint = equality(known) & hn.Box(torch.zeros(9, dtype=F64))
    y = NonlinearLayer(constraint)(known.raw, FEED)
    assert 0 <= y[0, 6] < 1e-15  # it was -0.0025 without the box
    assert hn.check(constraint, y, FEED).ok
    farther = torch.linalg.vector_norm(known.raw - y) - torch.linalg.vector_norm(known.raw - known.y)
    assert 0 < farther < 0.1


def test_random_samples_converge_and_are_stationary():
    """Every sample of a sweep is a KKT point: that of an ellipsoid can be checked by its own equation."""
    axes = real([3.0, 1.0, 0.5])
    raw = 2.0 * draw(300, 3, seed=5)
    layer = NonlinearLayer(
        hn.Nonlinear(lambda y, x: (y / axes).square().sum(-1, keepdim=True), dim=3, lower=1.0, upper=1.0)
    )
    found = layer.solve(raw)
    assert (found.status == Status.OK).all()
    residual = found.y - raw + 2 * found.dual * found.y / axes.square()
    assert residual.abs().max() < 1e-9
    assert ((found.y / axes).square().sum(-1) - 1).abs().max() < 1e-12


def test_what_looks_affine_is_projected_and_verified():
    raw = 3.0 * draw(20, 2, seed=1)
    rows = hn.Nonlinear(lambda y, x: y.sum(-1, keepdim=True), dim=2, lower=1.0, upper=1.0)
    y = NonlinearLayer(rows)(raw)
    torch.testing.assert_close(
        y, hn.functional.project_affine(raw, torch.ones(1, 2, dtype=F64), real([1.0]), real([1.0]))
    )
    # relu looks affine around (5, 4), but its answer there, (3, 0), is not on that piece
    kinked = NonlinearLayer(hn.Nonlinear(lambda y, x: y.relu().sum(-1, keepdim=True), dim=2, lower=1.0, upper=1.0))
    assert hn.check(kinked.constraint, kinked(real([[5.0, 4.5], [3.0, 2.5]]))).ok


@pytest.mark.parametrize("mode", ["nearest", "retract"])
def test_a_point_of_the_set_comes_back_bit_for_bit(mode):
    layer = NonlinearLayer(hn.Nonlinear(ellipse, dim=2, lower=0.0, upper=0.0), mode=mode)
    y = layer(3.0 * draw(50, 2))
    again = layer(y)
    assert torch.equal(again, y)


def test_a_warm_start_gives_the_same_point_in_fewer_steps():
    layer, raw = NonlinearLayer(hn.Nonlinear(ellipse, dim=2, lower=0.0, upper=0.0)), 2.0 * draw(50, 2, seed=4)
    cold = layer.solve(raw)
    warm = layer.solve(raw + 1e-6, start=cold.y)
    assert warm.iterations.sum() < cold.iterations.sum()
    torch.testing.assert_close(warm.y, cold.y, rtol=0, atol=1e-4)
    fixed = NonlinearLayer(layer.constraint, start=[1.0, 0.5])
    torch.testing.assert_close(fixed(raw[:1] * 0 + real([2.0, 2.0])), real([[1.723556779008, 0.818491297010]]))


def test_auto_takes_it_and_explain_says_so():
    assert hn.explain(CIRCLE).method == "nonlinear"
    assert hn.HardNet(torch.nn.Linear(2, 2), hn.sets.Smooth(2, equality=sphere)).method == "nonlinear"


def test_a_given_jacobian_is_used_and_agrees():
    calls = []

    def slope(y, x):
        calls.append(len(y))
        return (2 * y / real([9.0, 1.0])).unsqueeze(-2)

    raw = (2.0 * draw(30, 2, seed=7)).requires_grad_()
    given = hn.Nonlinear(ellipse, dim=2, lower=0.0, upper=0.0, jacobian=slope)
    plain = hn.Nonlinear(ellipse, dim=2, lower=0.0, upper=0.0)
    y, other = NonlinearLayer(given)(raw), NonlinearLayer(plain)(raw)
    assert calls
    torch.testing.assert_close(y, other, rtol=0, atol=1e-10)
    weight = draw(30, 2, seed=8)
    grads = [torch.autograd.grad((point * weight).sum(), raw)[0] for point in (y, other)]
    torch.testing.assert_close(*grads, rtol=1e-7, atol=1e-8)


def test_many_equalities_go_by_products_with_the_hessian():
    """50 outputs, 25 quadratic rows: conjugate gradients find what the dense system finds."""
    matrices, slopes = draw(25, 50, 50, seed=1) / 50, draw(25, 50, seed=2) / 7
    symmetric = matrices + matrices.mT

    def g(y, x):
        return torch.einsum("...i,mij,...j->...m", y, matrices, y) + y @ slopes.mT - x

    def slope(y, x):
        return torch.einsum("mij,...j->...mi", symmetric, y) + slopes

    point = draw(8, 50, seed=3)
    x = g(point, 0.0)
    raw = point + draw(8, 50, seed=4)  # far enough that steps without the Hessian do not converge
    layer = NonlinearLayer(hn.Nonlinear(g, dim=50, lower=0.0, upper=0.0, jacobian=slope))
    found = layer.solve(raw, x)
    assert (found.status == Status.OK).all()
    assert found.iterations.max() <= 40
    stationary = found.y - raw + (slope(found.y, x).mT @ found.dual.unsqueeze(-1)).squeeze(-1)
    assert stationary.abs().max() < 1e-8
    assert (g(found.y, x).abs().max()) < 1e-12


def test_balls_and_quadratics_stand_beside_nonlinear_rows():
    """A circle within a ball round x and half of a disc: the same as the same rows written into g."""
    ball = hn.Ball(lambda x: x, 0.8)
    disc = hn.Quadratic(2 * torch.eye(2, dtype=F64), [0.0, -1.0], 0.0)  # |y|^2 <= y2
    x, raw = 0.2 * draw(30, 2, seed=20) + real([0.5, 0.9]), 2.0 * draw(30, 2, seed=21)
    written = lambda y, x: torch.stack([(y - x).square().sum(-1) - 0.64, y.square().sum(-1) - y[..., 1]], dim=-1)
    row = hn.Nonlinear(lambda y, x: y[..., :1] * y[..., 1:], dim=2, upper=0.1)
    layer, other = NonlinearLayer(row & ball & disc), NonlinearLayer(row & hn.Nonlinear(written, dim=2, upper=0.0))
    found, expected = layer.solve(raw, x), other.solve(raw, x)
    good = expected.status == Status.OK
    assert good.sum() >= 25
    torch.testing.assert_close(found.y[good], expected.y[good], rtol=0, atol=1e-9)
    assert hn.check(layer.constraint, found.y[good], x[good]).ok
    raw, x = raw[good].requires_grad_(), x[good].requires_grad_()
    grads = [torch.autograd.grad(own(raw, x).square().sum(), (raw, x)) for own in (layer, other)]
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


def test_a_second_order_cone_stands_beside_nonlinear_rows():
    """``|(y1, y2)| <= y3`` on the unit sphere: the nearest point of the cap, whose rim is at 45 degrees."""
    cone = hn.SecondOrderCone(torch.eye(3, dtype=F64)[:2], [0.0, 0.0], [0.0, 0.0, 1.0], 0.0)
    layer = NonlinearLayer(hn.Nonlinear(sphere, dim=3, lower=0.0, upper=0.0) & cone)
    raw = 2.0 * draw(60, 3, seed=30)
    found = layer.solve(raw)
    flat = torch.linalg.vector_norm(raw[:, :2], dim=-1, keepdim=True)
    rim = torch.cat([raw[:, :2] / flat, torch.ones_like(flat)], dim=-1) / real(2.0).sqrt()
    direct = raw / torch.linalg.vector_norm(raw, dim=-1, keepdim=True)
    expected = torch.where(flat <= raw[:, 2:], direct, rim)
    good = found.status == Status.OK
    assert good.double().mean() >= 0.95
    assert hn.check(layer.constraint, found.y[good], tolerance=1e-9).ok
    nearest = (found.y - expected).abs().amax(-1) <= 1e-7
    farther = torch.linalg.vector_norm(raw - found.y, dim=-1) >= torch.linalg.vector_norm(raw - expected, dim=-1) - 1e-9
    assert farther[good].all()
    assert nearest[good].double().mean() >= 0.9  # far below the cap a KKT point may be another one
    leaf = raw[good][:5].clone().requires_grad_()
    assert torch.autograd.gradcheck(layer, (leaf,))


def test_a_refused_step_goes_on_along_the_plain_projection():
    """Energy of an orbit in a box: here no length of the step with the Hessian lowers the merit."""
    orbit = lambda y, x: y[..., 2:].square().sum(-1, keepdim=True) / 2 - 1 / y[..., :2].square().sum(-1, True).sqrt()
    layer = NonlinearLayer(hn.Nonlinear(orbit, dim=4, lower=-0.5, upper=-0.5) & hn.Box([-2.0] * 4, [2.0] * 4))
    raw = real([[-0.1632, -0.6829, 0.1206, -0.0427], [0.5, -0.3, 0.2, 0.4]])
    assert (layer.solve(raw).status == Status.OK).all()
