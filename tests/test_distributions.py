"""Distributions on C(x): they integrate to one, samples follow the density, every sample holds, gradients are right."""

import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal, StudentT, TransformedDistribution
from torch.distributions.transforms import AffineTransform

import hardnet as hn
from tests.draws import draw, draw_uniform, tensor

F64 = torch.float64
Feasible = hn.distributions.Feasible


def normal(d, *batch, std=1.0, dtype=F64, mean=0.0):
    return Independent(Normal(torch.full((*batch, d), mean, dtype=dtype), std), 1)


def rows_of(x):
    """(*batch, 2, 2), turned by x."""
    angle = x[..., 0]
    return torch.stack([torch.stack([angle.cos(), angle.sin()], -1), torch.stack([-angle.sin(), angle.cos()], -1)], -2)


def lorentz():
    return hn.SecondOrderCone(tensor([1.0, 0, 0], [0, 1.0, 0]), torch.zeros(2, dtype=F64), tensor(0.0, 0, 1), 0.0)


def matrix_disc():
    return hn.LMI(torch.eye(2, dtype=F64), tensor([[1.0, 0], [0, -1.0]], [[0, 1.0], [1.0, 0]]))


def ellipse():
    return hn.Quadratic(tensor([2.0, 0.3], [0.3, 1.0]), tensor(0.3, 0.2), -1.0)


def triangle():
    return hn.Affine(tensor([-1.0, 0.0], [0.0, -1.0], [1.0, 2.0]), upper=tensor(0.0, 0.5, 1.0))


SETS = {  # each with the dimension of its affine hull
    "interval": (lambda: hn.Box([-1.0], [3.0]), 1),
    "half-line": (lambda: hn.Box([2.0]), 1),
    "chord": (lambda: ellipse() & hn.Equality([[1.0, 1.0]], 0.3), 1),
    "triangle": (triangle, 2),
    "disc": (lambda: hn.Ball([1.0, 2.0], 0.5), 2),
    "cut disc": (lambda: hn.Ball([0.0, 0.0], 1.0) & hn.Affine([[1.0, 1.0]], upper=0.4), 2),
    "ellipse": (ellipse, 2),
    "matrices": (matrix_disc, 2),
    "simplex": (lambda: hn.Simplex(3), 2),
    "strip": (lambda: hn.Affine([[1.0, -1.0]], lower=-1.0, upper=1.0), 2),
    "plane": (lambda: hn.Equality([[1.0, 1.0, 1.0]], 1.0), 2),
    "cone": (lorentz, 3),
    "transport": (lambda: hn.Transport([0.6, 0.4], [0.3, 0.3, 0.4]), 2),
}


