"""DC3: known answers, exact equalities, descent of the inequalities, per-sample stopping, errors."""

import copy

import pytest
import torch

from hardnet.errors import BoundsError, NonFiniteError, RankError, ShapeError, UnsupportedSetError
from hardnet.layers import DC3
from hardnet.sets import Affine, Box, ConstraintSet, Equality, Simplex
from hardnet_lab.problems.programs import opt
from tests.draws import draw, tensor

F64 = torch.float64


def line():
    """y1 + y2 = 1 and y1 <= 1/4."""
    return Equality(tensor([1.0, 1.0]), tensor(1.0)) & Affine(tensor([1.0, 0.0]), upper=tensor(0.25))


def program(n=8, equalities=3, inequalities=4):
    """-2 <= A y <= 1, C y = x with constant matrices: the shape of the paper's optimization task."""
    A, C, ones = draw(inequalities, n, seed=1), draw(equalities, n, seed=2), torch.ones(inequalities, dtype=F64)
    return Affine(A, lower=-2 * ones, upper=ones) & Equality(C, lambda x: x)


def published_iteration(y, A, lower, upper, steps, step, momentum=0.5, sign=-1.0):
    """Heavy ball on all outputs, as the published code does it, by autograd-free formulas."""
    move = torch.zeros_like(y)
    for _ in range(steps):
        above, below = (y @ A.mT - upper).clamp_min(0), (lower - y @ A.mT).clamp_min(0)
        move = step * 2 * (above + sign * below) @ A + momentum * move
        y = y - move
    return y


def test_known_answer_of_the_published_iteration():
    expected = [0.75, 0.65, 0.52, 0.401, 0.3113, 0.25419]
    for steps, first in enumerate(expected):
        y = DC3(line(), predicted=[0], steps=steps, step=0.1, momentum=0.5)(tensor(0.75))
        torch.testing.assert_close(y, tensor(first, 1 - first), rtol=0, atol=1e-12)


@pytest.mark.parametrize("A_rows", [2, 5])  # fewer and more rows than outputs: the two forms of the Gram operator
@pytest.mark.parametrize(("published_sign", "sign"), [(False, -1.0), (True, 1.0)])
def test_full_mode_is_the_published_iteration(A_rows, published_sign, sign):
    A, raw = draw(A_rows, 3, seed=3), draw(2, 6, 3, seed=4)
    lower, upper = -0.1 * torch.ones(A_rows, dtype=F64), 0.2 * torch.ones(A_rows, dtype=F64)
    layer = DC3(Affine(A, lower=lower, upper=upper), step=1e-2, published_sign=published_sign)
    expected = published_iteration(raw, A, lower, upper, 10, 1e-2, sign=sign)
    torch.testing.assert_close(layer(raw), expected, rtol=1e-12, atol=1e-12)


def test_the_published_sign_raises_lower_violations_and_the_right_one_lowers_them():
    constraint = Affine(tensor([1.0, 0.0]), lower=tensor(1.0))
    raw = tensor([0.0, 0.0])
    before = constraint.violation(raw)
    assert (DC3(constraint, step=1e-2)(raw)[..., 0] > 0).all()
    assert (constraint.violation(DC3(constraint, step=1e-2, published_sign=True)(raw)) > before).all()


def test_partial_mode_keeps_equalities_exact_and_is_descent_through_the_completion():
    constraint, x, z = program(), draw(7, 3, seed=5), draw(7, 5, seed=6)
    layer = DC3(constraint, steps=30, step=1e-3, momentum=0.5)
    assert layer.raw_dim == 5
    y = layer(z, x)
    assert constraint.members[1].violation(y, x).max() < 1e-13

    def completed(point):
        return DC3(constraint, steps=0)(point, x)

    point, move = z, torch.zeros_like(z)
    for _ in range(30):
        point = point.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(constraint.members[0].violation(completed(point), x).square().sum(), point)
        move = 1e-3 * gradient + 0.5 * move
        point = point - move
    torch.testing.assert_close(y, completed(point), rtol=1e-10, atol=1e-11)


def test_inequalities_converge_with_the_automatic_step():
    constraint, x, z = program(), draw(50, 3, seed=5), 3 * draw(50, 5, seed=6)
    few, many = (constraint.violation(DC3(constraint, steps=steps)(z, x), x).max() for steps in (10, 4000))
    assert many < 1e-6 < few


def test_stable_steps_on_the_data_of_the_paper():
    """sigma_max^2 of the reduced rows: 6.5e3 with the pivoted partition, 8.6e4 with the published random one."""
    problem = opt()
    pivoted, published = DC3(problem.constraint), DC3(problem.constraint, predicted=problem.dc3.predicted)
    assert 1 / (2 * pivoted._kept.step.item()) == pytest.approx(6.5e3, rel=0.01)
    assert 1 / (2 * published._kept.step.item()) == pytest.approx(8.6e4, rel=0.01)
    assert pivoted._sides == (False, True)
    y = pivoted(draw(20, 50), problem.test[:20])
    assert problem.equalities.violation(y, problem.test[:20]).max() < 1e-12


