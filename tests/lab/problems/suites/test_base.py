"""Metrics of the suites by hand, and optima that are of other data."""

import math

import pytest
import torch

from hardnet.errors import FileError
from hardnet_lab.problems.base import moved
from hardnet_lab.problems.suites import base


def test_gaps_by_hand():
    value = torch.tensor([[-9.0, -20.0], [-10.0, -10.0]], dtype=torch.float64)
    optimum = torch.tensor([-10.0, -20.0], dtype=torch.float64)
    found = base.gap_metrics(value, optimum, torch.tensor([[0.0, 0.0], [0.0, 0.1]]))
    assert found["gap"].tolist() == [0.05, 0.25]
    assert found["gap_max"].tolist() == [0.1, 0.5]
    assert found["absolute_gap_max"].tolist() == [1.0, 10.0]
    torch.testing.assert_close(found["absolute_gap_gmean"][0].item(), math.sqrt(1e-16))
    assert found["missed"].tolist() == [0.5, 0.5]


def test_violations_by_hand():
    equalities = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    inequalities = torch.tensor([[[0.0, 0.0, 3.0], [2.0, 1.0, 0.0]]], dtype=torch.float64)
    found = {name: value.item() for name, value in base.violation_metrics(equalities, inequalities).items()}
    assert (found["eq_max"], found["eq_mean"], found["eq_sum"], found["eq_worst"]) == (0.5, 0.25, 0.5, 1.0)
    assert (found["ineq_max"], found["ineq_mean"], found["ineq_sum_worst"], found["ineq_worst"]) == (2.5, 1.0, 3.0, 3.0)
    assert (found["max_violation"], found["worst_violation"], found["violated"]) == (2.5, 3.0, 2.0)


def test_no_rows_of_a_kind_are_no_violation():
    found = base.violation_metrics(torch.zeros(4, 0), torch.ones(4, 2))
    assert "eq_max" not in found
    assert found["worst_violation"] == 1


def test_a_fingerprint_sees_every_bit_and_the_order():
    one, two = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    assert base.fingerprint(one, two) != base.fingerprint(two, one)
    assert base.fingerprint(one) != base.fingerprint(one.add(5e-324))


def test_optima_of_other_data_are_refused(monkeypatch):
    from hardnet_lab.problems.suites import SuitePrograms

    monkeypatch.setattr(base, "reference", lambda name: {"checksum": "0", "optimum": [0.0]})
    with pytest.raises(FileError, match="are not those of the recorded optima"):
        SuitePrograms("dc3-small", 6, 3, 2, samples=40)


def test_a_sample_without_an_answer_pulls_on_nothing():
    raw = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[0.0, 1.0], [math.nan, math.nan], [1.0, 1.0]], dtype=torch.float64)
    moved(y, raw).sum().backward()
    assert raw.grad.tolist() == [[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
