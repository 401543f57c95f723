"""Sets in scaled units: the same points, whatever the kind of set, its numbers and where they come from."""

import pickle

import pytest
import torch

import hardnet as hn
from tests.cases import (
    ball_of_x,
    cone,
    constant_rows,
    giving_way,
    matrix_inequality,
    moving_balance,
    moving_rows,
    quadratic,
    radius_of,
    wide_bound,
)
from tests.draws import draw

D = torch.float64


def smooth():
    return hn.sets.Smooth(4, inequality=curve, equality=plane, name="curve")


def nonlinear():
    return hn.Nonlinear(products, dim=4, lower=wide_below, upper=[3.0, 4.0], jacobian=slopes, name="products")


def learned_function():
    torch.manual_seed(0)
    return hn.Nonlinear(Bowl(), dim=4, upper=1.0, name="bowl")


class Bowl(torch.nn.Module):
    """``sum_i w_i y_i^2``, with learned weights."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(draw(4, seed=5).exp())

    def forward(self, y, x):
        return (self.weight * y.square()).sum(-1, keepdim=True)


def products(y, x):
    return torch.stack([y[..., 0] * y[..., 1], y[..., 2] * y[..., 3]], dim=-1)


def slopes(y, x):
    zero = torch.zeros_like(y[..., 0])
    rows = ([y[..., 1], y[..., 0], zero, zero], [zero, zero, y[..., 3], y[..., 2]])
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def wide_below(x):
    return -1 - x[..., :2].square()


def curve(y, x):
    return y.square().sum(-1, keepdim=True) - x[..., :1]


def plane(y, x):
    return y[..., :1] + y[..., 1:2] - 1


def wide(x):
    return 3 + x[..., :2].square()


def learned():
    return hn.Affine(torch.nn.Parameter(draw(2, 4, seed=3)), upper=torch.nn.Linear(4, 2).double(), name="learned")


SETS = {
    "affine": constant_rows,
    "moving": moving_rows,
    "equality": moving_balance,
    "learned": learned,
    "box": lambda: hn.Box(-1.0, 2.0, name="limits"),
    "moving-box": lambda: hn.Box(lower=-1.0, upper=wide_bound),
    "simplex": lambda: hn.Simplex(4, radius_of, name="shares"),
    "ball": ball_of_x,
    "quadratic": quadratic,
    "cone": cone,
    "lmi": matrix_inequality,
    "region": lambda: hn.sets.AffineOnRegion(draw(6, 4, seed=9), draw(4, 4, seed=4), 1.0),
    "relaxed": giving_way,
    "relaxed-box": lambda: hn.Relaxed(hn.Box(0.0, 1.0) & hn.Simplex(4), weight=torch.arange(1.0, 10.0)),
    "smooth": smooth,
    "nonlinear": nonlinear,
    "learned-function": learned_function,
    "polyhedron": lambda: (
        hn.Box(-1.0, 2.0) & hn.Affine(draw(2, 4, seed=5), upper=wide) & hn.Box(upper=1.5) & hn.Simplex(4, name="shares")
    ),
    "mixed": lambda: hn.sets.Intersection([ball_of_x(), hn.Box(-1.0, 1.0), quadratic()], name="joint"),
}


def data(n):
    generator = torch.Generator().manual_seed(7)
    x, z = (torch.randn(5, k, generator=generator, dtype=D) for k in (4, n))
    mean, std = 3 * torch.randn(n, generator=generator, dtype=D), torch.randn(n, generator=generator, dtype=D).exp()
    return x, z, mean, std


def coordinates(part):
    """How many of its first rows are bounds of single outputs, which are measured in scaled units."""
    return part.dim or 4 if isinstance(part, hn.Box | hn.Simplex) else 0


def in_units_of_y(constraint, residual, std):
    """The violations of a scaled set, with the coordinates of boxes brought back."""
    like, pieces = torch.zeros(1, len(std), dtype=D), []
    x = torch.zeros(1, 4, dtype=D)
    for part in constraint.parts:
        count = part.row_count(part.numbers(x, like), like)
        piece, residual = residual[..., :count], residual[..., count:]
        boxed = coordinates(part)
        pieces += [piece[..., :boxed] * std[:boxed], piece[..., boxed:]]
    return torch.cat(pieces, dim=-1)


@pytest.mark.parametrize("kind", SETS)
def test_the_same_violation_in_both_units(kind):
    constraint = SETS[kind]()
    x, z, mean, std = data(constraint.dim or 4)
    rewritten = hn.scaled(constraint, mean, std)
    there, here = constraint.violation(mean + std * z, x), rewritten.violation(z, x)
    numbers = constraint.numbers(x, z)
    # each side rounds its terms, which are no larger than those of the row at |mean| + |std z|
    size = constraint.scale(numbers, mean.abs() + (std * z).abs()) + there
    assert ((in_units_of_y(constraint, here, std) - there).abs() <= 64 * torch.finfo(D).eps * size).all()


@pytest.mark.parametrize("kind", SETS)
def test_names_are_kept(kind):
    constraint = SETS[kind]()
    x, z, mean, std = data(constraint.dim or 4)
    rewritten = hn.scaled(constraint, mean, std)
    names = [part.row_names(part.numbers(x, z), z) for part in (constraint, rewritten)]
    assert names[0] == names[1]
    assert rewritten.dim == constraint.dim or constraint.dim is None


ENFORCED = [kind for kind in SETS if kind not in ("smooth", "nonlinear", "learned-function", "region")]


@pytest.mark.parametrize("kind", ENFORCED)
def test_what_is_enforced_in_scaled_units_holds_in_the_units_of_y(kind):
    torch.manual_seed(0)
    constraint = SETS[kind]()
    x, z, mean, std = data(constraint.dim or 4)
    if kind in ("mixed", "polyhedron"):
        mean = torch.zeros_like(mean)  # where the intersection has points for every x
    layer = hn.layers.auto.build_layer(hn.scaled(constraint, mean, std), "auto")
    y = mean + std * layer(z, x)
    if isinstance(constraint, hn.Relaxed):
        slack = [hn.check(part, point, x).slack for part, point in ((constraint, y), (layer.constraint, layer(z, x)))]
        assert torch.allclose(*slack, rtol=0, atol=1e-7)
    assert hn.check(constraint, y, x, tolerance=1e-7).ok


def test_a_box_holds_exactly_in_scaled_units_and_stays_a_box():
    x, z, mean, std = data(4)
    rewritten = hn.scaled(hn.Box(-1.0, wide_bound) & hn.Simplex(4), mean, std)
    model = hn.HardNet(torch.nn.Identity(), rewritten, "projection")
    assert hn.check(rewritten, model.layer(z, x), x).exact_box.all()
    structure = rewritten.structure(rewritten.numbers(x, z), z)
    assert structure.boxed
    assert structure.A.shape[-2] == 1


def test_constants_are_factorized_and_choose_the_same_method():
    mean, std = draw(4, seed=1), draw(4, seed=2).exp()
    one = hn.Affine(draw(1, 4, seed=3), upper=1.0)
    assert hn.explain(hn.scaled(one, mean, std)).method == "aff"
    assert hn.layers.HardNetAff(hn.scaled(constant_rows(), mean, std)).factor is not None
    layer = hn.layers.HardNetAff(hn.scaled(hn.Box(-torch.ones(4, dtype=D), 1.0), mean, std))
    y = mean + std * layer(10 * draw(8, 4, seed=4))
    assert hn.check(hn.Box(-1.0, 1.0), y).ok


def test_scales_may_depend_on_x_and_must_be_positive():
    rewritten = hn.scaled(hn.Box(-1.0, 1.0), lambda x: x[..., :4], lambda x: x[..., 4:])
    x = torch.ones(3, 8, dtype=D)
    x[1, 5] = -2.0
    layer = hn.layers.Projection(rewritten, on_invalid="nan")
    y = layer(torch.full((3, 4), 9.0, dtype=D), x)
    assert y[1].isnan().any()
    assert torch.equal(y[[0, 2]], torch.zeros(2, 4, dtype=D))
    for std in (0.0, [1.0, -1.0], float("inf")):
        with pytest.raises(hn.errors.HardNetError, match="std"):
            hn.scaled(hn.Box(-1.0, 1.0), 0.0, std)
    with pytest.raises(hn.errors.HardNetError, match="std"):
        hn.scaled(smooth(), 0.0, 0.0)
    with pytest.raises(hn.errors.HardNetError, match="constants"):
        hn.scaled(smooth(), lambda x: x, 1.0)


def test_gradients_reach_learned_numbers_and_x():
    torch.manual_seed(0)
    constraint = learned()
    rewritten = hn.scaled(constraint, draw(4, seed=1), 2.0)
    x, z = draw(3, 4, seed=5).requires_grad_(), draw(3, 4, seed=6)
    hn.layers.Projection(rewritten)(3 * z, x).sum().backward()
    assert constraint.A.grad is not None
    assert x.grad is not None
    assert {name for name, _ in rewritten.named_parameters()} >= {"constraint.A"}


def test_scaled_sets_are_saved_copied_and_pickled(tmp_path):
    constraint = hn.scaled(constant_rows() & hn.Ball([0.0] * 4, 3.0, name="near"), [1.0] * 4, [2.0, 1.0, 1.0, 0.5])
    model = hn.HardNet(torch.nn.Linear(3, 4).double(), constraint)
    x = draw(5, 3, seed=2)
    hn.save(model, tmp_path / "model")
    again = hn.load(tmp_path / "model", torch.nn.Linear(3, 4).double())
    assert torch.equal(again(x), model(x))
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), model(x))
    pickle.loads(pickle.dumps(hn.scaled(smooth(), 0.0, 1.0)))


def test_functions_of_y_keep_their_slopes_and_weights():
    x, z, mean, std = data(4)
    rewritten = hn.scaled(nonlinear(), mean, std)
    slope = torch.autograd.functional.jacobian(lambda z: rewritten.g(z, x[0]), z[0])
    assert torch.allclose(rewritten.derivative(z, x)[0], slope, rtol=0, atol=1e-12)
    bowl = hn.scaled(learned_function(), mean, std)
    bowl.violation(9 + z, x).sum().backward()
    assert [weight.grad is not None for weight in bowl.parameters()] == [True]
    pickle.loads(pickle.dumps(rewritten))


def test_cvxpy_sets_in_scaled_units():
    pytest.importorskip("cvxpylayers")
    cp = pytest.importorskip("cvxpy")
    constraint = hn.Cvxpy(
        lambda y, b: [cp.norm1(y) <= b], 3, parameters={"b": (lambda x: 1 + x[..., 0].square(), ())}, name="sparse"
    )
    x, z, mean, std = draw(3, 2, seed=1), draw(3, 3, seed=2), draw(3, seed=3), draw(3, seed=4).exp()
    rewritten = hn.scaled(constraint, mean, std)
    there, here = constraint.violation(mean + std * z, x), rewritten.violation(z, x)
    assert torch.allclose(there, here, rtol=0, atol=1e-12)
    layer = hn.layers.HardNetCvx(rewritten)
    assert hn.check(constraint, mean + std * layer(3 * z, x), x, tolerance=1e-5).ok


def test_a_set_without_rows_is_refused():
    with pytest.raises(hn.errors.UnsupportedSetError, match="AffineOnRegion"):
        hn.scaled(hn.sets.AffineOnRegion(draw(6, 4, seed=9)), 0.0, 1.0)
    with pytest.raises(hn.errors.DTypeError, match="a set"):
        hn.scaled("box", 0.0, 1.0)
