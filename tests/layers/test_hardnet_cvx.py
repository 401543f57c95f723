"""HardNet-Cvx and the exact projection as layers: the contract, what they keep, what they refuse."""

import copy
from fractions import Fraction

import pytest
import torch

import hardnet as hn
from hardnet import sets
from hardnet.errors import BoundsError, InfeasibleError, UnsupportedSetError
from hardnet.functional import project_affine
from hardnet.layers import HardNetCvx, Projection
from hardnet.testing import check_layer
from tests.draws import draw
from tests.solvers.convex import D

N = 3
ROOT = draw(N, N, seed=1)


def constant_sets() -> dict[str, sets.ConstraintSet]:
    F = draw(N, 2, 2, seed=2)
    ball = sets.Ball(torch.zeros(N, dtype=D), 0.8)
    return {
        "simplex": sets.Simplex(N),
        "box": sets.Box(-torch.ones(N, dtype=D), 0.5),
        "ball": ball,
        "quadratic": sets.Quadratic(ROOT @ ROOT.mT, draw(N, seed=3), -1.0),
        "cone": sets.SecondOrderCone(draw(2, N, seed=4), 0.1 * draw(2, seed=5), 0.2 * draw(N, seed=6), 1.0),
        "lmi": sets.LMI(torch.eye(2, dtype=D), (F + F.mT) / 2),
        "rows": sets.Affine(draw(5, N, seed=7), lower=-0.5, upper=1.0),
        "mixed": ball & sets.Box(-torch.ones(N, dtype=D), 0.4) & sets.Equality(torch.ones(1, N, dtype=D), 0.2),
    }


def radius(x):
    return 0.3 + x[..., 0].square()


def bound(x):
    return 0.3 + x.square()


@pytest.mark.parametrize("name", constant_sets())
def test_keeps_the_contract_on_constant_sets(name):
    check_layer(HardNetCvx(constant_sets()[name]), None, 1.5 * draw(4, N, seed=8))


@pytest.mark.parametrize("name", ["simplex", "box", "rows"])
def test_the_projection_layer_keeps_the_contract(name):
    check_layer(Projection(constant_sets()[name]), None, 1.5 * draw(4, N, seed=8))


def test_keeps_the_contract_where_numbers_depend_on_x():
    center, A = torch.zeros(N, dtype=D), draw(2, N, seed=9)
    moving = sets.Ball(center, radius) & sets.Affine(A, upper=bound)
    x = 0.5 * draw(4, 2, seed=10)
    check_layer(HardNetCvx(moving), x, draw(4, N, seed=11))
    check_layer(Projection(sets.Affine(A, upper=bound) & sets.Box(-1.0, 1.0)), x, draw(4, N, seed=11))


def test_closed_forms_compile_to_one_graph():
    for name in ("simplex", "box", "ball"):
        check_layer(HardNetCvx(constant_sets()[name]), None, draw(4, N), gradients=False, compiled=True)


def test_the_factor_of_a_constant_quadratic_is_kept_and_follows_moves():
    layer = HardNetCvx(constant_sets()["quadratic"])
    kept = layer.kept.spectrum
    assert kept is not None
    layer(draw(2, N))
    assert layer.kept.spectrum is kept
    assert not layer.state_dict().keys() & {"values", "vectors"}
    single = copy.deepcopy(layer).float()
    assert single.kept.spectrum is not None
    assert single.kept.spectrum.values.dtype == torch.float64  # rebuilt from the float32 P, not rounded to it
    other = HardNetCvx(constant_sets()["quadratic"])
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(draw(2, N)), layer(draw(2, N)))


def test_a_quadratic_that_depends_on_x_keeps_nothing():
    moving = sets.Quadratic(
        lambda x: torch.eye(N, dtype=D) * (1 + x.square())[..., None], torch.zeros(N, dtype=D), -1.0
    )
    layer = HardNetCvx(moving)
    assert layer.kept.spectrum is None
    y = layer(5 * draw(3, N), draw(3, 1))
    assert y.shape == (3, N)


def test_polyhedra_go_to_the_projection_of_their_rows():
    rows = constant_sets()["rows"]
    raw = 2 * draw(6, N)
    assert torch.equal(HardNetCvx(rows)(raw), project_affine(raw, *rows.affine(None, raw)))
    assert torch.equal(HardNetCvx(rows)(raw), Projection(rows)(raw))


def test_policies_reach_the_set():
    moving = sets.Ball(torch.zeros(2, dtype=D), 1.0) & sets.Ball(lambda x: x, 1.0)
    raw, x = draw(3, 2), torch.tensor([[0.0, 0], [9, 0], [0, 1]], dtype=D)
    with pytest.raises(InfeasibleError) as caught:
        HardNetCvx(moving)(raw, x)
    assert caught.value.samples == [1]
    y = HardNetCvx(moving, on_infeasible="nan")(raw, x)
    assert y.isnan().any(-1).tolist() == [False, True, False]
    crossed = sets.Box(lower=lambda x: x, upper=1.0)
    with pytest.raises(BoundsError, match="sample 1"):
        HardNetCvx(crossed)(raw, x)
    assert HardNetCvx(crossed, on_invalid="nan")(raw, x).isnan().any(-1).tolist() == [False, True, False]
    empty = sets.Affine(torch.eye(2, dtype=D), lower=lambda x: x) & sets.Box(upper=1.0)
    with pytest.raises(InfeasibleError):
        Projection(empty)(raw, x)
    assert Projection(empty, on_infeasible="nan")(raw, x).isnan().any(-1).tolist() == [False, True, False]


def test_a_set_of_ones_own_needs_only_its_projection():
    class Halves(sets.ConstraintSet):
        projectable = True

        def numbers(self, x, like):
            return ()

        def residual(self, numbers, y):
            return (-y).clamp_min(0)

        def scale(self, numbers, y):
            return y.abs()

        def project(self, numbers, raw):
            return raw.clamp_min(0)

    assert torch.equal(HardNetCvx(Halves())(draw(4, N)), draw(4, N).clamp_min(0))


def test_refusals():
    class Formless(sets.ConstraintSet):
        def numbers(self, x, like):
            return ()

    with pytest.raises(UnsupportedSetError, match=r"Formless has neither affine rows .* one hn.Cvxpy"):
        HardNetCvx(Formless())
    with pytest.raises(UnsupportedSetError, match="Ball is not a set of affine rows; use method='auto'"):
        Projection(constant_sets()["ball"])


def test_strict_rows_hold_in_exact_arithmetic_where_all_are_affine():
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    constraint = hn.Box(-1.0, 1.0) & hn.Affine(A, upper=0.3)
    y = hn.layers.HardNetCvx(constraint, strict=True)(3 * torch.randn(50, 4, generator=generator, dtype=torch.float64))
    for sample in y.tolist():
        for row in A.tolist():
            assert sum(Fraction(a) * Fraction(value) for a, value in zip(row, sample, strict=True)) <= Fraction(0.3)
    with pytest.raises(hn.errors.OptionError, match="strict: expected False for a set with curved"):
        hn.layers.HardNetCvx(hn.Ball(torch.zeros(2), 1.0), strict=True)
