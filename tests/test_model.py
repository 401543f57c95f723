"""HardNet as an ordinary module: choice of method, warm start, copies, compile, export, distributed training."""

import copy
import pickle

import pytest
import torch

import hardnet as hn
from tests.cases import bound_of, matrix_of
from tests.draws import draw

D = torch.float64


def network(inputs=4, outputs=4):
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(inputs, 16), torch.nn.ReLU(), torch.nn.Linear(16, outputs)).double()


def moving():
    return hn.Affine(matrix_of, upper=bound_of)


def test_outputs_satisfy_and_train():
    model, x = hn.HardNet(network(), moving()), draw(64, 4)
    target = draw(64, 4, seed=9)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        assert hn.check(model.constraint, model(x), x).ok
    assert losses[-1] < losses[0]


def test_warm_start_is_asked_for_at_the_call():
    model, x = hn.HardNet(network(), moving()), draw(8, 4)
    assert torch.equal(model(x, enforce=False), model.net(x))
    assert not torch.equal(model(x), model.net(x))
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(x), model(x)), "no attribute can leave enforcement switched off"


def test_the_raw_output_comes_with_y_where_it_is_asked_for():
    model, x = hn.HardNet(network(), moving()), draw(8, 4)
    y, raw = model(x, return_raw=True)
    assert torch.equal(y, model(x))
    assert torch.equal(raw, model.net(x))
    same, raw = model(x, enforce=False, return_raw=True)
    assert same is raw


def test_a_model_prints_what_it_enforces():
    limits = hn.Box(torch.zeros(4), torch.ones(4), name="limits")
    text = str(hn.HardNet(network(), limits & moving(), "projection", on_infeasible="nan"))
    assert "limits & Affine on 4 outputs, method 'projection', guarantee exact" in text
    assert "on_infeasible='nan'" in text
    assert "name='limits', lower=(4,), upper=(4,)" in text


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_enforce(copier):
    model, x = hn.HardNet(network(), moving()), draw(8, 4)
    assert torch.equal(copier(model)(x), model(x))


def test_state_dict_round_trip():
    constraint = hn.Affine(draw(2, 4, seed=2), upper=0.1)
    model, other = hn.HardNet(network(), constraint), hn.HardNet(network(), hn.Affine(draw(2, 4, seed=2), upper=0.1))
    x = draw(8, 4)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x)), "the factor is rebuilt from the loaded constants"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moves_keep_enforcing(dtype):
    model = hn.HardNet(network(), hn.Affine(draw(2, 4, seed=2), lower=-0.1, upper=0.1)).to(dtype)
    y = model(draw(32, 4).to(dtype))
    assert y.dtype == dtype
    certificate = hn.check(model.constraint, y)
    assert certificate.max_violation < 40 * torch.finfo(dtype).eps


def test_a_factor_is_computed_once_and_follows_moves():
    model = hn.HardNet(network(), hn.Affine(draw(2, 4, seed=2), upper=0.1), "aff")
    factor = model.layer.factor
    assert factor is not None
    assert not any("factor" in name for name in model.state_dict())
    model(draw(3, 4))
    assert model.layer.factor is factor
    assert model.float().layer.factor.dtype == torch.float32


def test_a_learned_matrix_is_never_cached():
    A = torch.nn.Parameter(draw(2, 4, seed=2))
    model = hn.HardNet(network(), hn.Affine(A, upper=0.1), "aff")
    assert model.layer.factor is None
    model(draw(3, 4)).square().sum().backward()
    assert A.grad is not None


def test_compiled_model_enforces():
    model, x = hn.HardNet(network(), moving()), draw(8, 4)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(x), model(x), rtol=0, atol=1e-12)


def test_exported_model_enforces():
    model, x = hn.HardNet(network(), hn.Affine(draw(2, 4, seed=2), upper=0.1)), draw(8, 4)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (x,), dynamic_shapes={"x": {0: batch}})
    other = draw(5, 4, seed=4)
    assert torch.allclose(program.module()(other), model(other), rtol=0, atol=1e-12)


def test_vmap_over_the_model():
    model, x = hn.HardNet(network(), moving()), draw(8, 4)
    assert torch.allclose(torch.vmap(model)(x), model(x), rtol=0, atol=1e-12)