@pytest.mark.parametrize("name", SETS)
def test_every_sample_holds_and_comes_back_to_its_latent(name):
    make, d = SETS[name]
    constraint = make()
    torch.manual_seed(0)
    distribution = Feasible(normal(d, std=2.0), constraint)
    y, z = distribution.sample_with_latent((500,))
    assert hn.check(constraint, y).ok
    assert distribution.support.check(y).all()
    torch.testing.assert_close(distribution.latent(y), z, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(distribution.log_prob(y), distribution.log_prob(y, z), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SETS)
def test_log_prob_is_the_change_of_variables_by_autodiff(name):
    """``log p(y) = log p(z) - log |det d(N'y)/dz|``, with N any orthonormal basis of the samples' directions."""
    make, d = SETS[name]
    torch.manual_seed(1)
    base = normal(d)
    distribution = Feasible(base, make())
    images = distribution.image(torch.eye(d, dtype=F64)) - distribution.image(torch.zeros(d, dtype=F64))
    basis = torch.linalg.qr(images.mT).Q
    for z in 2 * torch.randn(5, d, dtype=F64):
        jacobian = torch.autograd.functional.jacobian(lambda z: basis.mT @ distribution.image(z), z)
        expected = base.log_prob(z) - torch.linalg.slogdet(jacobian).logabsdet
        torch.testing.assert_close(distribution.log_prob(distribution.image(z)), expected, rtol=1e-9, atol=1e-9)


def integral(distribution, d, half, points):
    """The density over a grid of cells of ``c + N w, |w|_inf <= half``, by the middle of each."""
    images = distribution.image(torch.eye(d, dtype=F64)) - distribution.image(torch.zeros(d, dtype=F64))
    basis = torch.linalg.qr(images.mT).Q
    middle = (torch.arange(points, dtype=F64) + 0.5) * (2 * half / points) - half
    w = torch.stack(torch.meshgrid(*[middle] * d, indexing="ij"), -1).reshape(-1, d)
    density = distribution.log_prob(distribution.center + w @ basis.mT).exp()
    return density.sum().item() * (2 * half / points) ** d


@pytest.mark.parametrize(
    ("name", "half", "points", "off"),
    [
        ("interval", 3.0, 4000, 1e-6),
        ("half-line", 60.0, 40000, 1e-4),
        ("chord", 3.0, 4000, 1e-6),
        ("triangle", 2.5, 500, 1e-3),
        ("disc", 0.6, 500, 1e-3),
        ("cut disc", 2.0, 500, 1e-3),
        ("ellipse", 3.0, 500, 1e-3),
        ("matrices", 1.1, 500, 1e-3),
        ("simplex", 1.0, 500, 1e-3),
        ("strip", 9.0, 900, 1e-3),
        ("plane", 8.0, 400, 1e-6),
        ("cone", 9.0, 90, 1e-3),
    ],
)
def test_the_density_integrates_to_one(name, half, points, off):
    make, d = SETS[name]
    base = MultivariateNormal(0.3 * torch.ones(d, dtype=F64), torch.eye(d, dtype=F64) + 0.3)
    assert integral(Feasible(base, make()), d, half, points) == pytest.approx(1.0, abs=off)


@pytest.mark.parametrize("name", ["interval", "half-line", "chord"])
def test_samples_on_a_line_follow_the_density(name):
    """Kolmogorov and Smirnov: 20000 samples stray less than 1.95 / sqrt(20000) from it but once in a thousand times."""
    make, _ = SETS[name]
    torch.manual_seed(2)
    distribution = Feasible(normal(1, std=1.5, mean=0.4), make())
    samples = distribution.sample((20000,))
    along = distribution.image(tensor(1.0)) - distribution.center
    along = along / along.norm()
    place = ((samples - distribution.center) @ along).sort().values
    edges = torch.linspace(place[0].item() - 0.5, place[-1].item() + 0.5, 40001, dtype=F64)
    middle = (edges[1:] + edges[:-1]) / 2
    mass = distribution.log_prob(distribution.center + middle[:, None] * along).exp() * edges.diff()
    below = mass.cumsum(0)[torch.searchsorted(edges[1:].contiguous(), place).clamp_max(len(mass) - 1)]
    empirical = (torch.arange(len(place), dtype=F64) + 0.5) / len(place)
    assert (below - empirical).abs().max() < 1.95 / len(place) ** 0.5


@pytest.mark.parametrize("name", ["triangle", "cut disc", "matrices"])
def test_samples_in_the_plane_fall_into_cells_as_the_density_says(name):
    """Chi squared over 64 cells: the statistic of 63 degrees of freedom exceeds 104 but once in a thousand times."""
    make, _ = SETS[name]
    torch.manual_seed(3)
    distribution = Feasible(normal(2), make())
    samples, cells, fine = distribution.sample((20000,)), 8, 60
    low, high = samples.amin(0) - 0.05, samples.amax(0) + 0.05
    middle = (torch.arange(cells * fine, dtype=F64) + 0.5) / (cells * fine)
    grid = torch.stack(torch.meshgrid(middle, middle, indexing="ij"), -1) * (high - low) + low
    mass = distribution.log_prob(grid).exp() * ((high - low) / (cells * fine)).prod()
    expected = len(samples) * mass.reshape(cells, fine, cells, fine).sum((1, 3)).flatten()
    index = ((samples - low) / (high - low) * cells).long()
    counted = torch.bincount(index[:, 0] * cells + index[:, 1], minlength=cells * cells).double()
    often = expected > 5
    statistic = ((counted - expected).square() / expected)[often].sum() + (counted - expected)[
        ~often
    ].sum().square() / 5
    assert statistic < 104


def moving(x):
    """A box, a turned strip and a ball that all depend on x (*batch, 2)."""
    box = hn.Box(lambda x: -1 - x.square(), lambda x: 1 + x.abs())
    return box & hn.Affine(rows_of, upper=1.2) & hn.Ball(lambda x: 0.1 * x, lambda x: 1 + x[..., 0].square())


def test_sets_of_x_are_sample_by_sample_those_of_one_x():
    x, z = draw(7, 2, seed=3), draw(7, 2, seed=4)
    together = Feasible(normal(2, 7), moving(x), x)
    y = together.image(z)
    assert hn.check(moving(x), y, x).ok
    for i in range(7):
        alone = Feasible(normal(2), moving(x), x[i])
        torch.testing.assert_close(alone.center, together.center[i], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(alone.image(z[i]), y[i], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(alone.log_prob(y[i]), together.log_prob(y)[i], rtol=1e-6, atol=1e-6)
    many = together.sample((5, 4))
    assert many.shape == (5, 4, 7, 2)
    assert together.log_prob(many).shape == (5, 4, 7)
    wider = together.expand((3, 7))
    assert wider.sample().shape == (3, 7, 2)
    torch.testing.assert_close(wider.log_prob(y.expand(3, 7, 2))[1], together.log_prob(y), rtol=0, atol=0)


def test_a_base_without_the_batch_of_x_spreads():
    x = draw(7, 2, seed=3)
    distribution = Feasible(normal(2, 1), moving(x), x)
    assert distribution.batch_shape == (7,)
    y, z = distribution.sample_with_latent((3,))
    assert y.shape == z.shape == (3, 7, 2)
    assert not torch.equal(z[:, 0], z[:, 1])
    assert distribution.rsample().shape == (7, 2)


def curved_of(x):
    return (
        hn.Quadratic(lambda x: torch.eye(2, dtype=x.dtype).expand(*x.shape[:-1], 2, 2) * (1 + x[..., :1, None] ** 2),
                     lambda x: 0.1 * x, -1.0)
        & hn.SecondOrderCone(torch.eye(2, dtype=F64), lambda x: 0.1 * x, torch.zeros(2, dtype=F64), 1.3)
        & hn.LMI(torch.eye(2, dtype=F64), lambda x: torch.stack([torch.eye(2, dtype=x.dtype).flip(0) * 0.5] * 2)
                 .expand(*x.shape[:-1], 2, 2, 2) * (1 + 0.1 * x[..., :1, None, None]))
    )  # fmt: skip


@pytest.mark.parametrize("make", [moving, curved_of], ids=["rows", "curved"])
@pytest.mark.parametrize("given", [False, True])
def test_gradients_reach_the_base_the_center_and_the_numbers_of_the_set(make, given):
    x, z = draw(3, 2, seed=3), draw(3, 2, seed=4)
    point = 0.05 * draw(3, 2, seed=5)

    def parts(x, z, point, mean):
        base = Independent(Normal(mean, 1.0), 1)
        distribution = Feasible(base, make(x), x, center=point if given else None)
        y = distribution.image(z + mean)
        return y, distribution.log_prob(0.1 * draw(3, 2, seed=11)), distribution.log_prob(y)

    inputs = [number.requires_grad_() for number in (x, z, point, 0.1 * draw(3, 2, seed=6))]
    assert torch.autograd.gradcheck(parts, inputs, atol=1e-5)


def test_an_affine_hull_that_turns_with_x():
    """``a(x)'y = b(x)`` beside a box: the basis moves smoothly, gradients are right, samples are on the plane."""
    constraint = hn.Equality(lambda x: (1 + 0.3 * x).unsqueeze(-2), lambda x: x[..., :1]) & hn.Box(-2.0, 2.0)
    x, z = 0.5 * draw(4, 3, seed=7), draw(4, 2, seed=8)
    distribution = Feasible(normal(2, 4), constraint, x)
    y = distribution.sample((50,))
    assert hn.check(constraint, y, x.expand(50, 4, 3)).ok
    place = lambda x: Feasible(normal(2, 4), constraint, x).image(z)
    assert torch.autograd.gradcheck(place, x.requires_grad_(), atol=1e-5)
    assert integral(Feasible(normal(2), constraint, x[0].detach()), 2, 5.0, 500) == pytest.approx(1, abs=1e-3)


def test_the_center_found_is_the_minimizer_and_moves_continuously():
    """Against the sum itself at points nearby, and along a path on which the box becomes a half-space."""
    distribution = Feasible(normal(2), triangle() & hn.Ball([0.0, 0.0], 2.0))
    A, b = tensor([-1.0, 0.0], [0.0, -1.0], [1.0, 2.0]), tensor(0.0, 0.5, 1.0)

    def value(y):
        ball = (4 - y.square().sum(-1)).log()
        return y.square().sum(-1) / 200 - (b - y @ A.mT).log().sum(-1) - ball

    near = distribution.center + 1e-3 * draw(200, 2, seed=9)
    assert (value(near) > value(distribution.center)).all()
    upper = 2.0 ** torch.linspace(0, 40, 2000, dtype=F64).unsqueeze(-1)
    centers = Feasible(normal(1, 2000), hn.Box(0.0, lambda x: x), upper).center
    assert (centers.diff(dim=0).abs() < 0.1).all()
    assert centers[-1].item() == pytest.approx(10.0, rel=1e-6)
    assert centers[0].item() == pytest.approx(0.5, abs=1e-3)


def test_far_samples_stay_inside_where_rounding_puts_them_on_the_boundary():
    constraint = hn.Box([-1.0, -1.0], [1.0, 0.1], name="limits")
    distribution = Feasible(Independent(StudentT(0.3, torch.zeros(2), 1e9), 1), constraint)
    torch.manual_seed(4)
    y, z = distribution.sample_with_latent((2000,))
    certificate = hn.check(constraint, y)
    assert certificate.ok
    assert certificate.max_violation == 0
    assert distribution.log_prob(y, z).isfinite().all()
    lost = distribution.log_prob(y).isinf()
    assert lost.any()
    assert not distribution.log_prob(y).isnan().any()


def test_float32_samples_hold_and_points_outside_have_no_density():
    constraint = hn.Simplex(4)
    distribution = Feasible(normal(3, dtype=torch.float32, std=3.0), constraint)
    y = distribution.sample((1000,))
    assert y.dtype == torch.float32
    assert hn.check(constraint, y).ok
    outside = torch.tensor([[0.5, 0.5, 0.5, -0.5], [0.3, 0.3, 0.3, 0.3], [torch.nan, 0.0, 0.0, 1.0]])
    assert torch.equal(distribution.log_prob(outside), torch.full((3,), -torch.inf))
    with torch.autocast("cpu", torch.bfloat16):
        assert hn.check(constraint, Feasible(normal(3, dtype=torch.float32), constraint).sample((100,))).ok


def test_a_center_that_is_given_learned_or_a_function():
    constraint, point = hn.Ball([0.0, 0.0], 1.0) & hn.Box(-0.5, None), tensor(0.2, 0.3)
    learned = torch.nn.Parameter(point.clone())
    distribution = Feasible(normal(2), constraint, center=learned)
    distribution.rsample((10,)).sum().backward()
    assert learned.grad.abs().min() > 0
    assert torch.equal(distribution.image(torch.zeros(2, dtype=F64)), point)
    other = Feasible(normal(2), constraint, tensor(0.1, 0.1), center=lambda x: 2 * x)
    torch.testing.assert_close(other.center, tensor(0.2, 0.2))
    assert integral(distribution, 2, 1.6, 500) == pytest.approx(1, abs=1e-3)
    again = Feasible(normal(2), constraint, center=Feasible(normal(2), constraint).center)
    torch.testing.assert_close(again.center, Feasible(normal(2), constraint).center, rtol=0, atol=0)


def test_deterministic_sample_is_the_image_of_the_mode():
    mean = draw(5, 2, seed=10)
    distribution = Feasible(Independent(Normal(mean, 1.0), 1), triangle())
    assert torch.equal(distribution.deterministic_sample(), distribution.image(mean))
    moved = TransformedDistribution(normal(2), AffineTransform(0.0, 2.0))
    with pytest.raises(hn.errors.UnsupportedSetError, match="mode"):
        Feasible(moved, triangle()).deterministic_sample()
    assert "triangle" in repr(Feasible(normal(2), hn.Box([0.0, 0.0], [1.0, 1.0], name="triangle")))


def flat_at_zero(x):
    return x[..., :2].abs()


REFUSED = {
    "union or own projection": lambda: Own(),
    "L1 ball": lambda: hn.L1Ball([0.0, 0.0], 1.0),
    "nonlinear": lambda: hn.Nonlinear(lambda y, x: y.square().sum(-1, keepdim=True), dim=2, upper=1.0),
    "relaxed": lambda: hn.Box([0.0, 0.0], 1.0) & hn.Relaxed(hn.Affine([[1.0, 1.0]], upper=-1.0)),
    "program": lambda: hn.Cvxpy(lambda y: [y <= 1], 2),
    "sparse": lambda: hn.Affine(torch.eye(2, dtype=F64).to_sparse_csr(), upper=1.0),
}


class Own(hn.sets.ConstraintSet):
    projectable = True
    dim = 2

    def residual(self, numbers, y):
        return y[..., :1].clamp_min(0)

    def scale(self, numbers, y):
        return y.abs().sum(-1, keepdim=True)


@pytest.mark.parametrize("name", REFUSED)
def test_sets_without_a_gauge_are_refused(name):
    with pytest.raises(hn.errors.UnsupportedSetError, match="constraint: expected a convex set"):
        Feasible(normal(2), REFUSED[name]())


def test_thin_and_empty_sets_wrong_centers_and_bases_are_refused_by_name():
    thin = hn.Affine([[1.0, 0.0]], upper=0.0) & hn.Affine([[1.0, 0.0]], lower=0.0) & hn.Box(-1.0, 1.0)
    with pytest.raises(hn.errors.UnsupportedSetError, match="interior relative to its equalities"):
        Feasible(normal(2), thin)
    x = tensor([1.0, 1.0], [0.0, 1.0])
    with pytest.raises(hn.errors.UnsupportedSetError, match=r"same dimension of C.x. at every x.* sample 1"):
        Feasible(normal(2, 2), hn.Box(lambda x: -flat_at_zero(x), flat_at_zero), x)
    tilted = hn.Affine([[1.0, 1.0]], upper=lambda x: x[..., :1]) & hn.Affine([[1.0, 1.0]], lower=0.0)
    with pytest.raises(hn.errors.UnsupportedSetError, match=r"interior.* sample 1"):
        Feasible(normal(2, 2), tilted & hn.Box(-1.0, 1.0), x)
    with pytest.raises(hn.errors.InfeasibleError, match="few"):
        Feasible(normal(2), hn.Affine([[1.0, 1.0]], upper=-3.0, name="few") & hn.Box(-1.0, 1.0))
    with pytest.raises(hn.errors.UnsupportedSetError, match="single point"):
        Feasible(normal(2), hn.Equality(torch.eye(2, dtype=F64), 0.0))
    box = hn.Box([-1.0, -1.0], [1.0, 1.0])
    for center, error in (
        (tensor(1.0, 0.0), "strictly inside"),
        (tensor(0.0), "shape"),
        (tensor(torch.nan, 0), "inside"),
    ):
        with pytest.raises(hn.errors.HardNetError, match=f"center: expected.*{error}"):
            Feasible(normal(2), box, center=center)
    with pytest.raises(hn.errors.BoundsError, match="sample 1"):
        Feasible(normal(2, 2), box, center=tensor([0.0, 0.0], [0.0, 2.0]))
    with pytest.raises(hn.errors.BoundsError, match="center"):
        Feasible(normal(1), hn.Equality([[1.0, 1.0]], 1.0), center=tensor(0.0, 0.0))
    beyond = hn.Equality([[1.0, 1.0]], 1.0) & hn.Affine([[2.0, 2.0]], upper=1.0)  # a row that the equality decides
    with pytest.raises(hn.errors.BoundsError, match="center"):
        Feasible(normal(1), beyond, center=tensor(0.5, 0.5))
    with pytest.raises(hn.errors.InfeasibleError):
        Feasible(normal(1), beyond)
    with pytest.raises(hn.errors.BoundsError, match="sample 1"):
        Feasible(normal(2, 2), hn.Box(-1.0, lambda x: x), tensor([1.0, 1.0], [1.0, torch.nan]), center=tensor(0.0, 0.0))
    with pytest.raises(hn.errors.ShapeError, match=r"event shape \(2,\).*Independent"):
        Feasible(Normal(torch.zeros(2, dtype=F64), 1.0), box)
    with pytest.raises(hn.errors.ShapeError, match=r"event shape \(2,\)"):
        Feasible(normal(3), hn.Simplex(3))
    with pytest.raises(hn.errors.DTypeError, match="base"):
        Feasible(torch.nn.Linear(2, 2), box)
    with pytest.raises(hn.errors.DTypeError, match="constraint"):
        Feasible(normal(2), None)
    with pytest.raises(hn.errors.BoundsError, match="reach"):
        Feasible(normal(2), box, reach=0.0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_random_polyhedra_of_any_size_and_place(seed, size):
    """Polyhedra about a point away from zero, from narrow to wide: samples hold, and nothing is NaN."""
    place = size * 10 * draw(4, seed=seed)
    A, room = draw(9, 4, seed=seed + 1), size * draw_uniform(9, seed=seed + 2) + 1e-3 * size
    K = draw(1, 4, seed=seed + 3)
    constraint = hn.Affine(A, upper=A @ place + room) & hn.Equality(K, K @ place)
    torch.manual_seed(seed)
    distribution = Feasible(normal(3, std=size), constraint, reach=10 * size)
    y, z = distribution.sample_with_latent((200,))
    assert hn.check(constraint, y).ok
    assert distribution.log_prob(y, z).isfinite().all()
