"""KKT-hPINN: known answers, redundant rows, agreement with the Euclidean projection, errors."""

import copy

import pytest
import torch

from hardnet.errors import InfeasibleError, NonFiniteError, RankError, UnsupportedSetError
from hardnet.layers import KKThPINN
from hardnet.sets import Affine, Ball, Equality
from tests.draws import draw, tensor

F64 = torch.float64


def balance():
    """A x + B y = b with A = -1, B = (1, 1), b = 0: two flows that add up to the input."""
    return Equality(tensor([1.0, 1.0]), lambda x: x)


def test_known_answer():
    y = KKThPINN(balance())(tensor([0.2, 0.4]), tensor([1.0]))
    torch.testing.assert_close(y, tensor([0.4, 0.6]), rtol=0, atol=1e-15)


def test_projects_orthogonally_and_a_second_time_changes_nothing():
    B = draw(3, 7)
    layer = KKThPINN(Equality(B, lambda x: x))
    x, raw = draw(2, 5, 3, seed=1), draw(2, 5, 7, seed=2)
    y = layer(raw, x)
    assert layer.constraint.violation(y, x).max() < 1e-14
    null = torch.linalg.svd(B).Vh[3:]
    assert ((y - raw) @ null.mT).abs().max() < 1e-14
    torch.testing.assert_close(layer(y, x), y, rtol=0, atol=1e-14)


def test_the_second_pass_removes_what_bad_conditioning_leaves():
    B = torch.cat([draw(1, 5), draw(1, 5) + 1e-7 * draw(1, 5, seed=1)])
    layer = KKThPINN(Equality(B, tensor(1.0, 1.0)))
    assert layer.constraint.violation(layer(draw(50, 5, seed=2))).max() < 1e-14


def test_redundant_rows_that_agree_are_dropped():
    B = tensor([1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 2.0, 1.0])
    layer = KKThPINN(Equality(B, lambda x: torch.cat([x, x.sum(-1, keepdim=True)], dim=-1)))
    x = draw(4, 2)
    assert layer.constraint.violation(layer(draw(4, 3, seed=1), x), x).max() < 1e-14


def test_constant_rows_with_equal_bounds_count_as_equalities():
    layer = KKThPINN(Affine(tensor([1.0, 1.0]), lower=tensor(1.0), upper=tensor(1.0)))
    torch.testing.assert_close(layer(tensor([0.2, 0.4])), tensor([0.4, 0.6]))


def test_gradients_to_raw_and_through_the_right_hand_side():
    layer = KKThPINN(Equality(draw(2, 4), lambda x: x.sin()))
    torch.autograd.gradcheck(layer, (draw(3, 4, seed=1).requires_grad_(), draw(3, 2, seed=2).requires_grad_()))


def test_the_factor_follows_moves_and_loads():
    layer, other = (KKThPINN(Equality(draw(2, 4), tensor(1.0, 2.0))) for _ in range(2))
    raw = draw(3, 4)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(raw), layer(raw))
    single = copy.deepcopy(layer).float()
    assert single.constraint.violation(single(raw.float())).max() < 1e-5


def test_nan_stays_in_its_sample():
    layer = KKThPINN(balance(), on_invalid="nan")
    raw = tensor([0.0, 0.0], [torch.nan, 0.0])
    y = layer(raw, tensor([1.0], [1.0]))
    assert y[1].isnan().all()
    assert torch.equal(y[0], layer(torch.zeros(2, 2, dtype=F64), tensor([1.0], [1.0]))[0])


def test_errors():
    with pytest.raises(UnsupportedSetError, match="Ball is not a set of affine rows; use method='auto'"):
        KKThPINN(Ball(tensor(0.0, 0.0), 1.0))
    with pytest.raises(UnsupportedSetError, match=r"not equalities; write .* as hn.Equality\(A, b\), or use method"):
        KKThPINN(Affine(tensor([1.0, 1.0]), upper=tensor(1.0)))
    with pytest.raises(UnsupportedSetError, match="its matrix is learned or depends on x; use method='aff'"):
        KKThPINN(Equality(lambda x: x, tensor(1.0)))
    with pytest.raises(RankError, match=r"B: expected rows that involve y, got zero rows \[1\]; drop them"):
        KKThPINN(Equality(tensor([1.0, 1.0], [0.0, 0.0]), tensor(1.0, 0.0)))
    with pytest.raises(NonFiniteError, match="A: expected finite numbers"):
        KKThPINN(Equality(tensor([torch.inf, 1.0]), tensor(1.0)))
    twice = KKThPINN(Equality(tensor([1.0, 1.0], [2.0, 2.0]), lambda x: x))
    with pytest.raises(InfeasibleError, match=r"rows that agree, got a contradiction in samples? 1") as caught:
        twice(draw(2, 2), tensor([1.0, 2.0], [1.0, 3.0]))
    assert caught.value.samples == [1]
    with pytest.raises(NonFiniteError, match=r"raw: expected finite numbers, got NaN or inf.* in samples? 0"):
        twice(tensor([torch.nan, 0.0]), tensor([1.0, 2.0]))
    with pytest.raises(NonFiniteError, match="raw: expected numbers that do not overflow"):
        KKThPINN(balance())(tensor([1.5e308, 1.5e308]), tensor([1.0]))
