"""``metric="entropy"``: sums, gradients of any size against 80 digits, and what is refused."""

import mpmath as mp
import pytest
import torch

import hardnet as hn
from hardnet.testing import check_layer
from tests.draws import F64, draw, draw_uniform, tensor

ORDER = 4


def logits(scale, count=64, order=ORDER, dtype=F64):
    generator = torch.Generator().manual_seed(3)
    return (scale * torch.randn(count, order * order, generator=generator)).to(dtype)


def layer_of(constraint, **options):
    return hn.layers.Projection(constraint, metric="entropy", **options)


def shares(x):
    return torch.softmax(x[..., :3], -1)


def off(y, order=ORDER):
    m = y.double().unflatten(-1, (order, order))
    return max((m.sum(-1) - 1).abs().max().item(), (m.sum(-2) - 1).abs().max().item())


@pytest.mark.parametrize("order", [1, 2, 4, 7])
@pytest.mark.parametrize("scale", [1, 10, 40, 300])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 2e-6), (F64, 1e-14), (torch.bfloat16, 3e-2)])
def test_the_sums_hold_at_every_scale(scale, order, dtype, most):
    y = layer_of(hn.DoublyStochastic(order))(logits(scale, 256, order, dtype))
    assert y.dtype == dtype
    assert bool((y >= 0).all())
    assert off(y, order) <= most


