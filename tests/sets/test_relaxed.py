"""Sets that give way: what holds, what gives way and by how much, by name; files; refusals."""

import pytest
import torch

import hardnet as hn
from hardnet.functional.relaxed import least_slack
from tests.draws import draw, draw_uniform
from tests.solvers.oracles import nearest_point, two_stages


def limits_and_barriers(seed, n=3, m=4, reach=4.0):
    """Limits of one, and m barriers at a distance that contradicts them (reach 4) or not (reach 0)."""
    A = draw(m, n, seed=seed)
    barriers = hn.Affine(A, lower=reach * draw(m, seed=seed + 1).abs() - 0.1, upper=torch.inf, name="barrier")
    limits = hn.Box(-torch.ones(n, dtype=torch.float64), 1.0, name="limits")
    return limits, barriers


@pytest.mark.parametrize("seed", range(4))
def test_least_slack_then_nearest_point_as_an_oracle_has_it(seed):
    limits, barriers = limits_and_barriers(seed)
    weight = draw(4, seed=seed + 9).abs() + 0.1
    constraint = limits & hn.Relaxed(barriers, weight=weight)
    raw = 2 * draw(5, 3, seed=seed + 2)
    y = hn.HardNet(torch.nn.Identity(), constraint)(raw)
    certificate = hn.check(constraint, y)
    assert certificate.ok
    assert bool(certificate.exact_box.all())
    A = torch.cat([barriers.get_buffer("A"), torch.eye(3, dtype=torch.float64)])
    lower = torch.cat([barriers.get_buffer("lower"), -torch.ones(3, dtype=torch.float64)])
    upper = torch.cat([torch.full((4,), torch.inf, dtype=torch.float64), torch.ones(3, dtype=torch.float64)])
    for i in range(5):
        slack, nearest = two_stages(raw[i], A, lower, upper, torch.cat([weight, torch.zeros(3, dtype=torch.float64)]))
        assert torch.allclose(certificate.slack[i, 3:], slack[:4].abs(), rtol=0, atol=1e-6)  # Clarabel's own tolerance
        assert torch.allclose(y[i], nearest, rtol=0, atol=1e-4)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("method", ["cvx", "projection"])
def test_nothing_gives_way_where_nothing_must_and_the_answer_is_the_projection_bit_for_bit(seed, method):
    limits, barriers = limits_and_barriers(seed, reach=0.0)
    raw = 3 * draw(16, 3, seed=seed + 2)
    whole = hn.layers.Projection(limits & barriers)(raw)
    constraint = limits & hn.Relaxed(barriers, weight=7.0)
    assert torch.equal(hn.layers.LAYERS[method](constraint)(raw), whole)
    certificate = hn.check(constraint, whole)
    assert certificate.ok
    assert certificate.given_way == {}
    assert not certificate.slack.any()


def test_mates_that_need_no_slack_keep_their_bits():
    level = lambda x: x
    constraint = hn.Box(-1.0, 1.0) & hn.Relaxed(hn.Affine(torch.ones(1, 2, dtype=torch.float64), lower=level))
    raw, x = 3 * draw(6, 2), torch.tensor([[0.5], [9.0], [1.0], [4.0], [-1.0], [0.0]], dtype=torch.float64)
    together = hn.layers.Projection(constraint)(raw, x)
    alone = torch.cat([hn.layers.Projection(constraint)(raw[i : i + 1], x[i : i + 1]) for i in range(6)])
    assert torch.equal(together, alone)
    assert torch.allclose(together[[1, 3]], torch.ones(2, 2, dtype=torch.float64), rtol=0, atol=1e-14)


def test_alone_with_rows_of_length_one_it_is_the_compromise():
    A = torch.nn.functional.normalize(draw(5, 2, seed=3), dim=-1)
    rows = {"lower": draw(5, seed=4).abs() + 1}
    raw = draw(7, 2, seed=5)
    expected = hn.functional.project_affine(raw, A, rows["lower"], on_infeasible="nearest")
    y = hn.layers.HardNetCvx(hn.Relaxed(hn.Affine(A, **rows)))(raw)
    assert torch.allclose(y, expected, rtol=0, atol=1e-8)


