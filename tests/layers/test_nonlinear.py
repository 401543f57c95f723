"""The nonlinear layer: known answers, what fails and how it says so, mates, dtypes, files."""

import warnings

import pytest
import torch

import hardnet as hn
from hardnet.errors import (
    ConvergenceError,
    DTypeError,
    InfeasibleError,
    NonFiniteError,
    NotConvergedWarning,
    OptionError,
    ShapeError,
    UnsupportedSetError,
)
from hardnet.layers import NonlinearLayer
from hardnet.solvers.nonlinear_status import NonlinearStatus as Status
from tests.nonlinear_problems import F64, FEED, KNOWN, cusp, ellipse, equality, pooling, pooling_limits, real, sphere

CIRCLE = hn.Nonlinear(sphere, dim=2, lower=0.0, upper=0.0)


def draw(*shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


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
    raw = draw(200, 3, scale=1.2)
    y = NonlinearLayer(hn.Nonlinear(sphere, dim=3, lower=0.0))(raw)
    inside = torch.linalg.vector_norm(raw, dim=-1, keepdim=True) < 1
    torch.testing.assert_close(y, torch.where(inside, raw / torch.linalg.vector_norm(raw, dim=-1, keepdim=True), raw))
    assert torch.equal(y[~inside.squeeze(-1)], raw[~inside.squeeze(-1)])


def test_pooling_has_a_formula():
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(100, 4, generator=generator, dtype=F64) + 0.5
    x[:, 1] += x[:, 0]
    raw = draw(100, 5, seed=3, scale=2.0)
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
    raw = draw(300, 3, seed=5, scale=2.0)
    layer = NonlinearLayer(
        hn.Nonlinear(lambda y, x: (y / axes).square().sum(-1, keepdim=True), dim=3, lower=1.0, upper=1.0)
    )
    found = layer.solve(raw)
    assert (found.status == Status.OK).all()
    residual = found.y - raw + 2 * found.dual * found.y / axes.square()
    assert residual.abs().max() < 1e-9
    assert ((found.y / axes).square().sum(-1) - 1).abs().max() < 1e-12


def test_what_looks_affine_is_projected_and_verified():
    raw = draw(20, 2, seed=1, scale=3.0)
    rows = hn.Nonlinear(lambda y, x: y.sum(-1, keepdim=True), dim=2, lower=1.0, upper=1.0)
    y = NonlinearLayer(rows)(raw)
    torch.testing.assert_close(
        y, hn.functional.project_affine(raw, torch.ones(1, 2, dtype=F64), real([1.0]), real([1.0]))
    )
    # relu looks affine around (5, 4), but its answer there, (3, 0), is not on that piece
    kinked = NonlinearLayer(hn.Nonlinear(lambda y, x: y.relu().sum(-1, keepdim=True), dim=2, lower=1.0, upper=1.0))
    assert hn.check(kinked.constraint, kinked(real([[5.0, 4.5], [3.0, 2.5]]))).ok


@pytest.mark.parametrize("point", [[[3.0, 4.0]], [[0.0, 0.0]], [[1.1, 0.01]]])
def test_an_empty_set_is_refused_with_the_least_violation(point):
    both = hn.Nonlinear(lambda y, x: torch.cat([sphere(y, x), y[..., :1] - 2], dim=-1), dim=2, lower=0.0, upper=0.0)
    layer = NonlinearLayer(both)
    found = layer.solve(real(point))
    assert found.status.item() == Status.INFEASIBLE_LOCAL
    # the least squares point: 4 y1 (y1^2 - 1) + 2 (y1 - 2) = 0, y2 = 0
    torch.testing.assert_close(found.y, real([[1.16537, 0.0]]), rtol=0, atol=1e-3)
    with pytest.raises(InfeasibleError, match="in sample 0"):
        layer(real(point))


def test_rows_beside_an_affine_row_that_excludes_them():
    layer = NonlinearLayer(CIRCLE & hn.Equality(real([[1.0, 0.0]]), 2.0))
    assert layer.solve(real([[3.0, 4.0]])).status.item() == Status.INFEASIBLE_LOCAL
    with pytest.raises(InfeasibleError):
        layer(real([[3.0, 4.0]]))


def test_degenerate_points_are_reported_with_finite_gradients():
    raw = real([[0.0, 0.0], [3.0, 4.0]]).requires_grad_()
    layer = NonlinearLayer(CIRCLE)
    assert layer.solve(raw).status.tolist() == [Status.DEGENERATE, Status.OK]
    with pytest.warns(NotConvergedWarning, match="1 of 2 samples"):
        y = layer(raw)
    y.sum().backward()
    assert raw.grad.isfinite().all()
    assert hn.check(CIRCLE, y).ok
    torch.testing.assert_close(raw.grad[1], real([0.032, -0.024]))


def test_a_cusp_is_never_ok():
    layer = NonlinearLayer(hn.Nonlinear(cusp, dim=2, lower=0.0, upper=0.0))
    found = layer.solve(real([[-1.0, 0.0], [2.0, 1.0]]))
    assert found.status[0] in (Status.DEGENERATE, Status.NOT_CONVERGED, Status.FEASIBLE_ONLY)
    assert found.status[1] == Status.OK
    torch.testing.assert_close(found.y[0], real([0.0, 0.0]), rtol=0, atol=1e-2)


def nothing(y, x):
    return y.square().sum(-1, keepdim=True) + x


def test_policies_touch_the_failed_samples_alone():
    constraint = hn.Nonlinear(nothing, dim=2, lower=0.0, upper=0.0)  # empty for x > 0
    x, raw = real([[-1.0], [1.0], [-4.0]]), real([[3.0, 4.0], [1.0, 2.0], [1.0, 1.0]])
    y = NonlinearLayer(constraint, on_failure="nan")(raw, x)
    assert y[1].isnan().all()
    torch.testing.assert_close(y[0], real([0.6, 0.8]))
    alone = NonlinearLayer(constraint)(raw[[0, 2]], x[[0, 2]])
    for policy, expected in (("raw", raw[1]), ("best", real([0.0, 0.0]))):
        other = NonlinearLayer(constraint, on_failure=policy)(raw, x)
        assert torch.equal(other[[0, 2]], y[[0, 2]])
        torch.testing.assert_close(other[1], expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(alone, y[[0, 2]])
    with pytest.raises((InfeasibleError, ConvergenceError), match="in sample 1") as error:
        NonlinearLayer(constraint)(raw, x)
    assert error.value.samples == [1]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_numbers_are_those_of_their_sample(bad):
    constraint = hn.Nonlinear(nothing, dim=2, lower=0.0, upper=0.0)
    x, raw = -torch.ones(3, 1, dtype=F64), draw(3, 2)
    clean = NonlinearLayer(constraint)(raw, x)
    for number in (x, raw):
        spoilt = number.clone()
        spoilt[1, 0] = bad
        pair = (raw, spoilt) if number is x else (spoilt, x)
        y = NonlinearLayer(constraint, on_failure="nan")(*pair)
        assert y[1].isnan().all()
        assert torch.equal(y[[0, 2]], clean[[0, 2]])
        with pytest.raises(NonFiniteError, match="in sample 1"):
            NonlinearLayer(constraint)(*pair)


@pytest.mark.parametrize("mode", ["nearest", "retract"])
def test_a_point_of_the_set_comes_back_bit_for_bit(mode):
    layer = NonlinearLayer(hn.Nonlinear(ellipse, dim=2, lower=0.0, upper=0.0), mode=mode)
    y = layer(draw(50, 2, scale=3.0))
    again = layer(y)
    assert torch.equal(again, y)


def test_a_warm_start_gives_the_same_point_in_fewer_steps():
    layer, raw = NonlinearLayer(hn.Nonlinear(ellipse, dim=2, lower=0.0, upper=0.0)), draw(50, 2, seed=4, scale=2.0)
    cold = layer.solve(raw)
    warm = layer.solve(raw + 1e-6, start=cold.y)
    assert warm.iterations.sum() < cold.iterations.sum()
    torch.testing.assert_close(warm.y, cold.y, rtol=0, atol=1e-4)
    fixed = NonlinearLayer(layer.constraint, start=[1.0, 0.5])
    torch.testing.assert_close(fixed(raw[:1] * 0 + real([2.0, 2.0])), real([[1.723556779008, 0.818491297010]]))


class Learned(torch.nn.Module):
    """A curved row with weights of its own, in float32."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(3, 1)

    def forward(self, y, x):
        return self.inner(torch.tanh(y)) + y.square().sum(-1, keepdim=True)


def test_float32_models_are_solved_in_float64_and_hold_after_rounding(tmp_path):
    constraint = hn.Nonlinear(Learned(), dim=3, upper=1.0, name="learned") & hn.Box(-torch.ones(3), 1.0)
    torch.manual_seed(1)
    model = hn.HardNet(torch.nn.Linear(4, 3), constraint)
    x = 5 * torch.randn(64, 4)
    y = model(x)
    assert model.method == "nonlinear"
    assert y.dtype == torch.float32
    certificate = hn.check(constraint, y, x)
    assert certificate.ok
    assert certificate.exact_box.all()
    y.sum().backward()
    assert constraint.parts[0].g.inner.weight.grad.abs().sum() > 0
    hn.save(model, tmp_path / "model", example=x)
    fresh = hn.Nonlinear(Learned(), dim=3, upper=1.0, name="learned") & hn.Box(-torch.ones(3), 1.0)
    assert torch.equal(hn.load(tmp_path / "model", torch.nn.Linear(4, 3), fresh)(x), y)


def test_a_function_that_cannot_follow_float64_says_what_would_work():
    weight = torch.ones(1, 3)
    layer = NonlinearLayer(hn.Nonlinear(lambda y, x: y @ weight.mT, dim=3, upper=1.0))
    with pytest.raises(DTypeError, match=r"A\.to\(y\)"):
        layer(torch.zeros(2, 3))


def test_functions_that_are_no_rows_are_refused():
    raw = draw(4, 3)
    with pytest.raises(ShapeError, match="g: expected"):
        NonlinearLayer(hn.Nonlinear(lambda y, x: y.sum(-1), dim=3, upper=1.0))(raw)
    with pytest.raises(DTypeError, match="can be differentiated"):
        NonlinearLayer(hn.Nonlinear(lambda y, x: y.detach(), dim=3, upper=1.0))(raw)
    with pytest.raises(DTypeError, match="returns a tensor"):
        NonlinearLayer(hn.Nonlinear(lambda y, x: 1.0, dim=3, upper=1.0))(raw)
    with pytest.raises(ShapeError, match="jacobian: expected shape"):
        NonlinearLayer(hn.Nonlinear(sphere, dim=3, upper=0.0, jacobian=lambda y, x: 2 * y))(raw)


def test_options_are_checked():
    with pytest.raises(OptionError, match="gradient: expected 'auto' or 'projector' for a retraction"):
        NonlinearLayer(CIRCLE, mode="retract", gradient="exact")
    with pytest.raises(ShapeError, match="start: expected 2 numbers"):
        NonlinearLayer(CIRCLE, start=[1.0])
    matrix = hn.LMI(torch.eye(2, dtype=F64), torch.zeros(2, 2, 2, dtype=F64))
    with pytest.raises(
        UnsupportedSetError, match="LMI has neither affine nor smooth rows; write 'all principal minors"
    ):
        NonlinearLayer(CIRCLE & matrix)
    with pytest.raises(UnsupportedSetError, match="Relaxed has neither affine nor smooth rows; put the slack"):
        NonlinearLayer(CIRCLE & hn.Relaxed(hn.Box([0.0, 0.0], 1.0)))
    layer = NonlinearLayer(CIRCLE)
    assert (layer.mode(200), layer.mode(201)) == ("nearest", "retract")
    with pytest.raises(UnsupportedSetError, match="no transform around nonlinear rows"):
        torch.func.vmap(layer)(draw(3, 2))


def test_auto_takes_it_and_explain_says_so():
    assert hn.explain(CIRCLE).method == "nonlinear"
    assert hn.HardNet(torch.nn.Linear(2, 2), hn.sets.Smooth(2, equality=sphere)).method == "nonlinear"


def test_a_given_jacobian_is_used_and_agrees():
    calls = []

    def slope(y, x):
        calls.append(len(y))
        return (2 * y / real([9.0, 1.0])).unsqueeze(-2)

    raw = draw(30, 2, seed=7, scale=2.0).requires_grad_()
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


def test_no_warning_where_all_is_well():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NonlinearLayer(CIRCLE)(real([[3.0, 4.0]]))


class Looks(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts operations that hand a value to the host, which a CUDA graph cannot capture."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function._schema.name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal"):
            self.names.append(function._schema.name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", ["nearest", "retract"])
@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_a_fixed_number_of_passes_looks_at_no_value(known, mode):
    layer = NonlinearLayer(equality(known), mode=mode, iterations=16, on_failure="nan")
    plain = NonlinearLayer(equality(known), mode=mode)
    raw = known.raw.clone().requires_grad_()
    y = layer(raw, known.x)  # the first call asks the set once whether its constants are equalities
    expected = plain(raw, known.x)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-8)  # both stop where the KKT residual is below 1e-8
    weight = draw(*known.raw.shape, seed=9)
    own, other = (torch.autograd.grad((point * weight).sum(), raw)[0] for point in (y, expected))
    torch.testing.assert_close(own, other, rtol=0, atol=1e-6)
    with Looks() as looks:
        project = lambda point: layer.solve(point, known.x)
        found = project(known.raw)
    assert not looks.names
    assert (found.status == Status.OK).all()


def test_a_fixed_number_of_passes_beside_affine_rows_and_bad_samples():
    constraint = hn.Nonlinear(sphere, dim=3, upper=0.0) & hn.Box(real([0.1, -1.0, -1.0]), 1.0)
    raw = draw(40, 3, seed=12, scale=2.0)
    raw[3, 1], raw[5] = torch.nan, real([0.2, 0.1, 0.3])
    layer = NonlinearLayer(constraint, iterations=20, on_failure="nan")
    found, plain = layer.solve(raw), NonlinearLayer(constraint).solve(raw)
    assert found.status[3] == Status.INVALID
    assert torch.equal(found.y[5], raw[5])
    good = torch.arange(40) != 3
    assert (found.status[good] == Status.OK).all()
    torch.testing.assert_close(found.y[good], plain.y[good], rtol=0, atol=1e-8)
    leaf = raw.clone().requires_grad_()
    layer(leaf)[good].sum().backward()
    assert leaf.grad.isfinite().all()
    few = NonlinearLayer(CIRCLE, mode="retract", iterations=1)
    with pytest.raises(ConvergenceError):
        few(real([[30.0, 40.0]]))


def test_balls_and_quadratics_stand_beside_nonlinear_rows():
    """A circle within a ball round x and half of a disc: the same as the same rows written into g."""
    ball = hn.Ball(lambda x: x, 0.8)
    disc = hn.Quadratic(2 * torch.eye(2, dtype=F64), [0.0, -1.0], 0.0)  # |y|^2 <= y2
    x, raw = 0.2 * draw(30, 2, seed=20) + real([0.5, 0.9]), draw(30, 2, seed=21, scale=2.0)
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
    raw = draw(60, 3, seed=30, scale=2.0)
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


@pytest.mark.parametrize("options", [{}, {"mode": "retract"}, {"iterations": 16}], ids=str)
def test_the_compiler_stands_aside_and_export_is_refused(options):
    """A break of the graph around the layer: the answers, gradients and errors of eager code; one graph is refused."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = hn.HardNet(torch.nn.Linear(3, 2, dtype=F64), CIRCLE, **options)
    x = draw(50, 3, seed=40)
    y = model(x)
    compiled = torch.compile(model, backend="eager")
    own = compiled(x)
    assert torch.equal(own, y)
    grads = [torch.autograd.grad(point[:, 0].sum(), list(model.parameters())) for point in (y, own)]
    for one, two in zip(*grads, strict=True):
        assert torch.equal(one, two)
    found = torch.compile(lambda point: model.layer.solve(point).status, backend="eager")(draw(5, 2, seed=41))
    assert found.tolist() == [Status.OK] * 5
    with pytest.raises(NonFiniteError, match="in sample 1"):
        compiled(torch.where(torch.arange(50).unsqueeze(-1) == 1, torch.nan, x))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(model, backend="eager", fullgraph=True)(x)
    with pytest.raises(
        UnsupportedSetError, match=r"torch.export: expected a fixed graph, .* mode='retract', iterations=8"
    ):
        torch.export.export(model, (x,))


class Certified(torch.nn.Module):
    """A model with what its layer knows of each answer."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        found = self.model.layer.solve(self.model.net(x), x)
        return found.y, found.status, found.violation


def test_a_retraction_of_fixed_length_is_exported_with_its_certificate():
    """Two rows of exportable operations, any batch: the answers of eager code, and the status of each sample."""
    both = lambda y, x: torch.stack([y.square().sum(-1) - 1, y[..., 0] * y[..., 1] - 0.1 * x[..., 0]], dim=-1)
    rows = hn.Nonlinear(both, dim=3, lower=0.0, upper=0.0)
    torch.manual_seed(0)
    model = Certified(hn.HardNet(torch.nn.Linear(2, 3, dtype=F64), rows, mode="retract", iterations=6))
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(model, (draw(7, 2, seed=50),), dynamic_shapes=({0: batch},)).module()
    x = draw(40, 2, seed=51)
    x[3, 0] = torch.nan
    expected, (y, status, violation) = model(x), program(x)
    assert torch.equal(status, expected[1])
    assert status[3] == Status.INVALID
    good = status == Status.OK
    assert good.double().mean() >= 0.8
    assert (violation[good] <= 1e-10).all()
    torch.testing.assert_close(y[good], expected[0][good], rtol=0, atol=1e-12)
    assert hn.check(rows, y[good], x[good], tolerance=1e-9).ok


def test_the_function_under_the_compiler():
    torch._dynamo.reset()
    project = lambda point: hn.functional.project_nonlinear(2 * point, sphere, lower=0.0, upper=0.0) + 1
    raw = draw(6, 3, seed=42)
    assert torch.equal(torch.compile(project, backend="eager")(raw), project(raw))
