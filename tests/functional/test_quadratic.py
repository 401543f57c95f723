"""One convex quadratic: known answers, gradients of every number, empty sets and convexity."""

import warnings

import pytest
import torch

import hardnet as hn
from hardnet.errors import InfeasibleError, NonFiniteError, SampleError, ShapeError
from hardnet.functional import project_quadratic
from hardnet.functional.quadratic import diagonalize
from hardnet.solvers import Status
from tests.bounds import of_differences, of_digits
from tests.draws import draw, draw_uniform, tensor

D = torch.float64
ELLIPSE = (torch.diag(torch.tensor([0.5, 2.0], dtype=D)), torch.zeros(2, dtype=D), -1.0)


def numbers(batch: int, n: int, rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    root = draw(batch, n, rank, seed=1)
    return root @ root.mT, draw(batch, n, seed=2), -torch.linspace(0.5, 2, batch, dtype=D)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [([4.0, 0], [2, 0]), ([0.0, 3], [0, 1]), ([2.0, 2], [1.38564093, 0.72111012]), ([0.5, 0.5], [0.5, 0.5])],
)
def test_known_answers(raw, expected):
    y = project_quadratic(torch.tensor(raw, dtype=D), *ELLIPSE)
    torch.testing.assert_close(y, torch.tensor(expected, dtype=D), rtol=0, atol=of_digits(8))


def test_known_jacobian():
    jacobian = torch.autograd.functional.jacobian(
        lambda raw: project_quadratic(raw, *ELLIPSE), torch.tensor([2.0, 2], dtype=D)
    )
    expected = torch.tensor([[0.479981, -0.230576], [-0.230576, 0.110765]], dtype=D)
    torch.testing.assert_close(jacobian, expected, rtol=0, atol=of_digits(6))


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e8])
@pytest.mark.parametrize("rank", [2, 5])
def test_lands_on_the_boundary_and_the_step_is_normal_to_it(scale, rank):
    raw, (P, q, r) = scale * draw(40, 5), numbers(40, 5, rank)
    y = project_quadratic(raw, P, q, r)
    value = ((P @ y.unsqueeze(-1)).squeeze(-1) / 2 + q).mul(y).sum(-1) + r
    size = (P.abs() @ y.abs().unsqueeze(-1)).squeeze(-1).mul(y.abs()).sum(-1) + (q * y).abs().sum(-1) + r.abs()
    assert bool((value <= 1e-13 * size).all())
    normal = (P @ y.unsqueeze(-1)).squeeze(-1) + q
    moved = (raw != y).any(-1)
    angle = torch.nn.functional.cosine_similarity((raw - y)[moved], normal[moved], dim=-1)
    torch.testing.assert_close(angle, torch.ones_like(angle), rtol=0, atol=1e-9)
    assert moved.sum() >= 20


def test_gradcheck_to_raw_and_every_number():
    raw, (P, q, r) = 2 * draw(4, 3), numbers(4, 3, 3)
    leaves = [leaf.requires_grad_() for leaf in (raw, P, q, r)]
    assert torch.autograd.gradcheck(lambda raw, P, q, r: project_quadratic(raw, (P + P.mT) / 2, q, r), leaves)


def test_constant_numbers_receive_the_sum_over_the_batch():
    raw, (P, q, r) = 2 * draw(4, 3), numbers(1, 3, 3)
    one = [leaf[0].clone().requires_grad_() for leaf in (P, q, r)]
    each = [leaf.expand(4, *leaf.shape[1:]).clone().requires_grad_() for leaf in (P, q, r)]
    shared = torch.autograd.grad(project_quadratic(raw, *one).square().sum(), one)
    apart = torch.autograd.grad(project_quadratic(raw, *each).square().sum(), each)
    for a, b in zip(shared, apart, strict=True):
        torch.testing.assert_close(a, b.sum(0))


def test_a_kept_factor_changes_nothing():
    raw, (P, q, r) = 2 * draw(6, 3), numbers(1, 3, 2)
    kept = project_quadratic(raw, P[0], q[0], r[0], factor=diagonalize(P[0]))
    assert torch.equal(kept, project_quadratic(raw, P[0], q[0], r[0]))


def test_a_half_space_is_the_quadratic_without_curvature():
    raw, q = torch.tensor([[3.0, 4]], dtype=D), torch.tensor([1.0, 0], dtype=D)
    y = project_quadratic(raw, torch.zeros(2, 2, dtype=D), q, -1.0)
    torch.testing.assert_close(y, torch.tensor([[1.0, 4]], dtype=D))


