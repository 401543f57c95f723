"""L1 balls: soft thresholding alone, and beside other sets the nearest point by the optimality conditions."""

import pytest
import torch

import hardnet as hn
from hardnet.testing import check_layer, check_set
from tests.draws import F64, draw, draw_uniform, tensor

N, SAMPLES = 5, 24


def center_of(x):
    return 0.5 * x[..., :N]


def radius_of(x):
    return 0.3 + x[..., 0].abs()


def ball(**named):
    return hn.L1Ball(center_of, radius_of, weights=0.2 + draw_uniform(N, seed=3), **named)


AXIS, ROOT = torch.eye(N, dtype=F64)[0], draw(N, N, seed=11)
BESIDE = {
    "box": lambda: hn.Box(-1.0, 1.0),
    "rows": lambda: hn.Affine(draw(2, N, seed=5), lower=-2.0, upper=1.0),
    "equality": lambda: hn.Equality(draw(1, N, seed=6), 0.1),
    "simplex": lambda: hn.Simplex(N),
    "ball": lambda: hn.Ball(0.1 * draw(N, seed=7), 1.0),
    "two": lambda: hn.L1Ball(0.1 * draw(N, seed=8), 1.5) & hn.Box(-0.4, 0.6),
    "cone": lambda: hn.SecondOrderCone(draw(2, N, seed=9), draw(2, seed=10), torch.zeros(N, dtype=F64), 2.0),
    "apex": lambda: hn.SecondOrderCone(torch.eye(N, dtype=F64), torch.zeros(N, dtype=F64), 1.2 * AXIS, 0.0),
    "curved": lambda: hn.Quadratic(ROOT @ ROOT.mT, 0.1 * draw(N, seed=12), -0.4) & hn.Ball(AXIS, 1.2),
}


def written_out(constraint, x):
    """The same set for one sample with a row for each of the 2^n faces of every L1 ball."""
    signs = torch.cartesian_prod(*[tensor(1.0, -1.0)] * N)
    members = []
    for part in constraint.parts:
        if not isinstance(part, hn.L1Ball):
            members.append(part)
            continue
        center, radius, weights = part.numbers(x, torch.zeros(1, N, dtype=F64))
        slope = signs if weights is None else signs * weights
        members.append(hn.Affine(slope, upper=(radius + (slope * center).sum(-1)).reshape(-1)))
    return hn.sets.Intersection(members) if len(members) > 1 else members[0]


def nearest(constraint, raw, x=None):
    return hn.layers.HardNetCvx(constraint, on_infeasible="nan")(raw, x)


CURVED = ("ball", "cone", "apex", "curved")


@pytest.mark.parametrize(
    ("kind", "tangents"), [*((kind, False) for kind in ("alone", *BESIDE)), *((kind, True) for kind in CURVED)]
)
def test_the_point_is_that_of_all_rows_written_out(kind, tangents, monkeypatch):
    if tangents:  # as for large sets
        monkeypatch.setattr("hardnet.functional.l1_ball.SMALL", 0)
    constraint = ball() if kind == "alone" else ball() & BESIDE[kind]()
    raw, x = 2 * draw(SAMPLES, N, seed=1), draw(SAMPLES, N, seed=2)
    y = nearest(constraint, raw, x)
    found = 0
    for sample in range(0, SAMPLES, 3 if kind in ("ball", "cone", "two") else 1):
        one = raw[sample : sample + 1]
        expected = nearest(written_out(constraint, x[sample : sample + 1]), one)[0]
        assert bool(expected.isnan().any()) == bool(y[sample].isnan().any())
        if not bool(expected.isnan().any()):
            torch.testing.assert_close(y[sample], expected, rtol=0, atol=1e-8)
            found += 1
    assert found


@pytest.mark.parametrize("seed", range(4))
def test_alone_it_satisfies_the_conditions_of_the_nearest_point(seed):
    raw, center, weights = (draw(200, 40, seed=10 * seed + k) for k in range(3))
    weights = weights.abs() * (weights > -0.5)
    radius = 3 * draw_uniform(200, seed=seed)
    y = hn.functional.project_l1_ball(raw, center, radius, weights)
    off, pull = y - center, raw - y
    spent = (weights * off.abs()).sum(-1)
    assert bool((spent <= radius * (1 + 1e-14) + 1e-14).all())
    price = torch.where(weights > 0, pull.abs() / weights, 0.0).amax(-1, keepdim=True)
    assert bool((price.squeeze(-1) * (spent - radius).abs() <= 1e-12).all())
    assert bool((pull.abs() <= price * weights + 1e-12).all())
    moves = off.abs() > 1e-12
    torch.testing.assert_close(pull[moves], (price * weights * off.sign())[moves], rtol=0, atol=1e-12)


def test_outputs_that_do_not_move_are_exactly_at_the_center():
    raw, x = 2 * draw(SAMPLES, N, seed=1), draw(SAMPLES, N, seed=2)
    for constraint in (ball(), ball() & hn.Box(-3.0, 3.0), ball() & hn.Ball(torch.zeros(N, dtype=F64), 4.0)):
        y = nearest(constraint, raw, x)
        assert int((y == center_of(x)).sum()) > SAMPLES


