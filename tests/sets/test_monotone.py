"""Monotone profiles: the nearest point against isotonic regression and against the projection onto their rows."""

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression

import hardnet as hn
from hardnet.testing import check_layer, check_set
from tests.draws import F64, draw, draw_uniform, tensor

N, SAMPLES = 7, 40


def lower_of(x):
    return x[..., :N] - 1.5


def upper_of(x):
    return x[..., :N] + 1.5


class Rises(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(N, N - 1).double()

    def forward(self, x):
        return 0.1 * self.net(x).square()


SETS = {
    "rising": lambda: hn.Monotone(N, name="depth"),
    "falling": lambda: hn.Monotone(N, increasing=False),
    "shared bounds": lambda: hn.Monotone(N, lower=-0.5, upper=[0.7] * N),
    "bounds of x": lambda: hn.Monotone(N, increasing=False, lower=lower_of, upper=upper_of),
}
BANDED = {
    "least steps": lambda: hn.Monotone(N, upper=upper_of, step=(0.1, None)),
    "learned steps": lambda: hn.Monotone(N, step=(Rises(), None)),
    "steps": lambda: hn.Monotone(N, step=(None, 0.4)),
    "convex": lambda: hn.Monotone(N, bend=(0.0, None), lower=-2.0),
    "concave": lambda: hn.Monotone(
        N, increasing=False, bend=(None, 0.0), step=(0.05, 0.6), upper=lambda x: x[..., :N] + 3
    ),
}


def nearest_by_rows(constraint, raw, x, weights=None):
    """The same set by the projection onto its rows in a metric, which knows nothing of the order."""
    found = constraint.structure(constraint.numbers(x, raw), raw)
    return hn.functional.project_rows(raw, found, metric=weights, on_infeasible="nan")


@pytest.mark.parametrize("increasing", [True, False])
def test_it_is_isotonic_regression(increasing):
    raw, weights = draw(20, 60, seed=1), 0.1 + draw_uniform(60, seed=2)
    for given in (None, weights):
        y = hn.functional.project_monotone(raw, increasing=increasing, weights=given)
        for sample, one in zip(raw.numpy(), y.numpy(), strict=True):
            expected = isotonic_regression(
                sample, weights=None if given is None else given.numpy(), increasing=increasing
            )
            np.testing.assert_allclose(one, expected.x, rtol=0, atol=1e-13)
        steps = y.diff(dim=-1) * (1 if increasing else -1)
        assert bool((steps >= 0).all())


@pytest.mark.parametrize("kind", [*SETS, *BANDED])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_nearest_point_of_its_rows(kind, weighted):
    constraint, weights = (SETS | BANDED)[kind](), (0.2 + draw_uniform(N, seed=4)) if weighted else None
    raw, x = 2 * draw(SAMPLES, N, seed=5), 0.3 * draw(SAMPLES, N, seed=6)
    layer = hn.layers.Projection(constraint, metric=weights, on_infeasible="nan")
    y, expected = layer(raw, x), nearest_by_rows(constraint, raw, x, weights)
    assert torch.equal(y.isnan(), expected.isnan())
    assert int(y.isfinite().all(-1).sum()) > SAMPLES / 2
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12, equal_nan=True)
    found = layer.solve(raw, x)
    torch.testing.assert_close(found.y, expected, rtol=0, atol=1e-12, equal_nan=True)


def test_bounds_of_their_own_need_bounded_blocks():
    y = hn.functional.project_monotone(tensor(10.0, 0.0), upper=tensor(1.0, 100.0))
    assert y.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("n", [2, 5, 33, 150])
def test_both_programs_find_the_same_blocks(n):
    raw, shift = draw(30, n, seed=n), draw(30, n, seed=n + 1)
    raw[::3] = raw[::3].round()  # ties
    low, high = 0.5 * shift - 1.3, 0.5 * shift + 1.3
    weights = 0.1 + draw_uniform(30, n, seed=n + 2)
    eager = hn.functional.project_monotone(raw, low, high, weights=weights, on_infeasible="nan")
    mapped = torch.func.vmap(lambda *part: hn.functional.project_monotone(*part, on_infeasible="nan"))(raw, low, high)
    plain = hn.functional.project_monotone(raw, low, high, on_infeasible="nan")
    assert bool(eager.isfinite().any())
    torch.testing.assert_close(mapped, plain, rtol=0, atol=1e-13, equal_nan=True)
    with torch.inference_mode():
        again = torch.compile(hn.functional.project_monotone, backend="eager")(raw, low, high, weights=weights)
    torch.testing.assert_close(again, eager, rtol=0, atol=1e-13, equal_nan=True)


@pytest.mark.parametrize("kind", SETS)
def test_the_contract(kind):
    torch.compiler.reset()  # all layers share one forward, and torch keeps few compiled versions of a function
    constraint = SETS[kind]()
    raw, x = 2 * draw(6, N, seed=1), 0.2 * draw(6, N, seed=2)
    for layer in (hn.layers.HardNetCvx(constraint), hn.layers.Projection(constraint, metric=[0.5, 1, 2, 1, 1, 3, 1])):
        check_layer(layer, x, raw, compiled=True)
    check_set(constraint, layer(raw, x), x)
    check_set(constraint, layer(raw, x) + raw, x)


@pytest.mark.parametrize("kind", ["steps", "convex", "concave"])
def test_the_contract_of_banded_rows(kind):
    constraint = BANDED[kind]()
    raw, x = 2 * draw(6, N, seed=1), 0.2 * draw(6, N, seed=2)
    layer = hn.layers.Projection(constraint)
    check_layer(layer, x, raw)
    check_set(constraint, layer(raw, x) + raw, x)


