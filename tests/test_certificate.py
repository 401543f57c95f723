"""The certificate speaks the truth: in float64, per sample, also about NaN and rounding."""

from fractions import Fraction

import pytest
import torch

import hardnet as hn
from tests.cases import draw


def test_names_what_is_violated():
    constraint = hn.Affine(torch.eye(2), upper=torch.ones(2))
    certificate = hn.check(constraint, torch.tensor([[0.0, 0.0], [0.0, 3.0]]))
    assert certificate.satisfied.tolist() == [True, False]
    assert certificate.max_violation == 2.0
    assert not certificate.ok
    assert "1 of 2 samples" in str(certificate)
    assert "row 1 of sample (1,)" in str(certificate)


def test_evaluates_in_float64():
    # in float32 the sum 1e8 + 1 rounds to 1e8 and the violation of 1 would go unseen
    constraint = hn.Affine(torch.tensor([[1.0, 1.0]]), upper=torch.tensor([1e8]))
    certificate = hn.check(constraint, torch.tensor([[1e8, 1.0]]), tolerance=0.5)
    assert certificate.violation.dtype == torch.float64
    assert certificate.violation.item() == 1.0
    assert not certificate.ok


def test_nan_satisfies_nothing():
    certificate = hn.check(hn.Box(0.0, 1.0), torch.tensor([[torch.nan, 0.5], [0.5, 0.5]]))
    assert certificate.satisfied.tolist() == [False, True]
    assert not certificate.ok


def test_rounding_is_relative_to_the_terms_of_the_row():
    constraint = hn.Affine(torch.tensor([[1e6, -1e6]], dtype=torch.float64), lower=0.0, upper=0.0)
    y = torch.tensor([[1 / 3, 1 / 3 + 1e-16]], dtype=torch.float64)
    assert hn.check(constraint, y).ok
    assert not hn.check(constraint, y + torch.tensor([0.0, 1e-12], dtype=torch.float64)).ok


def test_agrees_with_rational_arithmetic():
    A, y = draw(3, 4), draw(50, 4, seed=1)
    certificate = hn.check(hn.Affine(A, upper=0.0), y, tolerance=0.0)
    for sample, violation in zip(y.tolist(), certificate.violation.tolist(), strict=True):
        for row, got in zip(A.tolist(), violation, strict=True):
            exact = sum((Fraction(a) * Fraction(v) for a, v in zip(row, sample, strict=True)), Fraction(0))
            assert abs(Fraction(got) - max(exact, Fraction(0))) < Fraction(1, 10**14)


def test_empty_batch_is_satisfied():
    certificate = hn.check(hn.Box(0.0, 1.0), torch.zeros(0, 3))
    assert certificate.ok
    assert certificate.max_violation == 0.0


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4)])
def test_any_batch_shape(shape):
    certificate = hn.check(hn.Box(-9.0, 9.0), draw(*shape))
    assert certificate.satisfied.shape == shape[:-1]


def test_metrics_of_the_paper():
    constraint = hn.Affine(torch.eye(2, dtype=torch.float64), upper=0.0) & hn.Equality(
        torch.tensor([[1.0, 1.0]], dtype=torch.float64), 1.0
    )
    y = torch.tensor([[2.0, -1.0], [5e-5, 1.0]], dtype=torch.float64)
    inequalities, equalities = hn.metrics.violations(constraint, y)
    assert inequalities.largest.tolist() == [2.0, 1.0]
    assert inequalities.mean.tolist() == [1.0, (1 + 5e-5) / 2]
    assert inequalities.number.tolist() == [1.0, 1.0]
    assert equalities.largest.tolist() == pytest.approx([0.0, 5e-5], abs=1e-15)
    assert equalities.number.tolist() == [0.0, 0.0]
    assert inequalities.average() == (1.5, pytest.approx(0.7500125), 1.0)


def test_penalty_and_gap():
    y = torch.tensor([[2.0, 0.5], [0.5, 0.5]])
    assert hn.metrics.penalty(hn.Box(0.0, 1.0), y).tolist() == [1.0, 0.0]
    gap = hn.metrics.optimality_gap(torch.tensor([-13.0, 0.5]), torch.tensor([-14.0, 0.25]))
    assert gap.tolist() == pytest.approx([1 / 14, 0.25])


def test_a_set_without_rows_of_one_kind_reports_zeros():
    inequalities, equalities = hn.metrics.violations(hn.Box(0.0), torch.tensor([[-1.0]]))
    assert inequalities.largest.tolist() == [1.0]
    assert equalities.largest.tolist() == [0.0]


@pytest.mark.parametrize("y", [[0.0, 1.0], torch.ones(2, 2, dtype=torch.int64)])
def test_refuses_outputs_that_are_no_float_tensor(y):
    with pytest.raises(hn.errors.DTypeError, match="y: expected a"):
        hn.check(hn.Box(0.0, 1.0), y)


def test_an_output_that_should_be_zero_has_a_floor():
    """What a closed form leaves of an exact 0 is a rounding of a rounding; relative to itself it would be all."""
    corner = hn.Affine(torch.eye(3, dtype=torch.float64), upper=0.0)
    residue = torch.full((1, 3), 1e-33, dtype=torch.float64)
    assert hn.check(corner, residue).ok
    assert not hn.check(corner, 1e13 * residue).ok
