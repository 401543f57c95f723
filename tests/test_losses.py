"""Losses: known values, gradients, refusals."""

import pytest
import torch

import hardnet as hn

pytestmark = pytest.mark.core


def test_displacement_is_the_mean_squared_distance_and_pulls_raw_towards_the_set():
    model = hn.HardNet(torch.nn.Identity(), hn.Box(torch.zeros(2), torch.ones(2)))
    x = torch.tensor([[3.0, 0.5], [-1.0, 2.0]], requires_grad=True)
    y, raw = model(x, return_raw=True)
    loss = hn.losses.displacement(raw, y)
    assert loss == (4 + 1 + 1) / 2
    loss.backward()
    assert torch.equal(x.grad, torch.tensor([[2.0, 0.0], [-1.0, 1.0]]))


def test_other_shapes_are_refused():
    with pytest.raises(hn.errors.ShapeError, match=r"raw: expected the shape of y, \(2, 3\), got \(2, 2\)"):
        hn.losses.displacement(torch.zeros(2, 2), torch.zeros(2, 3))