def test_what_is_inside_keeps_its_bits():
    raw = draw(50, N, seed=1).sort(-1).values
    assert torch.equal(hn.functional.project_monotone(raw), raw)
    assert torch.equal(hn.functional.project_monotone(raw.float().flip(-1), increasing=False), raw.float().flip(-1))


def test_gradients_reach_every_number():
    raw = (2 * draw(4, N, seed=3)).requires_grad_()
    low, high = (draw(4, N, seed=4) - 2).requires_grad_(), (draw(4, N, seed=5) + 2).requires_grad_()
    weights = (0.5 + draw_uniform(N, seed=6)).requires_grad_()

    def point(raw, low, high, weights):
        return hn.functional.project_monotone(raw, low, high, weights=weights)

    torch.autograd.gradcheck(point, (raw, low, high, weights))
    torch.autograd.gradgradcheck(point, (raw, low, high, weights))


def test_the_derivative_is_the_mean_over_blocks():
    raw = tensor(4.0, 1.0, 1.0, 9.0, 8.0).requires_grad_()
    y = hn.functional.project_monotone(raw)
    assert y.tolist() == [2.0, 2.0, 2.0, 8.5, 8.5]
    (grad,) = torch.autograd.grad(y, raw, tensor(3.0, 0.0, 0.0, 0.0, 1.0))
    assert grad.tolist() == [1.0, 1.0, 1.0, 0.5, 0.5]


def test_a_profile_without_a_point_is_refused_by_sample():
    constraint = hn.Monotone(3, lower=lambda x: x, upper=lambda x: x + 1)
    x = tensor([0.0, 0.5, 1.0], [3.0, 0.0, 0.0])
    for method in ("cvx", "projection"):
        with pytest.raises(hn.errors.InfeasibleError, match="outputs 0 and 1") as caught:
            hn.layers.LAYERS[method](constraint)(draw(2, 3), x)
        assert caught.value.samples == [1]
        y = hn.layers.LAYERS[method](constraint, on_infeasible="nan")(draw(2, 3), x)
        assert y.isnan().any(-1).tolist() == [False, True]
    near = hn.layers.Projection(constraint, on_infeasible="nearest")(draw(2, 3), x)
    assert bool(near.isfinite().all())


BAD = [
    (lambda: hn.Monotone(1), hn.errors.ShapeError, "dim"),
    (lambda: hn.Monotone(3, step=0.1), hn.errors.ShapeError, "step: expected a pair"),
    (lambda: hn.Monotone(3, lower=[0.0, 1.0]), hn.errors.ShapeError, "lower"),
    (lambda: hn.Monotone(3, step=(-0.1, None)), hn.errors.BoundsError, "least_step"),
    (lambda: hn.Monotone(3, step=(0.2, 0.1)), hn.errors.BoundsError, "least_step, most_step"),
    (lambda: hn.Monotone(4, bend=(None, [0.0])), hn.errors.ShapeError, "most_bend"),
    (lambda: hn.layers.HardNetCvx(hn.Monotone(3))(draw(2, 4)), hn.errors.ShapeError, "raw"),
]


@pytest.mark.parametrize(("build", "error", "text"), BAD)
def test_what_is_wrong_is_said(build, error, text):
    with pytest.raises(error, match=text):
        build()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_numbers_are_those_of_their_sample_alone(bad):
    raw = draw(3, N).requires_grad_()
    low = torch.stack([torch.full((N,), -1.0), torch.full((N,), bad), torch.full((N,), 0.0)]).double().requires_grad_()
    weights = torch.ones(N, dtype=F64, requires_grad=True)
    with pytest.raises(hn.errors.BoundsError, match="lower, upper") as caught:
        hn.functional.project_monotone(raw, low, 2.0)
    assert caught.value.samples == [1]
    y = hn.functional.project_monotone(raw, low, 2.0, weights=weights, on_invalid="nan", on_infeasible="nan")
    assert y.isnan().any(-1).tolist() == [False, True, False]
    y[::2].sum().backward()
    assert bool(weights.grad.isfinite().all())


@pytest.mark.parametrize("limits", [(None, None), (0.01, 0.3)])
def test_names_features_units_and_files(tmp_path, limits):
    net = torch.nn.Linear(3, N)
    model = hn.HardNet(net, hn.Monotone(N, lower=0.0, upper=1.0, step=limits, name="depth"))
    x = 3 * torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    y = model(x)
    certificate = hn.check(model.constraint, y, x)
    assert certificate.ok
    assert certificate.names[0] == "depth[0]"
    assert certificate.names[-1] == f"depth.step[{N - 1}]"  # the step to the last output
    assert hn.features(model.constraint, x).isfinite().all()
    hn.save(model, tmp_path / "model")
    assert torch.equal(hn.load(tmp_path / "model", torch.nn.Linear(3, N))(x), y)
    assert hn.explain(hn.Monotone(N)).method == "cvx"
    assert hn.explain(BANDED["steps"]()).method == "projection"
    mean, std = draw(N, seed=11), 0.5 + draw_uniform(N, seed=12)
    scaled = hn.scaled(hn.Monotone(N), mean, std)
    z = hn.layers.Projection(scaled)(draw(5, N))
    assert hn.check(hn.Monotone(N), mean + std * z, tolerance=1e-12).ok


def test_an_export_of_the_pooled_profile():
    model = hn.HardNet(torch.nn.Linear(3, N), hn.Monotone(N, upper=1.0))
    x = torch.randn(5, 3)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    x = torch.randn(9, 3)
    torch.testing.assert_close(program.module()(x), model(x), rtol=0, atol=1e-6)
