"""The metric of the projection layer: the nearest point in W, wherever W comes from, saved with the model."""

import copy

import pytest
import torch

import hardnet as hn
from hardnet.testing import check_layer
from tests.cases import moving_rows
from tests.draws import draw

D = torch.float64
N = 4


def diagonal_of(x):
    return 0.5 + x[..., :N].square()


def matrix_of(x):
    return torch.diag_embed(diagonal_of(x)) + 0.3 * x[..., :N, None] * x[..., None, :N]


def other_diagonal(x):
    return 1.5 + x[..., :N].square()


class Learned(torch.nn.Module):
    """A positive diagonal that is trained with the network."""

    def __init__(self):
        super().__init__()
        self.log = torch.nn.Parameter(0.3 * draw(N, seed=3))

    def forward(self, x):
        return self.log.exp().expand(*x.shape[:-1], N)


root = draw(N, N, seed=8)
METRICS = {
    "list": [1.0, 4.0, 0.25, 2.0],
    "tensor": torch.tensor([1.0, 4.0, 0.25, 2.0]),
    "matrix": root @ root.mT + torch.eye(N, dtype=D),
    "diagonal of x": diagonal_of,
    "matrix of x": matrix_of,
    "module": Learned(),
}


def at(metric, x):
    """W as a matrix for each sample."""
    W = metric(x) if callable(metric) else torch.as_tensor(metric, dtype=D).to(D)
    W = torch.diag_embed(W) if W.shape[-2:] != (N, N) or (callable(metric) and W.dim() == 2) else W
    return W.expand(len(x), N, N)


@pytest.mark.parametrize("samples", [6, N])
@pytest.mark.parametrize("kind", METRICS)
def test_no_point_of_the_set_is_nearer_in_the_metric(kind, samples):
    """Optimality: ``(v - y)'W(y - raw) >= 0`` for every v of the set; here for 30 of them."""
    x, raw = draw(samples, N, seed=1), 3 * draw(samples, N, seed=2)
    constraint = moving_rows() & hn.Box(-2.0, 2.0)
    layer = hn.layers.Projection(constraint, metric=METRICS[kind])
    y, W = layer(raw, x), at(METRICS[kind], x)
    assert hn.check(constraint, y, x).ok
    v = hn.layers.Projection(constraint)(3 * draw(30, samples, N, seed=3), x.expand(30, samples, N))
    slope = torch.einsum("kbi,bij,bj->kb", v - y, W, y - raw)
    assert (slope >= -1e-8 * (1 + raw.abs().amax())).all()


def test_identity_is_no_metric_at_all():
    x, raw = draw(6, N, seed=1), 3 * draw(6, N, seed=2)
    plain, weighted = (hn.layers.Projection(moving_rows(), metric=metric) for metric in (None, [1.0] * N))
    assert torch.allclose(plain(raw, x), weighted(raw, x), rtol=0, atol=1e-12)


def test_forecasts_are_reconciled_in_closed_form():
    """``y = raw - W^-1 A'(A W^-1 A')^-1 (A raw - b)``: an equality in a metric, as MinT writes it."""
    A, W, raw = draw(1, N, seed=4), METRICS["matrix"], draw(5, N, seed=5)
    y = hn.layers.Projection(hn.Equality(A, 1.0), metric=W)(raw)
    inverse = torch.linalg.inv(W)
    step = (raw @ A.mT - 1) @ torch.linalg.inv(A @ inverse @ A.mT) @ A @ inverse
    assert torch.allclose(y, raw - step, rtol=1e-10, atol=1e-10)


def test_the_contract_holds_with_a_metric_of_x():
    x, raw = draw(6, N, seed=1), 2 * draw(6, N, seed=2)
    check_layer(hn.layers.Projection(moving_rows(), metric=matrix_of), x, raw)


def test_a_learned_metric_is_trained_moved_and_copied():
    model = hn.HardNet(torch.nn.Linear(N, N).double(), moving_rows(), metric=Learned())
    x = 3 * draw(6, N, seed=1)
    (model(x) - 1).square().sum().backward()
    weights = dict(model.named_parameters())
    assert weights["layer.metric.function.log"].grad.abs().sum() > 0
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), model(x))
    assert model.float()(x.float()).dtype == torch.float32


def test_auto_takes_the_projection_for_a_metric():
    model = hn.HardNet(torch.nn.Identity(), hn.Box([0.0] * N, 1.0), metric=[1.0] * N)
    assert model.method == "projection"
    assert "metric=(1.0, 1.0, 1.0, 1.0)" in repr(model.layer)
    layer = hn.layers.Projection(hn.Box([0.0] * N, 1.0), metric=METRICS["matrix"])
    assert "metric=(4, 4)" in repr(layer)
    assert "metric=function of x" in repr(hn.layers.Projection(moving_rows(), metric=diagonal_of))