def test_what_is_inside_keeps_its_bits():
    x = draw(SAMPLES, N, seed=2)
    raw = center_of(x) + 0.01 * draw(SAMPLES, N, seed=4)
    for constraint in (ball(), ball() & hn.Box(-9.0, 9.0), ball() & hn.Ball(torch.zeros(N, dtype=F64), 9.0)):
        assert torch.equal(nearest(constraint, raw, x), raw)


def test_a_radius_of_zero_gives_the_center():
    center = draw(N, seed=3)
    y = nearest(hn.L1Ball(center, 0.0), draw(4, N))
    assert torch.equal(y, center.expand(4, N))
    y = nearest(hn.L1Ball(center, 0.0) & hn.Box(-9.0, 9.0), draw(4, N))
    torch.testing.assert_close(y, center.expand(4, N), rtol=0, atol=1e-14)


def test_a_first_piece_without_a_point_is_left():
    """The nearest point of the row alone has other signs than every point of the ball on that row."""
    center = tensor(1.0, 1.0)
    constraint = hn.L1Ball(center, 2.5) & hn.Equality([[1.0, 3.0]], 0.0)
    y = nearest(constraint, torch.tensor([[30.0, -12.0], [-9.0, 3.5], [4.0, 7.0]], dtype=F64))
    expected = nearest(written_out_pair(center, 2.5), torch.tensor([[30.0, -12.0], [-9.0, 3.5], [4.0, 7.0]], dtype=F64))
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    assert bool(hn.check(constraint, y).ok)


def written_out_pair(center, radius):
    signs = torch.cartesian_prod(*[tensor(1.0, -1.0)] * 2)
    return hn.Affine(signs, upper=radius + (signs * center).sum(-1)) & hn.Equality([[1.0, 3.0]], 0.0)


def test_a_set_without_a_point_is_refused_by_sample():
    constraint = hn.L1Ball(lambda x: x, 0.5) & hn.Box(0.0, 1.0)
    x = torch.stack([torch.full((N,), 0.5, dtype=F64), torch.full((N,), 3.0, dtype=F64)])
    with pytest.raises(hn.errors.InfeasibleError) as caught:
        hn.layers.HardNetCvx(constraint)(draw(2, N), x)
    assert caught.value.samples == [1]
    y = nearest(constraint, draw(2, N), x)
    assert bool(y[0].isfinite().all())
    assert bool(y[1].isnan().all())


@pytest.mark.parametrize("beside", [None, "box", "ball"])
def test_the_contract(beside):
    constraint = ball(name="turnover") if beside is None else ball(name="turnover") & BESIDE[beside]()
    raw, x = 2 * draw(6, N, seed=1), 0.5 * draw(6, N, seed=2)
    layer = hn.layers.HardNetCvx(constraint)
    if isinstance(layer.constraint, hn.L1Ball) or beside == "box":
        check_layer(layer, x, raw, compiled=beside is None)
    else:
        check_layer(layer, x, raw, gradients=False)
    check_set(constraint, layer(raw, x), x)
    check_set(constraint, layer(raw, x) + 1.0, x)


def test_gradients_reach_every_number():
    center, weights = draw(N, seed=1).requires_grad_(), (1 + draw_uniform(N, seed=2)).requires_grad_()
    radius, raw = torch.tensor(0.8, dtype=F64, requires_grad=True), (2 * draw(3, N, seed=3)).requires_grad_()

    def point(raw, center, radius, weights):
        return hn.functional.project_l1_ball(raw, center, radius, weights)

    torch.autograd.gradcheck(point, (raw, center, radius, weights))
    torch.autograd.gradgradcheck(point, (raw, center, radius, weights))


def test_gradients_beside_other_sets():
    box, rows = hn.Box(-1.0, 1.0), hn.Affine(draw(2, N, seed=5), lower=-2.0, upper=1.0)
    center, radius = (0.3 * draw(N, seed=1)).requires_grad_(), torch.tensor(0.8, dtype=F64, requires_grad=True)
    raw = (2 * draw(3, N, seed=4)).requires_grad_()

    def point(raw, center, radius):
        return hn.layers.HardNetCvx(hn.L1Ball(center, radius) & box & rows)(raw)

    torch.autograd.gradcheck(point, (raw, center, radius), atol=1e-5)


@pytest.mark.parametrize("beside", BESIDE)
def test_a_solution_has_the_batch_of_raw(beside):
    """Also one sample without a batch, and no sample."""
    layer = hn.layers.HardNetCvx(ball() & BESIDE[beside]())
    raw, x = draw(SAMPLES, N, seed=1), 0.3 * draw(SAMPLES, N, seed=2)
    width = layer.solve(raw, x).dual.shape[-1]
    for view in (lambda part: part[0], lambda part: part[:0], lambda part: part[None, :, None]):
        found = layer.solve(view(raw), view(x))
        assert found.status.shape == view(raw).shape[:-1]
        assert found.dual.shape == (*found.status.shape, width)