def test_a_heavier_row_gives_way_less():
    """``y >= 1`` and ``y <= 0`` with weights 1 and 3: slack 3/4 and 1/4, and y between them."""
    one = torch.ones(1, 1, dtype=torch.float64)
    light, heavy = hn.Affine(one, lower=1.0, name="light"), hn.Affine(one, upper=0.0, name="heavy")
    constraint = hn.Relaxed(light) & hn.Relaxed(heavy, weight=3.0)
    y = hn.HardNet(torch.nn.Identity(), constraint)(torch.tensor([[5.0]], dtype=torch.float64))
    assert torch.allclose(y, torch.tensor([[0.25]], dtype=torch.float64), rtol=0, atol=1e-14)
    certificate = hn.check(constraint, y)
    slack = {name: report.slack for name, report in certificate.given_way.items()}
    assert slack == pytest.approx({"light": 0.75, "heavy": 0.25}, abs=1e-12)
    assert "light gave way by up to 0.75" in str(certificate)


def test_what_gives_way_more_than_it_must_or_breaks_a_limit_is_violated():
    one = torch.ones(1, 2, dtype=torch.float64)
    constraint = hn.Box(-1.0, 1.0, name="limits") & hn.Relaxed(hn.Affine(one, lower=3.0), name="barrier")
    y = torch.tensor([[1.0, 1.0], [1.0, 1.0 - 1e-6], [1.0 + 1e-9, 1.0], [torch.nan, 1.0]], dtype=torch.float64)
    certificate = hn.check(constraint, y)
    assert certificate.satisfied.tolist() == [True, False, False, False]
    assert certificate.given_way["barrier"].slack == pytest.approx(1.0)
    assert certificate.by_name()["limits[0]"].satisfied == 0.5


@pytest.mark.parametrize("seed", range(3))
def test_gradients_reach_every_number_through_the_slack(seed):
    raw, A, lower = (2 * draw(2, seed=seed), draw(3, 2, seed=seed + 1), 2 + draw(3, seed=seed + 2).abs())
    limit, level = torch.ones(2, dtype=torch.float64), torch.tensor([0.9], dtype=torch.float64)
    row = torch.ones(1, 2, dtype=torch.float64)

    def project(raw, A, lower, limit, row, level):
        soft = hn.Relaxed(hn.Affine(lambda x: A, lower=lambda x: lower), weight=[1.0, 2.0, 0.5])
        hard = hn.Box(lambda x: -limit, lambda x: limit) & hn.Affine(lambda x: row, upper=lambda x: level)
        return hn.layers.Projection(hard & soft)(raw, raw)

    inputs = [number.requires_grad_() for number in (raw, A, lower, limit, row, level)]
    assert torch.autograd.gradcheck(project, inputs)


def test_float32_and_half_precision_keep_the_limits_exactly():
    limits, barriers = limits_and_barriers(5)
    model = hn.HardNet(torch.nn.Identity(), limits & hn.Relaxed(barriers)).float()
    for dtype in (torch.float32, torch.bfloat16):
        y = model((3 * draw(8, 3, seed=6)).to(dtype))
        assert y.dtype == dtype
        assert bool((y.abs() <= 1).all())
        assert bool(hn.check(model.constraint, y).ok)


def test_hard_members_without_a_common_point_are_named():
    row = torch.ones(1, 2, dtype=torch.float64)
    far = hn.Affine(row, lower=3.0, name="far")
    constraint = hn.Box(-1.0, 1.0, name="limits") & far & hn.Relaxed(hn.Affine(row, upper=-5.0))
    with pytest.raises(hn.errors.InfeasibleError, match="may not give way") as caught:
        hn.layers.Projection(constraint)(draw(2, 2))
    assert caught.value.samples == [0, 1]
    assert set(caught.value.names[0]) == {"far", "limits[0]", "limits[1]"}
    y = hn.layers.Projection(constraint, on_infeasible="nan")(draw(2, 2))
    assert bool(y.isnan().all())


def test_a_saved_model_comes_back(tmp_path):
    limits, barriers = limits_and_barriers(7)
    model = hn.HardNet(torch.nn.Linear(3, 3).double(), limits & hn.Relaxed(barriers, weight=[1, 2, 3, 4], name="soft"))
    hn.save(model, tmp_path / "model")
    again = hn.load(tmp_path / "model", net=torch.nn.Linear(3, 3).double())
    x = draw(4, 3, seed=8)
    assert torch.equal(again(x), model(x))
    assert "soft[0]" in hn.check(again.constraint, again(x)).names