@pytest.mark.parametrize(
    "metric", [[1.0, 1.0], [1.0, 1.0, 0.0, 1.0], [[1.0] * N] * N, "near", [[1.0, 2.0]], [float("nan")] * N, []]
)
def test_what_is_no_metric_is_refused_at_construction(metric):
    with pytest.raises(hn.errors.HardNetError, match="metric"):
        hn.layers.Projection(hn.Box([0.0] * N, 1.0), metric=metric)


def test_a_metric_beside_rows_that_give_way_is_refused():
    with pytest.raises(hn.errors.OptionError, match="metric"):
        hn.layers.Projection(hn.Relaxed(hn.Box([0.0] * N, 1.0)), metric=[1.0] * N)


def test_a_function_that_gives_no_metric_is_an_error_or_nan_for_that_sample_alone():
    x, raw = draw(6, N, seed=1), 3 * draw(6, N, seed=2)
    bad = lambda x: torch.where(torch.arange(len(x)).unsqueeze(-1) == 2, -1.0, diagonal_of(x))
    with pytest.raises(hn.errors.OptionError, match=r"metric.*2"):
        hn.layers.Projection(moving_rows(), metric=bad)(raw, x)
    y = hn.layers.Projection(moving_rows(), metric=bad, on_invalid="nan")(raw, x)
    good = hn.layers.Projection(moving_rows(), metric=diagonal_of)(raw, x)
    assert y[2].isnan().all()
    mates = [0, 1, 3, 4, 5]
    assert torch.equal(y[mates], good[mates])
    with pytest.raises(hn.errors.ShapeError, match="metric"):
        hn.layers.Projection(moving_rows(), metric=lambda x: x[..., :2])(raw, x)


def model_with(metric):
    torch.manual_seed(0)
    return hn.HardNet(torch.nn.Linear(N, N).double(), moving_rows(), metric=metric)


@pytest.mark.parametrize("kind", METRICS)
def test_it_is_saved_with_the_model(kind, tmp_path):
    x = draw(6, N, seed=1)
    model = model_with(METRICS[kind])
    hn.save(model, tmp_path / "model", example=x)
    if callable(METRICS[kind]):
        with pytest.raises(hn.errors.FileError, match=r"'metric'.*HardNet"):
            hn.load(tmp_path / "model", torch.nn.Linear(N, N).double(), moving_rows())
        again = hn.load(tmp_path / "model", model_with(METRICS[kind]))
    else:
        again = hn.load(tmp_path / "model", torch.nn.Linear(N, N).double(), moving_rows())
    assert torch.equal(again(x), model(x))


def test_another_metric_is_refused(tmp_path):
    x = draw(6, N, seed=1)
    hn.save(model_with(diagonal_of), tmp_path / "code", example=x)
    with pytest.raises(hn.errors.FileError, match="metric is not the one saved"):
        hn.load(tmp_path / "code", model_with(other_diagonal))
    hn.save(model_with([1.0, 2.0, 3.0, 4.0]), tmp_path / "numbers", example=x)
    with pytest.raises(hn.errors.FileError, match="option 'metric'"):
        hn.load(tmp_path / "numbers", model_with([1.0, 2.0, 3.0, 5.0]))
    constant = hn.HardNet(torch.nn.Linear(N, N).double(), hn.Box([0.0] * N, 1.0), metric=diagonal_of)
    with pytest.raises(hn.errors.OptionError, match="example"):
        hn.save(constant, tmp_path / "none")


@pytest.mark.parametrize(
    ("W", "got"),
    [
        ([1.0, 0.0, 1.0, 1.0], "0 among them"),
        ([1.0, -2.0, 1.0, 1.0], "-2 among them"),
        (torch.eye(4) + torch.triu(torch.ones(4, 4)), r"a matrix with \|W - W'\| up to 1"),
        (torch.diag(torch.tensor([1.0, 1.0, -3.0, 1.0])), "a matrix with the eigenvalue -3"),
        (torch.ones(4, 2), r"Tensor of shape \(4, 2\)"),
    ],
)
def test_what_is_wrong_with_a_metric_is_said(W, got):
    with pytest.raises(hn.errors.OptionError, match=f"metric: expected positive numbers.*got {got}"):
        hn.HardNet(torch.nn.Linear(3, 4), hn.Affine(torch.ones(1, 4), upper=1.0), metric=W)
