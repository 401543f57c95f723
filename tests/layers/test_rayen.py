"""RAYEN: known answers, the offline phase, radial maps, feasibility on every piece, errors."""

import copy

import pytest
import torch

import hardnet as hn
from hardnet.errors import InfeasibleError, NonFiniteError, ShapeError, UnsupportedSetError
from hardnet.layers import Rayen
from hardnet.sets import LMI, Affine, Ball, Box, ConstraintSet, Equality, Quadratic, SecondOrderCone, Simplex
from hardnet.solvers import Intervals
from hardnet.solvers.offline import affine_hull, halfspaces, most_slack
from tests.draws import draw, tensor

F64 = torch.float64


QUARTER = torch.tensor([0.25, 0.25], dtype=F64)


def triangle():
    return Affine(tensor([1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]), lower=tensor(0.0, 0.0, -1.0))


def ellipse():
    return Quadratic(tensor([0.5, 0.0], [0.0, 2.0]), tensor(0.0, 0.0), -1.0)


def matrix_disc():
    return LMI(torch.eye(2, dtype=F64), tensor([[1.0, 0.0], [0.0, -1.0]], [[0.0, 1.0], [1.0, 0.0]]))


def cone():
    A = tensor([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    return SecondOrderCone(A, tensor(0.0, 0.0), tensor(0.0, 0.0, 1.0), 0.0)


SETS = {
    "triangle": triangle,
    "box and budget": lambda: (
        Box(tensor(0.0, 0.0, 0.0), tensor(1.0, 1.0, 1.0)) & Affine(tensor([1.0, 1.0, 1.0]), upper=tensor(1.5))
    ),
    "simplex": lambda: Simplex(4, 2.0),
    "equality and box": lambda: (
        Equality(tensor([1.0, 2.0, 3.0]), tensor(1.0)) & Box(tensor(-1.0, -1.0, -1.0), tensor(1.0, 1.0, 1.0))
    ),
    "half-space": lambda: Affine(tensor([1.0, 1.0]), upper=tensor(3.0)),
    "ellipse": ellipse,
    "ball": lambda: Ball(tensor(1.0, -2.0, 0.5), 0.7),
    "cone": cone,
    "matrix": matrix_disc,
    "all": lambda: (
        ellipse() & matrix_disc() & Affine(tensor([1.0, 1.0]), upper=tensor(0.5)) & Ball(tensor(0.0, 0.0), 0.9)
    ),
}


@pytest.mark.parametrize(
    ("v", "y"), [((1.0, 1.0), (0.5, 0.5)), ((0.1, 0.0), (0.35, 0.25)), ((3.0, -4.0), (0.4375, 0.0))]
)
def test_known_answers_on_the_triangle(v, y):
    layer = Rayen(triangle(), interior=QUARTER)
    torch.testing.assert_close(layer(tensor(*v)), tensor(*y), rtol=0, atol=1e-15)


def test_the_interior_point_is_the_analytic_center_of_a_bounded_set():
    torch.testing.assert_close(Rayen(triangle()).center, tensor(1 / 3, 1 / 3), rtol=0, atol=1e-12)
    long = Box(tensor(0.0, 1e5), tensor(1e-3, 2e5))
    torch.testing.assert_close(Rayen(long).center, tensor(5e-4, 1.5e5), rtol=1e-12, atol=0)


def test_an_unbounded_set_gets_the_center_of_a_unit_ball():
    quadrant = Box(tensor(0.0, 0.0))
    assert (Rayen(quadrant).center >= 1 - 1e-9).all()
    layer = Rayen(Affine(tensor([1.0, 1.0]), upper=tensor(3.0)))
    assert layer.constraint.violation(layer.center + tensor([0.7, 0.7])).max() == 0


def test_the_largest_ball_in_the_triangle():
    rows = halfspaces([Intervals(triangle().A, triangle().lower, torch.full((3,), torch.inf, dtype=F64))], 2)
    center, radius = most_slack(affine_hull(rows), [], None)
    assert radius == pytest.approx(1 / (2 + 2**0.5), abs=1e-9)
    torch.testing.assert_close(center, tensor(radius, radius), rtol=0, atol=1e-9)


def test_ray_shift_and_soft_map_on_the_triangle():
    shift = Rayen(triangle(), interior=QUARTER, radial="sigmoid")
    assert shift.raw_dim == 3
    torch.testing.assert_close(shift(tensor(0.0, 1.0, 1.0)), tensor(0.375, 0.375), rtol=0, atol=1e-15)
    soft = Rayen(triangle(), interior=QUARTER, radial="soft", raw_as="point")
    point = tensor(3.0, -4.0)
    torch.testing.assert_close(soft(point), tensor(0.402778, 0.013889), rtol=0, atol=1e-6)
    J = torch.autograd.functional.jacobian(soft, point)
    assert torch.linalg.det(J).item() == pytest.approx(1.7e-4, rel=0.05)


def test_boundary_mode_ends_on_the_boundary():
    layer = Rayen(matrix_disc(), radial="boundary")
    torch.testing.assert_close(torch.linalg.vector_norm(layer(draw(9, 2)), dim=-1), torch.ones(9, dtype=F64))
    assert torch.equal(layer(tensor(0.0, 0.0)), layer.center)


@pytest.mark.parametrize("radial", ["clip", "soft"])
@pytest.mark.parametrize("name", SETS)
def test_every_output_is_in_the_set(name, radial):
    constraint = SETS[name]()
    layer = Rayen(constraint, radial=radial)
    raw = torch.cat([draw(2, 30, layer.raw_dim), 1e4 * draw(2, 30, layer.raw_dim, seed=1)], dim=1)
    y = layer(raw)
    numbers = constraint.numbers(None, y)
    assert (constraint.residual(numbers, y) <= 2e-13 * (1 + constraint.scale(numbers, y))).all()
    single = copy.deepcopy(layer).float()
    y = single(raw.float()).double()
    assert (constraint.residual(numbers, y) <= 2e-5 * (1 + constraint.scale(numbers, y))).all()


@pytest.mark.parametrize("radial", ["clip", "soft", "boundary", "sigmoid"])
@pytest.mark.parametrize("name", ["triangle", "simplex", "all", "ball"])
def test_gradients(name, radial):
    layer = Rayen(SETS[name](), radial=radial)
    torch.autograd.gradcheck(layer, (2 * draw(4, layer.raw_dim, seed=5).requires_grad_(),))


def test_a_displacement_that_stays_inside_is_kept_and_a_point_is_returned_bit_for_bit():
    layer = Rayen(triangle())
    v = 0.1 * torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    torch.testing.assert_close(layer(v), layer.center + v, rtol=0, atol=1e-15)
    point = 0.4 * torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    assert torch.equal(Rayen(triangle(), raw_as="point")(point), point)


def test_implicit_equalities_lower_the_dimension():
    rows = Affine(tensor([1.0, 1.0], [-1.0, -1.0], [-1.0, 0.0], [0.0, -1.0]), upper=tensor(1.0, -1.0, 0.0, 0.0))
    layer = Rayen(rows)
    assert layer.raw_dim == 1
    assert rows.violation(layer(10 * draw(50, 1))).max() < 1e-14
    assert (
        Rayen(
            Affine(tensor([1.0, 0.0], [0.0, 1.0], [1.0, 1.0]), lower=tensor(0, 0, -9.0), upper=tensor(9, 9, 0.0))
        ).raw_dim
        == 0
    )


def test_only_the_ray_loses_its_gradient_outside():
    layer = Rayen(ellipse())
    v = tensor(3.0, 2.0)
    J = torch.autograd.functional.jacobian(layer, v)
    assert torch.linalg.matrix_rank(J) == 1
    assert (J @ v).abs().max() < 1e-12


def test_copies_and_loads_keep_the_center_that_the_weights_rely_on():
    layer, other = (Rayen(triangle(), interior=QUARTER) for _ in range(2))
    raw = draw(10, 2)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(raw), layer(raw))
    back = copy.deepcopy(layer).float().double()
    torch.testing.assert_close(back(raw), layer(raw), rtol=1e-6, atol=1e-6)


def test_compiles_and_maps():
    layer, raw = Rayen(SETS["all"]()), draw(3, 4, 2)
    torch.testing.assert_close(torch.vmap(layer)(raw), layer(raw))
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(raw), layer(raw))


