"""C-DGM: known answers, the contract, right-hand sides that depend on x, and what it refuses."""

import pytest
import torch

from hardnet import check
from hardnet.errors import BoundsError, InfeasibleError, NonFiniteError, ShapeError, StateError, UnsupportedSetError
from hardnet.layers import CDGM
from hardnet.sets import Affine, Box, Equality
from hardnet.testing import check_layer
from tests.draws import draw, tensor

F64 = torch.float64


ORDERED = Affine(tensor([1.0, -1.0], [0.0, 1.0]), upper=tensor(0.0, 1.0))  # y1 <= y2 <= 1


@pytest.mark.parametrize(
    ("order", "expected"), [([0, 1], [[1.0, 1.0], [0.5, 0.5]]), ([1, 0], [[0.5, 0.5], [0.2, 0.2]])]
)
def test_the_order_decides_what_moves(order, expected):
    layer = CDGM(ORDERED, order=order)
    assert torch.allclose(layer(tensor([2.0, 0.5], [0.5, 0.2])), tensor(*expected), rtol=0, atol=1e-12)


def test_coefficients_of_different_size():
    layer = CDGM(Affine(tensor([-1.0, 2.0], [0.0, -3.0]), lower=tensor(1.0, -6.0)))
    assert layer(tensor(5.0, 0.0)).tolist() == [3.0, 2.0]


@pytest.mark.parametrize("as_equality", [True, False])
def test_simplex(as_equality):
    ones = torch.ones(1, 3, dtype=F64)
    total = Equality(ones, 1.0) if as_equality else Affine(ones, lower=1.0) & Affine(ones, upper=1.0)
    y = CDGM(Box(lower=torch.zeros(3, dtype=F64)) & total)(tensor([0.5, 1.2, -0.3], [1.7, -0.4, 0.2]))
    assert torch.allclose(y, tensor([0.5, 0.5, 0.0], [1.0, 0.0, 0.0]), rtol=0, atol=1e-12)


A = draw(12, 4, seed=3)
X = draw(6, 3, seed=4)
WEIGHT = draw(3, 12, seed=5)
STEPS = tensor([1.0, -1.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.0], [0.0, 0.0, 1.0, -1.0], [1.0, 1.0, 1.0, 1.0])


def positive(x):
    return (x @ WEIGHT.to(x)).abs() + 0.1


def minus_size(x):
    return -x[..., :1].abs().expand(*x.shape[:-1], 4)


def tenth(x):
    return 0.1 * x[..., :2]


CASES = {
    "constant": (lambda: Affine(A, upper=draw(12, seed=6).abs()), None),
    "bounds of x": (lambda: Affine(A, upper=positive), X),
    "two-sided": (lambda: Affine(STEPS, lower=minus_size, upper=2.0), X),
    "with equalities of x": (lambda: Equality(A[:2], tenth) & Box(-torch.full((4,), 5.0, dtype=F64), 5.0), X),
}


@pytest.mark.parametrize("case", CASES)
def test_contract(case):
    build, x = CASES[case]
    check_layer(CDGM(build()), x, 3 * draw(6, 4))


def test_the_compiled_layer_is_one_graph_and_gives_the_same():
    build, x = CASES["with equalities of x"]
    check_layer(CDGM(build()), x, 3 * draw(6, 4), gradients=False, compiled=True)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
@pytest.mark.parametrize("seed", range(5))
def test_random_polyhedra_of_any_order_and_batch_shape(seed, order):
    constraint = Affine(draw(10, 4, seed=seed), upper=lambda x: x.abs())
    layer, x = CDGM(constraint, order=order), draw(3, 50, 10, seed=seed + 10)
    y = layer(10 * draw(3, 50, 4, seed=seed + 20), x)
    assert (constraint.violation(y, x) <= 1e-11).all()
    assert torch.equal(layer(y, x), y)
    inside = 1e-3 * draw(3, 50, 4, seed=seed)
    feasible = (constraint.violation(inside, x + 0.1 * x.sign()) == 0).all(-1)
    assert feasible.any()
    assert torch.equal(layer(inside, x + 0.1 * x.sign())[feasible], inside[feasible])


def test_learned_bounds_get_gradients():
    upper = torch.nn.Parameter(tensor(0.0, 1.0))
    layer = CDGM(Affine(tensor([1.0, -1.0], [0.0, 1.0]), upper=upper))
    layer(tensor(2.0, 0.5)).sum().backward()
    assert upper.grad is not None
    assert upper.grad.tolist() == [1.0, 2.0]  # y = (b1 + b2, b2) where both rows are tight