def test_a_single_point_is_found():
    y = project_quadratic(3 + draw(5, 2).abs(), 2 * torch.eye(2, dtype=D), torch.zeros(2, dtype=D), 0.0)
    assert y.abs().max().item() < 1e-10


def test_float32_is_right_to_its_rounding_and_keeps_inside_points():
    raw, (P, q, r) = 2 * draw(30, 4), numbers(30, 4, 4)
    exact = project_quadratic(raw.float().double(), P.float().double(), q.float().double(), r.float().double())
    single = project_quadratic(raw.float(), P.float(), q.float(), r.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, exact.float(), rtol=2e-7, atol=2e-7)
    assert torch.equal(project_quadratic(single, P.float(), q.float(), r.float()), single)


def test_empty_sets_are_named_or_nan():
    raw, (P, q, r) = draw(3, 2), numbers(3, 2, 2)
    r = r.clone()
    r[1] = 1e3
    with pytest.raises(InfeasibleError, match=r"the set is empty: .* in sample 1") as caught:
        project_quadratic(raw, P, q, r)
    assert caught.value.samples == [1]
    y = project_quadratic(raw.requires_grad_(), P, q, r, on_infeasible="nan")
    assert y.isnan().any(-1).tolist() == [False, True, False]
    (grad,) = torch.autograd.grad(y[[0, 2]].sum(), raw)
    assert bool(grad.isfinite().all())


def test_other_errors():
    raw, (P, q, r) = draw(3, 2), numbers(3, 2, 2)
    saddle = P.clone()
    saddle[2] = torch.diag(torch.tensor([1.0, -1], dtype=D))
    with pytest.raises(SampleError, match=r"P: expected a positive semi.* got the eigenvalue -1 in sample 2"):
        project_quadratic(raw, saddle, q, r)
    with pytest.raises(ShapeError, match="q: expected shape"):
        project_quadratic(raw, P, draw(3), r)
    with pytest.raises(ShapeError, match="P: expected shape"):
        project_quadratic(raw, draw(3, 3), q, r)
    bad = raw.clone()
    bad[0] = torch.nan
    with pytest.raises(NonFiniteError, match="in sample 0"):
        project_quadratic(bad, P, q, r)
    broken = P.clone()
    broken[0] = torch.nan
    y = project_quadratic(raw, broken, q, r, on_invalid="nan")
    assert torch.equal(y[1:], project_quadratic(raw, P, q, r)[1:])


PARABOLA = (torch.diag(torch.tensor([1.0, 0.0], dtype=D)), torch.tensor([0.0, -1.0], dtype=D), 0.0)