def test_nan_stays_in_its_sample():
    layer = Rayen(SETS["all"](), on_invalid="nan")
    raw = draw(4, 2)
    bad = raw.clone()
    bad[1, 0] = torch.nan
    bad[2, 0] = torch.inf
    y = layer(bad)
    assert y[1:3].isnan().all()
    assert torch.equal(y[[0, 3]], layer(raw)[[0, 3]])


class Odd(ConstraintSet):
    """A set without rows or blocks."""


def test_errors_at_construction():
    with pytest.raises(UnsupportedSetError, match="Odd has no gauge in closed form; use method='auto'"):
        Rayen(Odd())
    with pytest.raises(UnsupportedSetError, match=r"it depends on x or is learned.*use method='auto'"):
        Rayen(Affine(tensor([1.0, 1.0]), upper=lambda x: x))
    with pytest.raises(UnsupportedSetError, match="its dimension is not known; give one bound as a vector"):
        Rayen(Box(0.0, 1.0))
    with pytest.raises(ValueError, match=r"radial: expected .*, got 'round'"):
        Rayen(triangle(), radial="round")
    with pytest.raises(ValueError, match="raw_as: expected 'displacement' with radial='sigmoid', got 'point'"):
        Rayen(triangle(), radial="sigmoid", raw_as="point")
    with pytest.raises(UnsupportedSetError, match=r"interior: expected a point strictly inside.*slack -?0 and"):
        Rayen(triangle(), interior=tensor(0.0, 0.5))
    with pytest.raises(UnsupportedSetError, match=r"interior: expected a point strictly inside.*off by 0\.5"):
        Rayen(Equality(tensor([1.0, 0.0]), tensor(1.0)), interior=tensor(0.5, 0.0))
    with pytest.raises(ShapeError, match=r"interior: expected shape \(2,\), got \(3,\)"):
        Rayen(triangle(), interior=tensor(0.1, 0.1, 0.1))


