"""Plans over a horizon: all limits at once, against the projection onto their rows written out one by one."""

import pytest
import torch

import hardnet as hn
from hardnet.layers import nearest as dispatch
from hardnet.testing import check_layer, check_set
from tests.draws import F64, draw, draw_uniform, tensor

T, C, SAMPLES = 9, 2, 30
N = T * C


def last_of(x):
    return 0.2 * torch.tanh(x[..., :C])


def earlier_of(x):
    return last_of(x) + 0.05 * torch.tanh(x[..., C:])


SETS = {
    "all": lambda: hn.Horizon(T, -1.0, 1.0, 0.4, 0.3, previous=last_of, channels=C, name="chunk"),
    "two values": lambda: hn.Horizon(T, -1.0, [1.0] * N, [0.4, 0.2], 0.3, previous=(earlier_of, last_of), channels=C),
    "free start": lambda: hn.Horizon(T, -1.0, 1.0, rate=0.4, acceleration=lambda x: 0.2 + x[..., :C].abs(), channels=C),
    "rate alone": lambda: hn.Horizon(T, rate=0.3, previous=[0.1, -0.1], channels=C),
    "acceleration alone": lambda: hn.Horizon(T, acceleration=0.1, upper=0.5, previous=0.0, channels=C),
}


def data():
    return 1.5 * draw(SAMPLES, N, seed=1), draw(SAMPLES, 2 * C, seed=2)


def written_out(kind, x):
    """Every limit as rows of its own, for one sample, from the words of the documentation."""
    own = SETS[kind]()
    numbers = own.numbers(x, torch.zeros(1, N, dtype=F64))
    eye = torch.eye(N, dtype=F64)
    rows, low, high = [], [], []
    for c in range(C):
        known = [part[..., c].reshape(()) for part in (numbers.earlier, numbers.last) if part is not None]
        for t in range(T):
            values = [(0 * eye[0], part) for part in [None, None, *known][-2:]]
            values += [(eye[s * C + c], 0.0) for s in range(T)]
            for limit, terms in ((numbers.rate, (1, -1)), (numbers.acceleration, (1, -2, 1))):
                parts = [values[t + 2 - lag] for lag in range(len(terms))]
                if limit is None or any(offset is None for _, offset in parts):
                    continue
                offset = sum(factor * part for factor, (_, part) in zip(terms, parts, strict=True))
                most = limit.expand(*limit.shape[:-1], C)[..., c].reshape(())
                rows.append(sum(factor * part for factor, (part, _) in zip(terms, parts, strict=True)))
                low.append(-most - offset)
                high.append(most - offset)
    box = [None if part is None else part.expand(1, N)[0] for part in numbers[:2]]
    stacked = hn.Affine(torch.stack(rows), lower=torch.stack(low), upper=torch.stack(high))
    return stacked if box == [None, None] else stacked & hn.Box(*box)


@pytest.mark.parametrize("kind", SETS)
def test_it_is_the_nearest_point_of_all_limits(kind):
    constraint, (raw, x) = SETS[kind](), data()
    y = hn.layers.Projection(constraint)(raw, x)
    certificate = hn.check(constraint, y, x)
    assert certificate.ok
    for sample in range(0, SAMPLES, 5):
        rows = written_out(kind, x[sample : sample + 1])
        expected = hn.layers.Projection(rows)(raw[sample])
        torch.testing.assert_close(y[sample], expected, rtol=0, atol=1e-12)
        assert len(hn.check(rows, y[sample]).names) == len(certificate.names)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", SETS)
def test_compiled_code_and_rows_agree(kind, weighted, monkeypatch):
    constraint, (raw, x) = SETS[kind](), data()
    weights = 0.2 + draw_uniform(N, seed=4) if weighted else None
    layer = hn.layers.Projection(constraint, metric=weights)
    x.requires_grad_()
    raw.requires_grad_()
    upstream, found = draw(SAMPLES, N, seed=5), []
    for kernel in (True, False):
        monkeypatch.setattr("hardnet.functional.bands.HAS_NUMBA", kernel)
        y = layer(raw, x)
        slopes = torch.autograd.grad(y, (raw, x), upstream, allow_unused=True)
        found.append((y, *(torch.zeros(()) if slope is None else slope for slope in slopes)))
    for fast, slow in zip(*found, strict=True):
        torch.testing.assert_close(fast, slow, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", SETS)
def test_the_contract(kind):
    raw, x = data()
    layer = hn.layers.Projection(SETS[kind]())
    check_layer(layer, x[:6], raw[:6])
    check_set(layer.constraint, raw[:6], x[:6])


def test_what_is_inside_keeps_its_bits():
    inside, x = 0.005 * draw(SAMPLES, N, seed=1), data()[1]
    for make in SETS.values():
        assert torch.equal(hn.layers.Projection(make())(inside, x), inside)


def test_long_plans_hold_every_limit():
    plan = hn.Horizon(200, -1.0, 1.0, 0.1, 0.02, previous=0.0, channels=3)
    y = hn.layers.Projection(plan)(draw(8, 600, seed=3))
    assert hn.check(plan, y).ok
    single = hn.layers.Projection(plan)(draw(8, 600, seed=3).float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), y, rtol=0, atol=1e-4)