def test_any_leading_dimensions():
    model, x = hn.HardNet(network(), moving()), draw(2, 3, 4)
    assert torch.allclose(model(x)[1], model(x[1]), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("constraint", "method"),
    [
        (hn.Affine(draw(1, 4), lower=0.0), "aff"),
        (hn.Affine(torch.eye(4)[:2], lower=0.0, upper=1.0), "aff"),
        (hn.Equality(draw(2, 4), 1.0), "aff"),
        (hn.Equality(draw(1, 4).repeat(2, 1), 1.0), "projection"),
        (hn.Affine(draw(2, 4), lower=0.0), "projection"),
        (hn.Affine(lambda x: x, lower=0.0), "projection"),
        (hn.Affine(draw(5, 4), lower=0.0), "projection"),
        (hn.Affine(draw(1, 4).repeat(2, 1), lower=0.0), "projection"),
        (hn.Affine(draw(2, 4), lower=0.0) & hn.Box(0.0), "projection"),
        (hn.Affine(lambda x: x, lower=0.0) & hn.Box(0.0), "projection"),
        (hn.Box(0.0, 1.0), "cvx"),
        (hn.Ball(torch.zeros(2), 1.0) & hn.Box(0.0), "cvx"),
        (hn.sets.AffineOnRegion(draw(3, 2)), "police"),
    ],
)
def test_auto_follows_the_written_rule(constraint, method):
    explanation = hn.explain(constraint)
    assert explanation.method == method
    assert str(explanation).startswith(f"-> {method}")
    assert set(explanation.reasons) == set(hn.layers.LAYERS)


REFUSALS = [
    (lambda: hn.HardNet("net", moving()), hn.errors.DTypeError, "net: expected an nn.Module"),
    (lambda: hn.HardNet(network(), draw(2, 4)), hn.errors.DTypeError, "constraint: expected a set"),
    (lambda: hn.HardNet(network(), moving(), "magic"), hn.errors.UnsupportedSetError, "'auto' or one of aff"),
    (lambda: hn.HardNet(network(), hn.Affine(draw(5, 4), lower=0.0), "aff"), ValueError, "use method='projection'"),
    (
        lambda: hn.HardNet(network(), hn.Affine(draw(2, 3), lower=0.0))(draw(5, 4)),
        hn.errors.ShapeError,
        "3 outputs per",
    ),
    (lambda: hn.HardNet(torch.nn.LSTM(4, 4).double(), moving())(draw(5, 4)), hn.errors.DTypeError, "net: expected a t"),
    (lambda: hn.explain(3), hn.errors.DTypeError, "constraint: expected a set, got int"),
    (lambda: hn.Box(0.0) & 3, hn.errors.DTypeError, "expected a set after &, got int"),
    (lambda: hn.Box(1.0, 0.0), hn.errors.BoundsError, "lower > upper by up to 1"),
    (lambda: hn.Box(draw(3), torch.inf * draw(4).abs()), hn.errors.ShapeError, r"upper: expected shape \(3,\)"),
    (lambda: hn.Affine(draw(2, 4), lower=1.0, upper=draw(2) - 9), hn.errors.BoundsError, "lower <= upper in every row"),
    (lambda: hn.Affine(draw(2, 4), lower=draw(3)), hn.errors.ShapeError, r"lower: expected shape \(2,\)"),
    (lambda: hn.HardNet(network(), moving(), hn.layers.HardNetAff(moving())), ValueError, "built on this constraint"),
]


@pytest.mark.parametrize(("build", "error", "message"), REFUSALS)
def test_refusals(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_rank_deficient_constant_is_refused_at_construction():
    with pytest.raises(hn.errors.RankError, match="dependent"):
        hn.HardNet(network(), hn.Affine(draw(1, 4).repeat(2, 1), lower=0.0), "aff")


@pytest.mark.parametrize("second", [None, 0, 1, torch.tensor(0.0), torch.zeros(5, 4), "no"], ids=str)
@pytest.mark.parametrize("flag", ["enforce", "return_raw"])
def test_what_is_no_flag_never_decides_whether_to_enforce(flag, second):
    model, x = hn.HardNet(network(), moving()), draw(5, 4)
    with pytest.raises(hn.errors.OptionError, match=f"{flag}: expected True or False, got {type(second).__name__}"):
        model(x, **{flag: second})
    with pytest.raises(hn.errors.OptionError, match="several inputs takes them as one x"):
        model(x, second)


@pytest.mark.parametrize(
    ("raw", "got"),
    [
        ([[1.0, 2.0, 3.0, 4.0]], "a tensor, got list"),
        (draw(2, 4).numpy(), "a tensor, got ndarray"),
        (torch.ones(2, 4, dtype=torch.long), "a floating-point tensor, got torch.int64"),
        (torch.ones(2, 4, dtype=torch.cfloat), "a floating-point tensor, got torch.complex64"),
    ],
)
@pytest.mark.parametrize("constraint", [hn.Box(0.0, 1.0), hn.Affine(draw(2, 4), upper=1.0), hn.Simplex(4)], ids=repr)
def test_a_layer_names_a_raw_output_that_is_none(constraint, raw, got):
    with pytest.raises(hn.errors.DTypeError, match=f"raw: expected {got}"):
        hn.HardNet(network(), constraint).layer(raw)