def test_infinite_bounds_of_x_are_absent_ones():
    layer = CDGM(Affine(tensor([1.0, -1.0], [0.0, 1.0]), upper=lambda x: x))
    y = layer(tensor([2.0, 0.5], [2.0, 0.5]), tensor([torch.inf, 0.25], [0.0, torch.inf]))
    assert y.tolist() == [[2.0, 0.25], [2.0, 2.0]]


def test_loading_other_bounds_is_refused():
    layer, other = (CDGM(Affine(torch.ones(1, 2, dtype=F64), upper=torch.tensor([b]).double())) for b in (1.0, 5.0))
    with pytest.raises(StateError, match="'upper' differs"):
        layer.load_state_dict(other.state_dict())
    assert layer(tensor(1.0, 9.0)).tolist() == [1.0, 0.0]


def test_rows_that_contradict_each_other_are_named_at_construction():
    constraint = Affine(
        tensor([1.0, 1.0], [1.0, 0.0], [0.0, 1.0]), lower=tensor(2.0, 0.0, 0.0), upper=tensor(9.0, 0.5, 1.0)
    )
    with pytest.raises(InfeasibleError, match="inconsistent: no y satisfies rows 0, 1, 2 together") as error:
        CDGM(constraint)
    assert error.value.rows == [[0, 1, 2]]


def test_an_empty_set_of_some_samples_is_named_and_leaves_the_others_alone():
    constraint = Affine(tensor([1.0, 1.0]).reshape(1, 2), lower=1.5) & Box(upper=lambda x: x)
    raw, x = draw(3, 2), tensor([1.0, 1.0], [1.0, 0.25], [0.75, 0.75])
    with pytest.raises(InfeasibleError, match=r"C\(x\) is empty for samples 1:.*'projection'") as error:
        CDGM(constraint)(raw, x)
    assert error.value.samples == [1]
    y = CDGM(constraint, on_invalid="nan")(raw, x)
    assert y.isnan().all(-1).tolist() == [False, True, False]
    assert torch.equal(y[::2], CDGM(constraint)(raw[::2], x[::2]))
    assert check(constraint, y[::2], x[::2]).ok


def test_crossed_bounds_are_a_bounds_error():
    layer = CDGM(Box(lower=lambda x: x, upper=torch.ones(2, dtype=F64)))
    with pytest.raises(BoundsError, match=r"in samples? 1"):
        layer(draw(2, 2), tensor([0.0, 0.0], [0.0, 2.0]))


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Affine(lambda x: x, upper=0.0), "nothing in it tells the number of outputs"),
        (
            Affine(torch.nn.Parameter(torch.ones(1, 2)), upper=0.0),
            "A depends on x or is learned.*use method='projection'",
        ),
    ],
)
def test_other_sets_are_refused_with_what_would_do(constraint, message):
    with pytest.raises(UnsupportedSetError, match="method 'cdgm' cannot enforce this set: .*" + message):
        CDGM(constraint)


def test_bad_options_are_named():
    with pytest.raises(ShapeError, match=r"order: expected a permutation of 0 to 1, got \[0, 0\]"):
        CDGM(ORDERED, order=[0, 0])
    with pytest.raises(UnsupportedSetError, match="at most 5 rows while eliminating"):
        CDGM(Affine(A, upper=1.0), limit=5)


def test_nan_is_not_lost_in_an_output_that_an_equality_determines():
    layer = CDGM(Equality(torch.ones(1, 2, dtype=F64), 1.0), on_invalid="nan")
    y = layer(tensor([0.25, torch.nan], [0.25, 9.0]))
    assert y[0].isnan().all()
    assert y[1].tolist() == [0.25, 0.75]
    with pytest.raises(NonFiniteError, match=r"in samples? 0"):
        CDGM(layer.constraint)(tensor([0.25, torch.nan], [0.25, 9.0]))


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_bound_that_is_no_bound_is_an_error_or_nan_for_its_sample(bad, row):
    rows = Affine(draw(3, 4), upper=lambda x: x)
    x = torch.ones(4, 3, dtype=torch.float64)
    x[2, row] = bad
    raw = draw(4, 4, seed=1)
    with pytest.raises((NonFiniteError, BoundsError), match=r"upper: .* in samples? 2"):
        CDGM(rows)(raw, x)
    y = CDGM(rows, on_invalid="nan")(raw, x)
    assert y[2].isnan().all()
    assert torch.equal(y[[0, 1, 3]], CDGM(rows)(raw, torch.ones_like(x))[[0, 1, 3]])
