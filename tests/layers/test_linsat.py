"""LinSAT as a layer: the contract in the unit cube, bounds of x, and what it refuses."""

import pytest
import torch

from hardnet import check
from hardnet.errors import InfeasibleError, UnsupportedSetError
from hardnet.functional.linsat import REGULARIZATION
from hardnet.layers import LinSAT
from hardnet.sets import Affine, Box, Equality
from hardnet.testing import check_layer
from tests.draws import draw_uniform, tensor

F64 = torch.float64


A = tensor([1.0, 1.0, 0.0, 0.0], [0.0, 2.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0])
X = 0.2 + 0.6 * draw_uniform(6, 2, seed=1)


def budget(x):
    return 0.5 + x.sum(dim=-1, keepdim=True)


def share(x):
    return x[..., :1]


CASES = {
    "constant": (lambda: Affine(A, lower=tensor(0.5, 0.0, 1.0), upper=tensor(1.5, 2.0, 2.5)), None),
    "in the unit box": (lambda: Affine(A[:1], upper=1.0) & Box(torch.zeros(4, dtype=F64), 1.0), None),
    "bounds of x": (lambda: Affine(A[:1], lower=share, upper=budget) & Equality(A[2:], budget), X),
    "a capped variable": (lambda: Equality(A[2:], 1.0) & Box(upper=tensor(0.3, 1.0, 0.5, 1.0)), None),
}


@pytest.mark.parametrize("case", CASES)
def test_contract(case):
    build, x = CASES[case]
    check_layer(LinSAT(build(), temperature=0.3), x, draw_uniform(6, 4))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("variant", ["entropic", "v2", "v1"])
def test_every_variant_satisfies_the_set_in_the_cube(case, variant):
    build, x = CASES[case]
    y = LinSAT(build(), variant=variant)(draw_uniform(6, 4), x)
    assert check(build(), y, x, tolerance=1e-9).ok
    assert ((y > 0) & (y < 1)).all()


def test_sweeps_and_newton_give_the_same_answer():
    constraint = CASES["constant"][0]()
    one, other = (LinSAT(constraint, variant="v2", solver=way, max_iterations=2000) for way in ("newton", "sweeps"))
    assert torch.allclose(one(draw_uniform(5, 4)), other(draw_uniform(5, 4)), rtol=0, atol=1e-8)


def test_a_unit_box_around_the_rows_changes_nothing():
    rows = Affine(A[:1], upper=1.0)
    boxed = rows & Box(torch.zeros(4, dtype=F64), 1.0)
    assert torch.equal(LinSAT(rows)(draw_uniform(3, 4)), LinSAT(boxed)(draw_uniform(3, 4)))


def test_learned_bounds_get_gradients():
    total = torch.nn.Parameter(tensor(1.0))
    LinSAT(Equality(A[2:], total))(draw_uniform(4)).sum().backward()
    assert total.grad is not None
    # the system of the derivative is regularized, which is as much of its result, beside rounding
    assert torch.allclose(total.grad, tensor(1.0), rtol=0, atol=2 * REGULARIZATION)


def test_an_empty_set_of_some_samples_is_named():
    layer = LinSAT(Equality(A[2:], budget))
    with pytest.raises(InfeasibleError, match=r"in samples? 1; unsatisfied: \[0\]") as error:
        layer(draw_uniform(2, 4), tensor([1.0, 1.0], [3.0, 3.0]))
    assert error.value.samples == [1]


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Affine(tensor([1.0, -1.0]), upper=1.0), "row 0 of A has a negative.*use method='projection'"),
        (Affine(tensor([1.0, 1.0], [0.0, 0.0]), upper=1.0), "row 1 of A is all zero"),
        (Affine(tensor([1.0, 1.0]), upper=-1.0), "no y in the unit cube satisfies row 0"),
        (Affine(tensor([1.0, 1.0]), lower=3.0), "no y in the unit cube satisfies row 0"),
        (Affine(lambda x: x, upper=1.0), "nothing in it tells the number of outputs"),
    ],
)
def test_other_sets_are_refused_with_what_would_do(constraint, message):
    with pytest.raises(UnsupportedSetError, match="method 'linsat' cannot enforce this set: .*" + message):
        LinSAT(constraint)