def test_a_compiled_graph_calls_it_as_it_is():
    limits, barriers = limits_and_barriers(5)
    layer, raw = hn.layers.Projection(limits & hn.Relaxed(barriers)), draw(4, 3)
    y = layer(raw)
    torch.testing.assert_close(torch.compile(layer, backend="eager")(raw), y, rtol=0, atol=1e-12)


def test_refusals():
    limits, barriers = limits_and_barriers(5)
    relaxed = hn.Relaxed(barriers)
    for method in ("aff", "rayen", "dc3"):
        with pytest.raises(hn.errors.UnsupportedSetError):
            hn.HardNet(torch.nn.Identity(), limits & relaxed, method=method)
    for options in ({"strict": True}, {"gradient": "tangent"}, {"on_infeasible": "nearest"}):
        with pytest.raises(hn.errors.OptionError, match="give way"):
            hn.layers.Projection(limits & relaxed, **options)
    for wrong in (hn.Ball(torch.zeros(3), 1.0), relaxed, limits & relaxed):
        with pytest.raises(hn.errors.UnsupportedSetError, match="affine rows"):
            hn.Relaxed(wrong)
    for weight, error in ((0.0, hn.errors.BoundsError), (-1.0, hn.errors.BoundsError), (abs, hn.errors.DTypeError)):
        with pytest.raises(error, match="weight"):
            hn.Relaxed(barriers, weight=weight)
    with pytest.raises(hn.errors.ShapeError, match="weight"):
        hn.check(hn.Relaxed(barriers, weight=[1.0, 2.0]), draw(2, 3))
    with pytest.raises(hn.errors.UnsupportedSetError):
        hn.HardNet(torch.nn.Identity(), hn.Ball(torch.zeros(3).double(), 1.0) & relaxed)
    with pytest.raises(hn.errors.UnsupportedSetError, match="give way"):
        torch.func.vmap(hn.layers.Projection(limits & relaxed))(draw(2, 3))


def compromise(seed, n, others, *, hard=False, boxed=False):
    """Two rows along one direction contradict each other by construction, the `others` and a box hold beside them.

    The first of the two may not give way if `hard`; else the two share the gap by their weights. Returns the set, the
    rows that the answer satisfies, with the level of the compromise as an equality, and the direction's own numbers.
    """
    weight, low = 1 + 4 * draw_uniform(2 + others, seed=seed), draw(1, seed=seed + 1)
    high, along = low + 0.1 + 2 * draw_uniform(1, seed=seed + 2), draw(1, n, seed=seed + 3)
    level = low if hard else (weight[0] * low + weight[1] * high) / (weight[0] + weight[1])
    common = draw(n, seed=seed + 4)
    common = common + along[0] * (level - along[0] @ common) / along[0].square().sum()
    A, room = draw(others, n, seed=seed + 5), 2 * draw_uniform(others, seed=seed + 6)
    upper = A @ common + room
    reach = 0.1 + 3 * draw_uniform(n, seed=seed + 7)
    soft = hn.Affine(torch.cat([along, A]), lower=torch.cat([high, torch.full_like(upper, -torch.inf)]),
                     upper=torch.cat([high, upper]))  # fmt: skip
    first = hn.Affine(along, upper=low)
    constraint = (first if hard else hn.Relaxed(first, weight=weight[:1])) & hn.Relaxed(soft, weight=weight[1:])
    rows = [torch.cat([along, A]), torch.cat([level, torch.full_like(upper, -torch.inf)]), torch.cat([level, upper])]
    if boxed:
        constraint = hn.Box(common - reach, common + reach) & constraint
        corners = (torch.eye(n, dtype=torch.float64), common - reach, common + reach)
        rows = [torch.cat(pair) for pair in zip(rows, corners, strict=True)]
    return constraint, rows, common


