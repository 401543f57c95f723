"""An empty set is called empty also where no host looks: by the rows of the last iterate that contradict each other."""

import pytest
import torch

from hardnet.functional.nearest import any_rows
from hardnet.nearest.policy import QUIET, answered
from hardnet.rows import take_rows
from hardnet.solvers import Status
from tests.solvers.families import solved

D = torch.float64


def contradicting(m, n, gap, seed, unit=1.0, batch=40):
    """Rows of which the last is against a sum of others, through a common point but for `gap`."""
    random = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=random, dtype=D)
    A = draw(batch, m, n)
    weight = torch.where(torch.arange(m - 1) < min(n, m // 2 + 1), draw(batch, m - 1).abs() + 0.1, 0.0)
    A[:, -1] = -(weight.unsqueeze(-1) * A[:, :-1]).sum(1)
    upper = (A @ draw(batch, n, 1)).squeeze(-1)
    upper[:, min(n, m // 2 + 1) : -1] += draw(batch, m)[:, min(n, m // 2 + 1) : -1].abs()
    upper[:, -1] -= gap
    return unit * 3 * draw(batch, n), A, torch.full_like(upper, -torch.inf), unit * upper


@pytest.mark.parametrize(("m", "n"), [(3, 2), (6, 3), (12, 6), (20, 10)])
@pytest.mark.parametrize("unit", [1.0, 1e-12, 1e12])
def test_an_empty_set_is_called_so_without_a_look(m, n, unit, monkeypatch):
    """Most are proved, all others are NOT_CONVERGED, and every proof is one: ``A'ray = 0`` and a sum of bounds < 0."""
    raw, A, lower, upper = contradicting(m, n, 0.5, seed=m, unit=unit)
    assert (solved(raw, A, lower, upper).status == Status.INFEASIBLE).all()
    monkeypatch.setattr("hardnet.rows.may_look", lambda _: False)
    found = any_rows(take_rows(raw, A, lower, upper), QUIET, prove=True)
    proved = found.status == Status.INFEASIBLE
    assert proved.double().mean() >= 0.8
    assert (found.status[~proved] == Status.NOT_CONVERGED).all()
    assert answered(found).isnan().all()
    ray, rows, bounds = found.dual[proved], A[proved], upper[proved]
    assert (ray >= 0).all()
    assert (ray.amax(-1) == 1).all()
    leak = (ray.unsqueeze(-2) @ rows).squeeze(-2).abs().sum(-1)
    missing = -(ray * bounds).sum(-1)
    assert (missing > 100 * leak * raw[proved].abs().amax(-1)).all()


@pytest.mark.parametrize(("m", "n"), [(3, 2), (6, 3), (12, 6), (20, 10)])
def test_no_other_set_is_called_empty(m, n, monkeypatch):
    monkeypatch.setattr("hardnet.rows.may_look", lambda _: False)
    for gap in (0.0, -1e-9, -1.0):  # a common point, a little room, much room
        found = any_rows(take_rows(*contradicting(m, n, gap, seed=m)), QUIET, prove=True)
        assert (found.status != Status.INFEASIBLE).all()