def test_a_plan_that_cannot_be_is_refused_by_sample():
    plan = hn.Horizon(4, 0.0, 1.0, 0.1, previous=lambda x: x, name="chunk")
    x, raw = tensor([0.5], [3.0]), draw(2, 4)
    with pytest.raises(hn.errors.InfeasibleError, match="chunk") as caught:
        hn.layers.Projection(plan)(raw, x)
    assert caught.value.samples == [1]
    y = hn.layers.Projection(plan, on_infeasible="nan")(raw, x)
    assert y.isnan().any(-1).tolist() == [False, True]


BAD = [
    (lambda: hn.Horizon(0), hn.errors.ShapeError, "steps"),
    (lambda: hn.Horizon(3, channels=0), hn.errors.ShapeError, "channels"),
    (lambda: hn.Horizon(3, rate=-0.1), hn.errors.BoundsError, "rate"),
    (lambda: hn.Horizon(3, rate=[0.1, 0.2]), hn.errors.ShapeError, "rate"),
    (lambda: hn.Horizon(3, 1.0, 0.0), hn.errors.BoundsError, "lower"),
    (lambda: hn.Horizon(3, rate=0.1, previous=(0.0, None)), hn.errors.ShapeError, "previous"),
    (lambda: hn.layers.Projection(hn.Horizon(3, rate=0.1))(draw(2, 4)), hn.errors.ShapeError, "raw"),
]


@pytest.mark.parametrize(("build", "error", "text"), BAD)
def test_what_is_wrong_is_said(build, error, text):
    with pytest.raises(error, match=text):
        build()


def test_names_features_units_and_files(tmp_path):
    net = torch.nn.Linear(3, N)
    plan = hn.Horizon(T, -1.0, 1.0, 0.4, 0.3, previous=(0.1, [0.0, 0.2]), channels=C, name="chunk")
    model = hn.HardNet(net, plan)
    x = 3 * torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    y = model(x)
    certificate = hn.check(plan, y, x)
    assert certificate.ok
    assert certificate.names[0] == "chunk[0,0]"
    assert certificate.names[-1] == f"chunk.bend[{T - 1},{C - 1}]"
    assert hn.features(plan, x).isfinite().all()
    hn.save(model, tmp_path / "model")
    assert torch.equal(hn.load(tmp_path / "model", torch.nn.Linear(3, N))(x), y)
    assert hn.explain(plan).method == "projection"
    mean, std = draw(N, seed=11), 0.5 + draw_uniform(N, seed=12)
    z = hn.layers.Projection(hn.scaled(plan, mean, std))(draw(5, N))
    assert hn.check(plan, mean + std * z, tolerance=1e-12).ok


def test_a_sample_that_compiled_code_leaves_is_solved_by_its_rows(monkeypatch):
    raw, x = data()
    layer = hn.layers.Projection(SETS["all"](), metric=0.5 + draw_uniform(N, seed=6))
    expected, by_bands = layer(raw, x), dispatch.project_bands

    def left(*arguments):
        y, solved = by_bands(*arguments)
        solved = solved & (torch.arange(SAMPLES) % 3 > 0).unsqueeze(-1)
        return y + torch.where(solved, 0.0, 9.0).unsqueeze(-1), solved

    monkeypatch.setattr(dispatch, "project_bands", left)
    torch.testing.assert_close(layer(raw.requires_grad_(), x), expected, rtol=0, atol=1e-12)


def test_so_is_one_sample_without_a_batch(monkeypatch):
    raw, x = data()
    layer = hn.layers.Projection(SETS["all"]())
    expected = layer(raw[0], x[0])
    unsolved = lambda raw, *_: (raw, torch.zeros(raw.shape[:-1], dtype=torch.bool))
    monkeypatch.setattr(dispatch, "project_bands", unsolved)
    torch.testing.assert_close(layer(raw[0], x[0]), expected, rtol=0, atol=1e-12)
