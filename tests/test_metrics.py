"""Violations as the paper counts them, the penalty and the gap."""

import pytest
import torch

import hardnet as hn

pytestmark = pytest.mark.core


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