@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_rows_that_need_no_slack_do_not_bind_wherever_raw_is(seed, hard, boxed):
    """A row that was active on the way from raw to the least slack, and carries none of it, is free at the answer."""
    n = 2 + seed % 3
    constraint, rows, common = compromise(100 * seed, n, 1 + seed % 4, hard=hard, boxed=boxed)
    away = torch.tensor([1.0, 3, 10, 30, 100, 300], dtype=torch.float64).repeat_interleave(4).unsqueeze(-1)
    raw = (common + away * torch.nn.functional.normalize(draw(24, n, seed=seed), dim=-1)).requires_grad_()
    y = hn.layers.Projection(constraint)(raw)
    expected = torch.stack([nearest_point(point, *rows) for point in raw.detach()])
    assert ((y - expected).abs().amax(-1, keepdim=True) <= 1e-11 * (1 + away)).all()
    direction = draw(n, seed=seed + 1)
    assert hn.check(constraint, y).ok
    (gradient,) = torch.autograd.grad((y @ direction).sum(), raw)
    step, axes = 1e-5, torch.eye(n, dtype=torch.float64)
    nearest = lambda points: torch.stack([nearest_point(point, *rows) @ direction for point in points])
    ahead, behind = (torch.stack([nearest(p + s * step * axes) for p in raw.detach()]) for s in (1, -1))
    here = (expected @ direction).unsqueeze(-1)
    smooth = ((ahead - here) - (here - behind)).abs() <= 1e-3 * step  # both sides share their active rows
    assert smooth.double().mean() > 0.9
    assert ((gradient - (ahead - behind) / (2 * step)).abs()[smooth] <= 1e-5).all()


def drawn(generator):
    """Soft rows with whole coefficients, some of which contradict each other, at times beside a box."""
    whole = lambda low, high, *shape: torch.randint(low, high, shape, generator=generator).double()
    n, m = int(whole(1, 5)), int(whole(2, 7))
    A, lower = whole(-3, 4, m, n), whole(-3, 3, m)
    A[A.abs().sum(-1) == 0, 0] = 1.0
    upper = torch.where(whole(0, 3, m) > 1, torch.inf, lower + whole(0, 3, m))
    lower = torch.where((whole(0, 3, m) > 1) & upper.isfinite(), -torch.inf, lower)
    soft = hn.Relaxed(hn.Affine(A, lower=lower, upper=upper), weight=whole(1, 6, m))
    return (hn.Box(-2.0, 2.0) & soft) if whole(0, 2) > 0 else soft, n


@pytest.mark.parametrize("seed", range(30))
def test_the_certificate_needs_no_lucky_start(seed):
    """The least slack is the same from y, from raw and from 0, and the answer is in the set that it leaves."""
    generator = torch.Generator().manual_seed(seed)
    constraint, n = drawn(generator)
    raw = 10.0 ** (seed % 4 - 1) * torch.randn(6, n, generator=generator, dtype=torch.float64)
    y = hn.layers.Projection(constraint)(raw)
    assert hn.check(constraint, y).ok
    rows = constraint.structure(constraint.numbers(None, raw), raw)
    found = [least_slack(point, rows) for point in (y, raw, torch.zeros_like(raw))]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-9, atol=1e-9)


def test_a_compromise_that_cancels_is_known_to_the_rounding_of_what_gave_way():
    """Rows of small integers whose compromise is 0: nothing in the answer says that they gave way by one."""
    A = torch.tensor([[2.0], [1.0], [1.0], [-2.0]], dtype=torch.float64)
    lower = torch.tensor([-torch.inf, 0.0, -torch.inf, -torch.inf], dtype=torch.float64)
    upper = torch.tensor([-1.0, 0.0, 1.0, -1.0], dtype=torch.float64)
    raw = torch.arange(-3.0, 4.0, dtype=torch.float64).unsqueeze(-1) * 100
    for weight in ([4.0, 5.0, 5.0, 4.0], [3.0, 1.0, 2.0, 3.0]):
        constraint = hn.Relaxed(hn.Affine(A, lower=lower, upper=upper), weight=weight)
        y = hn.layers.Projection(constraint)(raw)
        assert hn.check(constraint, y).ok
        assert hn.check(constraint, torch.full_like(raw, 2.0**-53)).ok
        assert not hn.check(constraint, torch.full_like(raw, 1e-7)).satisfied.any()
