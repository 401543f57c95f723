"""`hn.best_of`: every candidate holds, none is worse than the model's own answer, and more never lose."""

import pytest
import torch

import hardnet as hn

pytestmark = pytest.mark.core


def program(n=3):
    """A nonconvex objective on a simplex, and a network that was never trained."""
    torch.manual_seed(0)
    constraint = hn.Simplex(n, total=2.0)
    model = hn.HardNet(torch.nn.Linear(2, n).double(), constraint)
    objective = lambda y, x: (y * x[..., :1]).sin().sum(-1) + y.square().sum(-1)
    return model, torch.randn(50, 2, dtype=torch.float64), objective


def test_candidates_hold_and_are_never_worse_than_the_answer():
    model, x, objective = program()
    own = objective(model(x), x)
    torch.manual_seed(1)
    few = hn.best_of(model, x, objective, 4)
    torch.manual_seed(1)
    more = hn.best_of(model, x, objective, 16)  # the first four are the same
    for y in (few, more):
        assert hn.check(model.constraint, y).ok
        assert not y.requires_grad
    assert (objective(few, x) <= own).all()
    assert (objective(more, x) <= objective(few, x)).all()
    assert objective(more, x).mean() < own.mean() - 1e-3


def test_one_candidate_is_the_answer():
    model, x, objective = program()
    assert torch.equal(hn.best_of(model, x, objective, 1), model(x))


def test_refusals():
    model, x, objective = program()
    with pytest.raises(hn.errors.OptionError, match="k: expected at least 1 candidate, got 0"):
        hn.best_of(model, x, objective, 0)
    with pytest.raises(hn.errors.ShapeError, match=r"objective: expected a value per sample, \(50,\), got \(\)"):
        hn.best_of(model, x, lambda y, x: y.sum(), 2)