def exact(raw, b, gradient):
    """Y and the gradient of raw for one matrix, with 80 digits: Newton's method on the dual from a float64 answer."""
    n = ORDER * ORDER
    A = mp.matrix([[int(j // ORDER == i) for j in range(n)] for i in range(ORDER)])
    A = mp.matrix(A.tolist() + [[int(j % ORDER == i) for j in range(n)] for i in range(ORDER - 1)])
    y = layer_of(hn.Transport(b[:ORDER], b[ORDER:])).solve(raw)
    score = [mp.mpf(v) for v in raw.tolist()]
    dual = mp.matrix([mp.mpf(v) for v in y.dual.tolist()[:-1]])
    for _ in range(40):
        pull = A.T * dual
        point = [mp.exp(score[j] + pull[j]) for j in range(n)]
        left = mp.matrix([mp.mpf(b[i]) - mp.fsum(A[i, j] * point[j] for j in range(n)) for i in range(A.rows)])
        H = A * mp.diag(point) * A.T
        step = mp.lu_solve(H, left)
        dual += step
        if max(abs(v) for v in step) < mp.mpf(10) ** -50:
            break
    w = mp.lu_solve(H, A * mp.matrix([point[j] * mp.mpf(gradient[j]) for j in range(n)]))
    pull = A.T * w
    return point, [point[j] * (mp.mpf(gradient[j]) - pull[j]) for j in range(n)]


@pytest.mark.parametrize("scale", [1, 10, 40])
@pytest.mark.parametrize("kernel", [True, False])
def test_small_outputs_and_gradients_have_their_digits(scale, kernel, monkeypatch):
    monkeypatch.setattr("hardnet.functional.entropic.HAS_NUMBA", kernel)
    with mp.workdps(80):
        raw = logits(scale, 6).requires_grad_()
        y = layer_of(hn.DoublyStochastic(ORDER))(raw)
        for upstream in (draw(6, ORDER**2, seed=9), torch.eye(ORDER**2, dtype=F64)[:6]):
            (gradient,) = torch.autograd.grad(y, raw, upstream, retain_graph=True)
            for sample in range(6):
                point, slope = exact(raw[sample].detach(), [1.0] * (2 * ORDER), upstream[sample].tolist())
                for j in range(ORDER**2):
                    assert abs(mp.mpf(y[sample, j].item()) / point[j] - 1) < 1e-12
                    if abs(slope[j]) > mp.mpf(10) ** -30:
                        assert abs(mp.mpf(gradient[sample, j].item()) / slope[j] - 1) < 1e-3


@pytest.mark.parametrize("kernel", [True, False])
def test_it_is_the_limit_of_sinkhorn(kernel, monkeypatch):
    monkeypatch.setattr("hardnet.functional.entropic.HAS_NUMBA", kernel)
    raw, x = draw(20, 12, seed=1), draw(20, 3, seed=2)
    columns = tensor(0.1, 0.2, 0.3, 0.4)
    y = layer_of(hn.Transport(shares, columns))(raw, x).unflatten(-1, (3, 4))
    m = raw.unflatten(-1, (3, 4)).exp()
    for _ in range(2000):
        m = m * (shares(x) / m.sum(-1)).unsqueeze(-1)
        m = m * (columns / m.sum(-2)).unsqueeze(-2)
    torch.testing.assert_close(y, m, rtol=1e-12, atol=0)


def test_a_simplex_is_a_softmax():
    raw, total = 10 * draw(9, 5, seed=1), draw_uniform(9, seed=2)
    y = layer_of(hn.Simplex(5, lambda x: x))(raw, total)
    torch.testing.assert_close(y, total.unsqueeze(-1) * raw.softmax(-1), rtol=1e-13, atol=0)


@pytest.mark.parametrize("kernel", [True, False])
def test_any_sums_of_outputs_above_zero(kernel, monkeypatch):
    """Rows with coefficients of any sign, some implied by others: the conditions of the entropic point."""
    monkeypatch.setattr("hardnet.functional.entropic.HAS_NUMBA", kernel)
    A, inside = draw(3, 6, seed=1), 0.1 + draw_uniform(10, 6, seed=2)
    A = torch.cat([A, A[:1] + 2 * A[1:2]])
    constraint = hn.Equality(A, lambda x: x @ A.mT) & hn.Box(lower=0.0)
    raw = 3 * draw(10, 6, seed=3)
    layer = layer_of(constraint)
    found = layer.solve(raw, inside)
    assert bool((found.status == 0).all())
    torch.testing.assert_close(found.y @ A.mT, inside @ A.mT, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.y.log(), raw + found.dual @ A, rtol=0, atol=1e-11)
    assert torch.equal(layer(raw, inside), found.y)
    assert hn.check(constraint, found.y, inside).ok


@pytest.mark.parametrize("kernel", [True, False])
def test_gradients_reach_every_number(kernel, monkeypatch):
    monkeypatch.setattr("hardnet.functional.entropic.HAS_NUMBA", kernel)
    A, inside = draw_uniform(2, 5, seed=1), 0.2 + draw_uniform(3, 5, seed=2)
    raw, b = draw(3, 5, seed=3).requires_grad_(), (inside @ A.mT).requires_grad_()
    torch.autograd.gradcheck(hn.functional.project_entropic, (raw, A.requires_grad_(), b))
    per_sample = A.detach().expand(3, 2, 5).clone().requires_grad_()
    torch.autograd.gradcheck(hn.functional.project_entropic, (raw, per_sample, b))
    (first,) = torch.autograd.grad(hn.functional.project_entropic(raw, A, b)[0, 0], raw, create_graph=True)
    with pytest.raises(hn.errors.UnsupportedSetError, match="second derivatives"):
        first.sum().backward()


def test_the_contract():
    raw, x = draw(6, 12, seed=1), draw(6, 3, seed=2)
    layer = layer_of(hn.Transport(shares, [0.1, 0.2, 0.3, 0.4]))
    assert not layer.identity_inside
    assert hn.layers.Projection(hn.Simplex(3)).identity_inside
    check_layer(layer, x, raw)
    check_layer(layer_of(hn.Simplex(12)), None, raw)


def test_a_sum_of_zero_gives_zeros():
    raw = draw(4, 6, seed=1).requires_grad_()
    y = layer_of(hn.Transport([0.0, 1.0], [0.25, 0.5, 0.25]))(raw)
    assert torch.equal(y[:, :3], torch.zeros(4, 3, dtype=F64))
    torch.testing.assert_close(y[:, 3:], tensor(0.25, 0.5, 0.25).expand(4, 3), rtol=1e-14, atol=0)
    y.sum().backward()
    assert bool(raw.grad.isfinite().all())


def test_samples_without_an_answer():
    plan = hn.Transport(lambda x: x, [0.5, 0.5], name="plan")
    x, raw = tensor([0.5, 0.5], [0.5, 0.9]), draw(2, 4)
    with pytest.raises(hn.errors.InfeasibleError, match="plan") as caught:
        layer_of(plan)(raw, x)
    assert caught.value.samples == [1]
    y = layer_of(plan, on_infeasible="nan")(raw, x)
    assert y.isnan().any(-1).tolist() == [False, True]
    edge = hn.Equality(tensor([1.0, 1.0], [1.0, -1.0]), 1.0) & hn.Box(lower=0.0)  # its only point has a zero
    with pytest.raises(hn.errors.ConvergenceError):
        layer_of(edge)(draw(2, 2))
    assert bool(layer_of(edge, on_unsolved="nan")(draw(2, 2)).isnan().all())


REFUSED = [
    (lambda: hn.Box(0.0, 1.0) & hn.Equality([[1.0, 1.0]], 1.0), "a box with other bounds"),
    (lambda: hn.Equality([[1.0, 1.0]], 1.0), "may be negative"),
    (lambda: hn.Affine([[1.0, 1.0]], upper=1.0) & hn.Box(lower=0.0), "Affine"),
    (lambda: hn.Box(lower=[0.0, 0.0]), "no sum"),
    (lambda: hn.Monotone(3), "Monotone"),
]


@pytest.mark.parametrize(("build", "text"), REFUSED)
def test_other_sets_are_refused_in_one_sentence(build, text):
    with pytest.raises(hn.errors.UnsupportedSetError, match=f"metric='entropy'.*{text}"):
        hn.HardNet(torch.nn.Linear(1, 2), build(), "projection", metric="entropy")


def test_other_words_and_options_are_refused():
    with pytest.raises(hn.errors.OptionError, match="metric"):
        hn.layers.Projection(hn.Simplex(3), metric="kl")
    with pytest.raises(hn.errors.OptionError, match="entropy"):
        layer_of(hn.Simplex(3), strict=True)
    with pytest.raises(hn.errors.UnsupportedSetError, match="fixed graph"):
        torch.export.export(layer_of(hn.Simplex(3)), (torch.randn(4, 3),))


@pytest.mark.parametrize("columns", [[0.2, 0.3, 0.5], shares], ids=["constant", "of x"])
def test_graphs_and_maps_are_refused_in_one_sentence(columns):
    layer, raw, x = layer_of(hn.Transport([0.4, 0.6], columns)), draw(4, 6), draw(4, 3)
    for call in (lambda: torch.export.export(layer, (raw, x)), lambda: torch.vmap(layer)(raw, x)):
        with pytest.raises(hn.errors.UnsupportedSetError, match=r"torch\.(export|func): .*entropic points"):
            call()


def test_models_files_and_certificates(tmp_path):
    net = torch.nn.Linear(3, 9)
    model = hn.HardNet(net, hn.DoublyStochastic(3, name="mixing"), metric="entropy")
    x = 20 * torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    y = model(x)
    assert hn.check(model, y, x).ok
    hn.save(model, tmp_path / "model")
    assert torch.equal(hn.load(tmp_path / "model", torch.nn.Linear(3, 9))(x), y)
    torch.testing.assert_close(torch.compile(model, backend="eager")(x), y)
