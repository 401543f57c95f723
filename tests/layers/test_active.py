"""The rows that hold an answer, by name: `layer.active`, and ``model(x, return_solution=True)``."""

import pytest
import torch

import hardnet as hn
from hardnet.solvers import Status

D = torch.float64


def constraint():
    rows = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=D)
    return hn.Box(-1.0, 1.0, name="limits") & hn.Affine(rows, upper=lambda x: x, name=["total", "balance"])


RAW = torch.tensor([[0.0, 0.0], [2.0, 2.0], [3.0, 0.2], [0.1, -3.0]], dtype=D)
X = torch.tensor([[1.0, 1.0], [1.0, 1.0], [5.0, 5.0], [1.0, 0.5]], dtype=D)


@pytest.mark.parametrize("method", ["projection", "cvx"])
def test_rows_with_a_multiplier_are_active_and_rows_with_room_are_not(method):
    layer = hn.HardNet(torch.nn.Identity(), constraint(), method).layer
    active = layer.active(RAW, X)
    found = layer.solve(RAW, X)
    names = [*["total", "balance"], "limits[0]", "limits[1]"]
    for place, name in enumerate(names):
        pressed = found.dual[:, place].abs() > 1e-9
        assert bool((active.get(name, torch.zeros_like(pressed)) | ~pressed).all()), name
    y = layer(RAW, X)
    room = {"total": X[:, 0] - y.sum(-1), "balance": X[:, 1] - (y[:, 0] - y[:, 1])}
    for name, left in room.items():
        assert not bool((active.get(name, torch.zeros(4, dtype=torch.bool)) & (left > 1e-9)).any()), name
    assert not any(bool(rows[0]) for rows in active.values())


def test_rows_that_give_way_are_active():
    hard = hn.Box(-1.0, 1.0, name="limits")
    soft = hn.Relaxed(hn.Affine(torch.tensor([[1.0, 0.0]], dtype=D), lower=2.0, name="far"), weight=1.0)
    layer = hn.HardNet(torch.nn.Identity(), hard & soft).layer
    active = layer.active(RAW)
    assert active["far"].all()
    assert active["limits[0]"].all()


def test_a_set_of_curved_rows_is_refused_in_a_sentence():
    layer = hn.HardNet(torch.nn.Identity(), hn.Ball(torch.zeros(2, dtype=D), 1.0)).layer
    with pytest.raises(hn.errors.UnsupportedSetError, match="affine rows"):
        layer.active(RAW)


def test_a_model_returns_y_with_its_gradient_the_status_and_the_active_rows():
    torch.manual_seed(0)
    model = hn.HardNet(torch.nn.Linear(2, 2).double(), constraint(), on_infeasible="nan")
    x = X.clone()
    x[3] = -9.0  # empty
    answer = model(x, return_solution=True)
    good = torch.tensor([True, True, True, False])
    assert torch.equal(answer.status == int(Status.SOLVED), good)
    assert answer.status[3] == int(Status.INFEASIBLE)
    assert torch.equal(answer.y[good], model(x)[good])
    assert torch.equal(answer.raw, model(x, enforce=False))
    answer.y[good].sum().backward()
    assert next(model.parameters()).grad is not None
    assert all(rows.shape == (4,) and not rows[3] for rows in answer.active.values())
    with pytest.raises(hn.errors.OptionError, match="return_solution"):
        model(x, enforce=False, return_solution=True)


def test_methods_without_a_solver_say_that_a_sample_is_in_the_set():
    model = hn.HardNet(torch.nn.Linear(2, 2).double(), hn.Affine(torch.eye(2, dtype=D), upper=0.0), "aff")
    assert (model(X, return_solution=True).status == int(Status.FEASIBLE)).all()