def test_automatic_step_is_half_of_the_stable_limit_and_its_bound_never_exceeds_it():
    A = draw(4, 6, seed=7)
    exact = 1 / (2 * torch.linalg.matrix_norm(A, 2) ** 2)
    constant = DC3(Affine(A, upper=tensor(0.0, 0.0, 0.0, 0.0)))
    varying = DC3(Affine(lambda x: A.expand(*x.shape[:-1], 4, 6), upper=tensor(0.0, 0.0, 0.0, 0.0)))
    raw = draw(3, 6, seed=8)
    torch.testing.assert_close(constant(raw), DC3(constant.constraint, step=exact.item())(raw))
    from hardnet.functional.dc3 import largest_step

    assert 4 ** (-1 / 16) * exact <= largest_step(A) <= exact * (1 + 1e-12)
    assert (varying.constraint.violation(varying(raw, raw), raw) <= varying.constraint.violation(raw, raw)).all()


def test_per_sample_matrices_agree_with_constant_ones():
    constraint, x, z = program(), draw(2, 4, 3, seed=5), draw(2, 4, 5, seed=6)
    A, C = constraint.members[0].A, constraint.members[1].A
    ones = torch.ones(4, dtype=F64)
    varying = Affine(lambda x: A.expand(*x.shape[:-1], -1, -1), lower=-2 * ones, upper=ones) & Equality(
        lambda x: C.expand(*x.shape[:-1], -1, -1), lambda x: x
    )
    constant = DC3(constraint, step=1e-3)
    layer = DC3(varying, predicted=constant.predicted.tolist(), dim=8, step=1e-3)
    assert layer.raw_dim == 5
    torch.testing.assert_close(layer(z, x), constant(z, x), rtol=1e-12, atol=1e-12)


def test_extra_steps_only_in_evaluation_and_each_sample_stops_by_itself():
    constraint = Affine(tensor([1.0]), upper=tensor(0.0))
    layer = DC3(constraint, steps=0, extra_steps=50, step=0.25, momentum=0.0, tolerance=0.1)
    raw = tensor([0.05], [1.0], [8.0])
    assert torch.equal(layer.train()(raw), raw)
    y = layer.eval()(raw)
    torch.testing.assert_close(y, tensor([0.05], [1 / 16], [8 / 128]))  # halved until at most 0.1
    for sample in range(3):
        assert torch.equal(layer(raw[sample]), y[sample])


def test_identity_inside_bit_for_bit_without_completion():
    raw = torch.rand(100, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    assert torch.equal(DC3(Box(torch.zeros(3, dtype=F64), torch.ones(3, dtype=F64)))(raw), raw)


def test_pivoting_completes_an_invertible_block_where_a_fixed_one_is_singular():
    C = tensor([0.0, 1.0, 0.0], [0.0, 1.0, 1e-3])
    layer = DC3(Equality(C, tensor(1.0, 2.0)))
    assert layer.predicted.tolist() == [0]
    assert layer.constraint.violation(layer(draw(4, 1))).max() < 1e-12


def test_equalities_may_be_rows_with_equal_constant_bounds():
    rows = Affine(tensor([1.0, 1.0, 0.0], [0.0, 1.0, 1.0]), lower=tensor(1.0, -1.0), upper=tensor(1.0, 2.0))
    layer = DC3(rows)
    assert layer.raw_dim == 2
    assert (layer(draw(5, 2)) @ tensor(1.0, 1.0, 0.0) - 1).abs().max() < 1e-14
    assert DC3(rows, completion=False).raw_dim == 3


def test_the_sum_of_a_simplex_is_completed_for_any_total():
    layer = DC3(Simplex(3, total=lambda x: x[..., 0]))
    assert layer.raw_dim == 2
    x = tensor([1.0], [4.0])
    torch.testing.assert_close(layer(draw(2, 2), x).sum(-1, keepdim=True), x, rtol=1e-15, atol=1e-15)


def test_gradients_reach_raw_matrices_and_bounds():
    A = draw(2, 3, seed=1)
    constraint = Affine(lambda x: x[..., :6].unflatten(-1, (2, 3)), upper=lambda x: x[..., 6:])
    x = torch.cat([A.flatten(), tensor(0.1, -0.2)]).expand(4, -1).clone() + 0.1 * draw(4, 8, seed=2)
    full = DC3(constraint, steps=4)
    torch.autograd.gradcheck(full, (draw(4, 3, seed=3).requires_grad_(), x.requires_grad_()))
    partial = DC3(program(), steps=4, extra_steps=3, tolerance=0.1).eval()
    torch.autograd.gradcheck(partial, (draw(4, 5, seed=3).requires_grad_(), draw(4, 3).requires_grad_()))
    learned = DC3(Equality(torch.nn.Parameter(draw(1, 3)), tensor(1.0)) & Box(0.0, 1.0), steps=2)
    learned(draw(4, 2)).square().sum().backward()
    assert learned.constraint.members[0].A.grad.abs().sum() > 0


def test_the_reduction_follows_moves_and_loads():
    layer, x, z = DC3(program()), draw(4, 3), draw(4, 5)
    single = copy.deepcopy(layer).float()
    torch.testing.assert_close(single(z.float(), x.float()), layer(z, x).float(), rtol=1e-4, atol=1e-4)
    other = DC3(program())
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(z, x), layer(z, x))


