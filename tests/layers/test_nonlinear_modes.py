"""The nonlinear layer in a fixed number of passes, under the compiler, exported, in float32 and from a file."""

import pytest
import torch

import hardnet as hn
from hardnet.errors import (
    ConvergenceError,
    NonFiniteError,
    UnsupportedSetError,
)
from hardnet.layers import NonlinearLayer
from hardnet.solvers.nonlinear.solve import NonlinearStatus as Status
from tests.draws import draw
from tests.nonlinear_problems import CIRCLE, F64, KNOWN, equality, real, sphere
from tests.waiting import NoWait


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


@pytest.mark.parametrize("mode", ["nearest", "retract"])
@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_a_fixed_number_of_passes_looks_at_no_value(known, mode):
    layer = NonlinearLayer(equality(known), mode=mode, iterations=16, on_unsolved="nan")
    plain = NonlinearLayer(equality(known), mode=mode)
    raw = known.raw.clone().requires_grad_()
    y = layer(raw, known.x)  # the first call asks the set once whether its constants are equalities
    expected = plain(raw, known.x)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-8)  # both stop where the KKT residual is below 1e-8
    weight = draw(*known.raw.shape, seed=9)
    own, other = (torch.autograd.grad((point * weight).sum(), raw)[0] for point in (y, expected))
    torch.testing.assert_close(own, other, rtol=0, atol=1e-6)
    with NoWait():
        found = layer.solve(known.raw, known.x)
    assert (found.status == Status.OK).all()


def test_a_fixed_number_of_passes_beside_affine_rows_and_bad_samples():
    constraint = hn.Nonlinear(sphere, dim=3, upper=0.0) & hn.Box(real([0.1, -1.0, -1.0]), 1.0)
    raw = 2.0 * draw(40, 3, seed=12)
    raw[3, 1], raw[5] = torch.nan, real([0.2, 0.1, 0.3])
    layer = NonlinearLayer(constraint, iterations=20, on_unsolved="nan", on_invalid="nan")
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