def test_errors_of_empty_and_thin_sets():
    with pytest.raises(InfeasibleError, match="affine rows that contradict"):
        Rayen(Affine(tensor([1.0, 0.0], [1.0, 0.0]), lower=tensor(1.0, -9.0), upper=tensor(9.0, 0.0)))
    with pytest.raises(InfeasibleError, match="parts that do not meet"):
        Rayen(matrix_disc() & Affine(tensor([1.0, 0.0]), lower=tensor(2.0)))
    with pytest.raises(UnsupportedSetError, match=r"it has no interior .* use method='cvx' or 'projection'"):
        Rayen(matrix_disc() & Affine(tensor([1.0, 0.0]), lower=tensor(1.0)))


def test_errors_at_call():
    with pytest.raises(ShapeError, match=r"raw: expected shape \(\*batch, 2\), got \(4, 3\)"):
        Rayen(triangle())(draw(4, 3))
    with pytest.raises(NonFiniteError, match=r"raw: expected finite numbers, got NaN or inf.* in samples? 1") as caught:
        Rayen(triangle())(tensor([0.0, 0.0], [torch.nan, 0.0]))
    assert caught.value.samples == [1]
    with pytest.raises(
        NonFiniteError, match="rays that meet the boundary with radial='boundary', got an unbounded one"
    ):
        Rayen(cone(), radial="boundary")(tensor([0.0, 0.0, 1.0]))


@pytest.mark.parametrize("unit", [1e-150, 1e-8, 1e-4, 1e-2, 1.0, 1e3, 1e8])
@pytest.mark.parametrize(
    "kind", ["half-space", "wedge", "slab beside a far row", "box", "box and a plane", "thin and wide"]
)
def test_rows_hold_in_any_unit_of_bounded_and_unbounded_sets(kind, unit):
    """Every row to rounding of its terms, and a smaller unit moves the interior point as much as the set."""
    D = torch.float64
    A = torch.tensor([[1.0, 0.7, -0.3], [0.2, -1.0, 0.5], [-0.4, 0.1, -0.6]], dtype=D)
    build = {
        "half-space": lambda u: hn.Affine(A[:1], upper=[u]),
        "wedge": lambda u: hn.Affine(A[:2], upper=[u, 0.5 * u]),
        "slab beside a far row": lambda u: hn.Affine(A[:2], lower=[-u, -torch.inf], upper=[u, 1e6 * u]),
        "box": lambda u: hn.Box(0.0, [u, 2 * u, u]),
        "box and a plane": lambda u: hn.Box([-u] * 3, [u, 2 * u, u]) & hn.Equality(A[:1], [0.3 * u]),
        "thin and wide": lambda u: hn.Box([0.0] * 3, [1e-5 * u, u, u]),
    }[kind]
    constraint = build(unit)
    layer = Rayen(constraint, raw_as="point")
    raw = unit * 10.0 ** torch.linspace(-3, 6, 400, dtype=D).unsqueeze(-1) * draw(400, 3, seed=4)
    y = layer(raw)
    assert hn.check(constraint, y).ok
    if kind != "slab beside a far row":  # which has more than one point with the most slack
        assert torch.allclose(layer.center / unit, Rayen(build(1.0), raw_as="point").center, rtol=1e-5, atol=1e-5)