def test_compiles_without_a_break():
    layer, x, z = DC3(program()), draw(4, 3), draw(4, 5)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(z, x), layer(z, x))


def test_vmap_over_seeds():
    layer, x, z = DC3(program()), draw(3, 4, 3), draw(3, 4, 5)
    torch.testing.assert_close(torch.vmap(layer)(z, x), layer(z, x))


def test_bad_samples_are_nan_alone():
    constraint = Affine(lambda x: x.unsqueeze(-2), upper=tensor(1.0))
    layer = DC3(constraint, on_invalid="nan")
    x, raw = draw(4, 2), draw(4, 2, seed=1)
    bad, poisoned = x.clone(), raw.clone()
    bad[1, 0] = torch.nan
    poisoned[2, 1] = torch.inf
    y = layer(poisoned, bad)
    assert y[1].isnan().all()
    assert y[2].isnan().all()
    assert torch.equal(y[[0, 3]], layer(raw, x)[[0, 3]])


class Curved(ConstraintSet):
    """A set that is not polyhedral."""


def test_errors_name_argument_samples_and_remedy():
    with pytest.raises(UnsupportedSetError, match=r"'dc3' cannot enforce this set: Curved is not .*use method='auto'"):
        DC3(Curved())
    with pytest.raises(ValueError, match="step: expected a positive number or 'auto', got -1"):
        DC3(line(), step=-1)
    with pytest.raises(ValueError, match="steps: expected a whole number of at least 0, got -1"):
        DC3(line(), steps=-1)
    with pytest.raises(ShapeError, match=r"predicted: expected distinct coordinates in 0\.\.1, got \[2\]"):
        DC3(line(), predicted=[2])
    with pytest.raises(ShapeError, match=r"predicted: expected 1 completed outputs, one per equality row, got 0"):
        DC3(line(), predicted=[0, 1])
    with pytest.raises(ShapeError, match=r"predicted: expected the coordinates .* pass predicted"):
        DC3(Equality(lambda x: x, tensor(1.0)), completion=True)
    with pytest.raises(RankError, match="expected 2 linearly independent equality rows, got rank 1"):
        DC3(Equality(tensor([1.0, 2.0], [2.0, 4.0]), tensor(1.0, 2.0)))
    with pytest.raises(ShapeError, match=r"raw: expected shape \(\*batch, 1\), got \(3, 2\)"):
        DC3(line())(draw(3, 2))


def test_errors_at_call_name_the_samples():
    with pytest.raises(NonFiniteError, match=r"raw: expected finite numbers, got NaN or inf.* in samples? 1") as caught:
        DC3(line())(tensor([0.0], [torch.nan]))
    assert caught.value.samples == [1]
    with pytest.raises(BoundsError, match="upper: expected numbers other than NaN and -inf, got -inf"):
        DC3(Affine(tensor([1.0]), upper=lambda x: x))(tensor([0.0]), tensor([-torch.inf]))
    with pytest.raises(NonFiniteError, match=r"A: expected finite numbers, got NaN or inf.* in samples? 0"):
        DC3(Affine(lambda x: x, upper=tensor(0.0)), step=0.1)(tensor([0.0]), tensor([[torch.nan]]))
    with pytest.raises(BoundsError, match="lower, upper: expected lower <= upper"):
        DC3(Affine(tensor([1.0]), lower=lambda x: x, upper=tensor(0.0)))(tensor([0.0]), tensor([1.0]))
    with pytest.raises(NonFiniteError, match="correction diverged: lower the step, or use step='auto'"):
        DC3(Affine(tensor([1.0]), lower=tensor(0.0), upper=tensor(0.0)), steps=1000, step=100.0, completion=False)(
            tensor([1.0])
        )
    moving = Equality(lambda x: torch.stack([x, x - 1], dim=-1), tensor(1.0))
    layer = DC3(moving, predicted=[0], dim=2)
    assert moving.violation(layer(tensor([1.0], [1.0]), tensor([0.0], [2.0])), tensor([0.0], [2.0])).max() < 1e-15
    with pytest.raises(RankError, match=r"columns \[1\] of the equalities.*singular in samples? 1") as caught:
        layer(tensor([1.0], [1.0]), tensor([0.0], [1.0]))
    assert caught.value.samples == [1]