def test_solutions_carry_the_price_of_the_radius():
    constraint = ball() & BESIDE["rows"]() & BESIDE["box"]()
    raw, x = 2 * draw(SAMPLES, N, seed=1), 0.3 * draw(SAMPLES, N, seed=2)
    layer = hn.layers.HardNetCvx(constraint, on_infeasible="nan")
    found = layer.solve(raw, x)
    done = found.status == 0
    price = found.dual[:, 2]
    assert bool(done.any())
    assert bool((price[done] >= 0).all())
    slack = constraint.parts[0].violation(found.y, x).squeeze(-1)
    assert bool((slack[done] <= 1e-12).all())
    torch.testing.assert_close(found.y[done], layer(raw, x)[done], rtol=0, atol=1e-12)


def test_scaled_units_hold_the_same_points():
    mean, std = draw(N, seed=11), 0.5 + draw_uniform(N, seed=12)
    raw, x = 2 * draw(SAMPLES, N, seed=1), draw(SAMPLES, N, seed=2)
    z = hn.scaled(ball() & hn.Box(-3.0, 3.0), mean, std)
    y = mean + std * nearest(z, raw, x)
    assert bool(hn.check(ball() & hn.Box(-3.0, 3.0), y, x, tolerance=1e-12).ok)
    check_set(hn.scaled(ball(), mean, std), raw, x)


def test_float32_names_features_and_files(tmp_path):
    net = torch.nn.Linear(3, N)
    model = hn.HardNet(net, hn.L1Ball(torch.zeros(N), 1.0, name="leverage") & hn.Box(-0.5, 0.6))
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)) * 5
    y = model(x)
    certificate = hn.check(model.constraint, y, x)
    assert certificate.ok
    assert certificate.names[0] == "leverage"
    assert hn.features(model.constraint, x).isfinite().all()
    hn.save(model, tmp_path / "model")
    assert torch.equal(hn.load(tmp_path / "model", torch.nn.Linear(3, N))(x), y)
    assert hn.explain(model.constraint).method == "cvx"


@pytest.mark.parametrize("bad", [-1.0, float("nan")])
def test_bad_numbers_are_refused_for_their_sample_alone(bad):
    for beside in (None, hn.Box(-1.0, 1.0)):
        alone = hn.L1Ball(torch.zeros(N, dtype=F64), lambda x: x[..., 0])
        constraint = alone if beside is None else alone & beside
        x, raw = torch.tensor([[1.0], [bad], [2.0]], dtype=F64), 2 * draw(3, N)
        with pytest.raises(hn.errors.BoundsError, match="radius") as caught:
            hn.layers.HardNetCvx(constraint)(raw, x)
        assert caught.value.samples == [1]
        y = hn.layers.HardNetCvx(constraint, on_invalid="nan")(raw, x)
        assert y.isnan().any(-1).tolist() == [False, True, False]
    with pytest.raises(hn.errors.BoundsError, match="radius"):
        hn.L1Ball(torch.zeros(N), -1.0)
    with pytest.raises(hn.errors.BoundsError, match="weights"):
        hn.L1Ball(torch.zeros(N), 1.0, weights=-1.0)


def test_an_export_of_the_ball_alone():
    model = hn.HardNet(torch.nn.Linear(3, N), hn.L1Ball(torch.zeros(N), 1.0))
    x = torch.randn(4, 3)
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x))
    with pytest.raises(hn.errors.UnsupportedSetError, match="L1 ball beside"):
        torch.export.export(hn.HardNet(torch.nn.Linear(3, N), hn.L1Ball(torch.zeros(N), 1.0) & hn.Box(-1.0, 1.0)), (x,))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("distance", [1e2, 1e4, 1e7])
def test_a_raw_far_away_leaves_no_rounding_of_its_own_size(distance, weighted):
    for n in (1, 2, 9):
        center, weights = draw(n, seed=n), draw(n, seed=n + 1).abs() + 0.1 if weighted else None
        constraint = hn.L1Ball(center, 0.04, weights)
        raw = (distance * draw(40, n, seed=n + 2)).requires_grad_()
        y = hn.HardNet(torch.nn.Identity(), constraint)(raw)
        certificate = hn.check(constraint, y)
        assert certificate.ok, certificate
        (grad,) = torch.autograd.grad(y.sum(), raw)
        assert grad.isfinite().all()


def test_a_quadratic_of_low_rank_beside_it_is_convex_to_the_rounding_of_its_own_dtype():
    for seed in range(8):
        n = 2 + seed % 4
        root, q = draw(n, 1, seed=seed), draw(n, seed=seed + 1)
        constraint = hn.L1Ball(torch.zeros(n), 3.0) & hn.Quadratic((root @ root.mT).float(), q.float(), -1.0)
        y = hn.HardNet(torch.nn.Identity(), constraint)(5 * draw(20, n, seed=seed + 2).float())
        assert hn.check(constraint, y).ok