def singular(batch: int, n: int, rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quadratics with q outside the range of P and a positive value at the origin: paraboloids."""
    return numbers(batch, n, rank)[0], draw(batch, n, seed=2), torch.linspace(0.5, 2, batch, dtype=D)


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 1e3, 1e6, 1e9, 1e12])
@pytest.mark.parametrize("make", [lambda: PARABOLA, lambda: singular(200, 4, 2), lambda: singular(200, 3, 0)])
def test_paraboloids_are_never_empty_and_are_hit_exactly(size, make):
    P, q, r = make()
    raw = size * draw(200, P.shape[-1], seed=4)
    y = project_quadratic(raw, P, q, r)
    Py = (P @ y.unsqueeze(-1)).squeeze(-1)
    value = (Py / 2 + q).mul(y).sum(-1) + r
    terms = (P.abs() @ y.abs().unsqueeze(-1)).squeeze(-1).mul(y.abs()).sum(-1) / 2 + (q * y).abs().sum(-1)
    # both eigenbasis changes and the sums round at most n terms each
    assert (value / (terms + torch.as_tensor(r, dtype=D).abs())).max().item() <= 8 * P.shape[-1] * 2.0**-52


def test_the_parabola_at_the_point_that_was_called_empty():
    y = project_quadratic(torch.tensor([1e-3, -3.0], dtype=D), *PARABOLA)
    torch.testing.assert_close(y, torch.tensor([2.5e-4, 3.125e-8], dtype=D), rtol=1e-6, atol=0)


@pytest.mark.parametrize("exponent", [-60, -30, 30, 60])
def test_a_power_of_two_as_unit_changes_no_bit(exponent):
    s, raw, (P, q, r) = 2.0**exponent, 3 * draw(30, 4), numbers(30, 4, 3)
    found = project_quadratic(s * raw, P / s, q, s * r)
    assert torch.equal(found / s, project_quadratic(raw, P, q, r))


@pytest.mark.parametrize("distance", [1e4, 1e8, 1e12])
def test_far_away_from_an_ellipsoid_the_answer_stays_exact(distance):
    raw, (P, q, r) = distance * draw(40, 4), numbers(40, 4, 4)
    y = project_quadratic(raw, P, q, r)
    normal = (P @ y.unsqueeze(-1)).squeeze(-1) + q
    unit = normal / torch.linalg.vector_norm(normal, dim=-1, keepdim=True)
    way = (raw - y) / torch.linalg.vector_norm(raw - y, dim=-1, keepdim=True)
    condition = torch.linalg.cond(P).unsqueeze(-1)
    assert ((way - unit).abs() / condition).max().item() <= 64 * 2.0**-52
    value = (normal + q).mul(y).sum(-1) / 2 + r
    terms = (P.abs() @ y.abs().unsqueeze(-1)).squeeze(-1).mul(y.abs()).sum(-1) / 2 + (q * y).abs().sum(-1) + r.abs()
    assert (value.abs() / terms).max().item() <= 8 * 4 * 2.0**-52


def one_sample(seed: int = 3) -> tuple[torch.Tensor, ...]:
    P, q, r = numbers(1, 3, 3)
    return 2 * draw(3, seed=seed), P[0], q[0], r[0]


@pytest.mark.parametrize("which", range(4))
def test_transforms_agree_with_reverse_mode(which):
    leaves = one_sample()
    weight = draw(3, seed=9)

    def loss(leaf):
        return (project_quadratic(*leaves[:which], leaf, *leaves[which + 1 :]) * weight).sum()

    expected = torch.autograd.functional.jacobian(loss, leaves[which])
    expected = (expected + expected.mT) / 2 if which == 1 else expected
    for transform in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd):
        found = transform(loss)(leaves[which])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    step = torch.linspace(-1, 2, leaves[which].numel(), dtype=D).reshape(leaves[which].shape)
    _, moved = torch.func.jvp(loss, (leaves[which],), (step,))
    torch.testing.assert_close(moved, (expected * step).sum(), rtol=0, atol=1e-11)


def test_second_derivatives_agree_with_differences():
    raw, *rest = one_sample()
    weight = draw(3, seed=9)

    def gradient(leaf):
        return torch.func.grad(lambda point: (project_quadratic(point, *rest) * weight).sum())(leaf)

    hessian = torch.func.jacfwd(gradient)(raw)
    step = 1e-5
    for i in range(3):
        shift = step * torch.eye(3, dtype=D)[i]
        expected = (gradient(raw + shift) - gradient(raw - shift)) / (2 * step)
        bound = of_differences(step, gradient(raw).abs().max())
        torch.testing.assert_close(hessian[:, i], expected, rtol=0, atol=bound)


def test_mapped_compiled_and_exported_give_the_eager_answer():
    raw, (P, q, r) = 3 * draw(9, 3), numbers(1, 3, 2)
    raw[4] = 0.0
    factor = diagonalize(P[0])
    eager = project_quadratic(raw, P[0], q[0], r[0], factor=factor)

    def call(point):
        return project_quadratic(point, P[0], q[0], r[0], factor=factor)

    mapped = torch.vmap(call)(raw)
    torch.testing.assert_close(mapped, eager, rtol=0, atol=1e-14)
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(raw), eager, rtol=0, atol=1e-14)
    for one in (mapped, compiled(raw), eager):
        assert torch.equal(one[4], raw[4])

    class Layer(torch.nn.Module):
        def forward(self, point: torch.Tensor) -> torch.Tensor:
            return project_quadratic(point, P[0], q[0], r[0])

    program = torch.export.export(Layer(), (raw,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    torch.testing.assert_close(program.module()(raw[:5]), eager[:5], rtol=0, atol=1e-14)


@pytest.mark.parametrize("n", [2, 6])
def test_curvatures_of_every_size_from_every_distance(n):
    """Where small curvatures matter last, Newton's multiplier grows slowly, half a step at a time, but converges."""
    values = 10.0 ** (-14 * draw_uniform(400, n, seed=1))
    raw = draw(400, n, seed=2) * 10.0 ** (14 * draw_uniform(400, 1, seed=3))
    q, r = torch.zeros(n, dtype=D), -(10.0 ** (-8 * draw_uniform(400, seed=4)))
    y = project_quadratic(raw, torch.diag_embed(values), q, r)
    moved = (y != raw).any(-1)
    value = (values * y * y).sum(-1) / 2 + r
    assert moved.sum() >= 300
    # on the boundary to rounding of its terms, which are at most twice r there
    assert (value[moved].abs() <= 64 * n * 2.0**-52 * r[moved].abs()).all()
    mu = ((raw - y) * values * y).sum(-1) / (values * y).square().sum(-1)
    expected = raw / (1 + mu.unsqueeze(-1) * values)
    assert ((y - expected)[moved].abs() <= 1e-9 * y[moved].abs().amax(-1, keepdim=True)).all()


@pytest.mark.parametrize("far", [1.0, 1e10, 1e100])
def test_a_root_at_zero_has_terms_of_any_size(far):
    """``y^2 <= y``: from below the answer is 0, whose terms are no measure of rounding."""
    P, q = torch.tensor([[2.0]], dtype=D), torch.tensor([-1.0], dtype=D)
    raw = -far * draw_uniform(200, 1).clamp_min(1e-3)
    y = project_quadratic(raw, P, q, 0.0)
    assert (y.abs() <= 1e-60 * far).all()
    assert hn.check(hn.Quadratic(P, q, 0.0), y).ok


@pytest.mark.parametrize("far", [1.0, 1e10])
def test_the_solution_tells_what_the_layer_gives(far):
    raw, (P, q, r) = far * draw(40, 5), numbers(40, 5, 3)
    numbers_, good = {"P": P, "q": q, "r": r.clone()}, torch.arange(40) >= 3
    raw[0, 0] = torch.nan
    P[1] = -P[1]
    q[2], numbers_["r"][2] = 0.0, 1.0
    constraint = hn.Quadratic(*(lambda x, name=name: x[name] for name in ("P", "q", "r")))
    layer = hn.layers.HardNetCvx(constraint, on_infeasible="nan", on_invalid="nan")
    found = layer.solve(raw, numbers_)
    assert found.status.tolist() == [Status.INVALID, Status.INVALID, Status.INFEASIBLE] + [Status.SOLVED] * 37
    assert torch.equal(found.y[good], layer(raw, numbers_)[good])
    y, mu = found.y[good], found.dual[good]
    normal = (P[good] @ y.unsqueeze(-1)).squeeze(-1) + q[good]
    size = raw[good].abs().amax(-1, keepdim=True)
    assert ((raw[good] - y - mu * normal).abs() <= 1e-11 * size * (1 + (mu * P[good].abs().sum(-1)).abs())).all()
    assert (found.residual[good] <= 16 * 2.0**-52).all()


@pytest.mark.parametrize("exponent", [150, 155, 200, 300, 308])
def test_values_beyond_float64_are_never_taken_for_inside(exponent):
    raw = 10.0**exponent * torch.tensor([[1.0, 0.7], [-0.3, 1.0], [-1.0, -0.2]], dtype=D)
    eye, zero = torch.eye(2, dtype=D), torch.zeros(2, dtype=D)
    one, paraboloid = hn.Quadratic(eye, zero, -1.0), hn.Quadratic(torch.diag(tensor(1.0, 0.0)), tensor(0.0, -1.0), 0.0)
    for constraint in (one, one & hn.Quadratic(2 * eye, zero, -1.0), paraboloid, hn.scaled(one, zero, 1 + zero)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                y = hn.layers.HardNetCvx(constraint)(raw)
            except SampleError:
                continue
        assert said or hn.check(constraint, y).ok


@pytest.mark.parametrize("seed", range(6))
def test_outputs_of_different_units_meet_their_row(seed):
    """Eigenvectors mix units: turning the answer back cost the small outputs digits, and the row was missed by them."""
    n = 4 + seed % 2
    root, q, inside = draw(n, n, seed=seed), draw(n, seed=seed + 10), draw(n, seed=seed + 20)
    P = root @ root.mT
    natural = hn.Quadratic((P + P.mT) / 2, q, -(inside @ P @ inside / 2 + q @ inside) - 0.1)
    std = 10 ** (3 * (2 * torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1))
    constraint = hn.scaled(natural, 0.0, std)
    raw = inside / std + draw(64, n, seed=seed + 30) * 100 * (inside / std).abs().max()
    for y in (hn.layers.LAYERS["cvx"](constraint)(raw), torch.func.vmap(hn.layers.LAYERS["cvx"](constraint))(raw)):
        assert hn.check(constraint, y).ok
