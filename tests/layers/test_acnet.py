"""ACnet: known answers, the choice of residual outputs, a change of variables, errors."""

import copy
import warnings

import pytest
import torch

from hardnet.errors import ConditionWarning, NonFiniteError, RankError, ShapeError, UnsupportedSetError
from hardnet.layers import ACnet
from hardnet.sets import Affine, Ball, Box, Equality
from tests.draws import draw, tensor

F64 = torch.float64


def masses(x):
    """Positive weights of two layers of air that depend on the input."""
    return torch.stack([1 + x[..., 0].square(), 2 + x[..., 0].sin()], dim=-1).unsqueeze(-2)


def mass_law():
    """m1(x) y1 + m2(x) y2 = x."""
    return Equality(masses, lambda x: x)


def test_the_residual_output_takes_what_the_mass_law_leaves():
    x, raw = draw(5, 1), draw(5, 1, seed=1)
    m = masses(x).squeeze(-2)
    second = ACnet(mass_law(), residuals=[1], dim=2)(raw, x)
    torch.testing.assert_close(second[:, 1:], (x - m[:, :1] * raw) / m[:, 1:], rtol=1e-13, atol=1e-13)
    assert torch.equal(second[:, :1], raw)
    first = ACnet(mass_law(), residuals=[0], dim=2)(raw, x)
    assert torch.equal(first[:, 1:], raw)
    for y in (first, second):
        assert mass_law().violation(y, x).max() < 1e-14


def test_pivoting_chooses_residuals_and_several_laws_hold_together():
    C = draw(3, 7, seed=2)
    layer = ACnet(Equality(C, lambda x: x))
    assert layer.raw_dim == 4
    x, raw = draw(2, 5, 3, seed=3), draw(2, 5, 4, seed=4)
    assert layer.constraint.violation(layer(raw, x), x).max() < 1e-13
    assert ACnet(Affine(tensor([1.0, 2.0]), lower=tensor(1.0), upper=tensor(1.0))).raw_dim == 1


def test_a_law_that_is_linear_after_a_change_of_variables():
    """y1 * y2 = x becomes a sum of logarithms."""
    law = Equality(tensor([1.0, 1.0]), torch.log)
    layer = ACnet(law, residuals=[1], from_linear=lambda z, x: z.exp(), to_linear=lambda y, x: y.log())
    x, raw = tensor([2.0], [0.3]), tensor([0.5], [-1.0])
    y = layer(raw, x)
    torch.testing.assert_close(y.prod(dim=-1, keepdim=True), x, rtol=1e-14, atol=0)
    torch.testing.assert_close(y[:, :1], raw.exp())


def test_gradients_reach_raw_and_the_numbers_of_the_law():
    layer = ACnet(mass_law(), residuals=[1], dim=2)
    torch.autograd.gradcheck(layer, (draw(4, 1, seed=1).requires_grad_(), draw(4, 1).requires_grad_()))


def test_the_factor_follows_moves_and_loads():
    layer, other = (ACnet(Equality(draw(2, 4), tensor(1.0, 2.0))) for _ in range(2))
    raw = draw(3, 2)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(raw), layer(raw))
    assert copy.deepcopy(layer).float()(raw.float()).dtype == torch.float32


def test_nan_stays_in_its_sample():
    layer = ACnet(mass_law(), residuals=[1], dim=2, on_invalid="nan")
    x, raw = draw(3, 1), draw(3, 1, seed=1)
    raw[1] = torch.nan
    y = layer(raw, x)
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()


def test_errors_at_construction():
    with pytest.raises(UnsupportedSetError, match="Ball is not a set of affine rows; use method='auto'"):
        ACnet(Ball(tensor(0.0, 0.0), 1.0))
    with pytest.raises(UnsupportedSetError, match=r"'acnet' cannot enforce this set: it has rows .*'projection'"):
        ACnet(Equality(tensor([1.0, 1.0]), tensor(1.0)) & Box(tensor(0.0, 0.0)))
    with pytest.raises(ValueError, match="from_linear, to_linear: expected a function and its inverse, or neither"):
        ACnet(Equality(tensor([1.0, 1.0]), tensor(1.0)), from_linear=lambda z, x: z)
    with pytest.raises(ShapeError, match=r"residuals: expected distinct outputs in 0\.\.1, got \[1, 1\]"):
        ACnet(Equality(tensor([1.0, 1.0]), tensor(1.0)), residuals=[1, 1])
    with pytest.raises(ShapeError, match=r"residuals: expected one output per equality row, got \[0, 1\] for 1 rows"):
        ACnet(Equality(tensor([1.0, 1.0, 0.0]), tensor(1.0)), residuals=[0, 1])
    with pytest.raises(ShapeError, match="predicted: expected the coordinates that the network predicts"):
        ACnet(mass_law())
    with pytest.raises(RankError, match=r"columns \[1\] .* singular .*solve for \[0\] instead"):
        ACnet(Equality(tensor([1.0, 0.0]), tensor(1.0)), residuals=[1])
    with pytest.raises(RankError, match="linearly independent equality rows, got rank 1"):
        ACnet(Equality(tensor([1.0, 1.0], [2.0, 2.0]), tensor(1.0, 2.0)))
    with pytest.warns(ConditionWarning, match=r"residuals: condition number 2\.0e\+10"):
        ACnet(Equality(tensor([1.0, 1.0, 0.0], [1.0, 1.0 + 2e-10, 0.5]), tensor(1.0, 1.0)), residuals=[0, 1])


def test_errors_at_call():
    moving = ACnet(Equality(lambda x: torch.stack([x, x - 1], dim=-1), tensor(1.0)), residuals=[1], dim=2)
    with pytest.raises(RankError, match=r"columns \[1\].*in samples? 1.*solve for \[0\] instead") as caught:
        moving(tensor([1.0], [1.0]), tensor([0.0], [1.0]))
    assert caught.value.samples == [1]
    with pytest.raises(ShapeError, match=r"raw: expected shape \(\*batch, 1\), got \(2, 2\)"):
        moving(draw(2, 2), tensor([0.0], [0.5]))
    with pytest.raises(NonFiniteError, match=r"raw: expected finite numbers, got NaN or inf.* in samples? 1"):
        moving(tensor([1.0], [torch.inf]), tensor([0.0], [0.5]))
    absolute = ACnet(
        Equality(tensor([1.0, 1.0]), tensor(0.0)), from_linear=lambda z, x: z.abs(), to_linear=lambda y, x: y
    )
    with pytest.raises(NonFiniteError, match=r"expected inverses of each other.* in samples? \[0\]"):
        absolute(tensor([1.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NonFiniteError, match="raw: expected numbers that do not overflow the residual outputs"):
            ACnet(Equality(tensor([1e9, 1.0]), tensor(0.0)), residuals=[1])(tensor([1e305]))
