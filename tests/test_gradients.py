"""The monitor of vanishing gradients and the leaky remedy, on Appendix C of the paper."""

import pytest
import torch

import hardnet as hn
from hardnet.functional.derivatives import leak_gradient
from tests.draws import draw

pytestmark = pytest.mark.core

D = torch.float64


class Constant(torch.nn.Module):
    """A network of one learned output, whatever the input."""

    def __init__(self, value):
        super().__init__()
        self.value = torch.nn.Parameter(torch.tensor(value, dtype=D))

    def forward(self, x):
        return self.value.expand(*x.shape[:-1], len(self.value))


def ceiling():
    return hn.Affine(torch.tensor([[0.0, 1.0]], dtype=D), upper=0.9)


def test_a_harmful_zero_is_found():
    """The target lies straight below the boundary: the way there is free, but the gradient is normal to the row."""
    model, x = hn.HardNet(Constant([-0.5, 2.0]), ceiling()), torch.zeros(1, 1, dtype=D)
    target = torch.tensor([-0.5, 0.5], dtype=D)
    flow = hn.gradient_flow(model, x, lambda y: (y - target).square().sum())
    assert flow.moved.item()
    assert flow.kept.item() < 1e-12
    assert flow.stuck.item()
    assert "100% stuck" in str(flow)


def test_a_rightful_zero_is_not_called_stuck():
    model, x = hn.HardNet(Constant([-0.5, 2.0]), ceiling()), torch.zeros(1, 1, dtype=D)
    target = torch.tensor([-0.5, 3.0], dtype=D)
    flow = hn.gradient_flow(model, x, lambda y: (y - target).square().sum())
    assert flow.kept.item() < 1e-12
    assert not flow.stuck.item()


def test_inside_everything_is_kept():
    model, x = hn.HardNet(Constant([-0.5, 0.1]), ceiling()), torch.zeros(3, 1, dtype=D)
    flow = hn.gradient_flow(model, x, lambda y: y.square().sum())
    assert not flow.moved.any()
    assert torch.equal(flow.kept, torch.ones(3, dtype=D))


def train(leak):
    model, x = hn.HardNet(Constant([-0.5, 2.0]), ceiling(), leak=leak), torch.zeros(1, 1, dtype=D)
    target = torch.tensor([-0.5, 0.5], dtype=D)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        loss = (model(x) - target).square().sum()
        loss.backward()
        optimizer.step()
        assert hn.check(model.constraint, model(x)).ok
    return loss.item()


def test_a_leak_frees_what_is_stuck():
    assert train(leak=0.0) == pytest.approx(0.16)
    assert train(leak=0.1) < 1e-8


def test_a_leak_changes_gradients_by_its_share_and_values_not_at_all():
    raw, x = draw(5, 4).requires_grad_(), None
    layer = hn.layers.HardNetAff(hn.Affine(draw(2, 4, seed=1), upper=0.0))
    y = layer(raw, x)
    leaky = leak_gradient(y, raw, 0.25)
    assert torch.allclose(leaky, y, rtol=0, atol=1e-15)
    g = draw(5, 4, seed=2)
    exact, mixed = (torch.autograd.grad(out, raw, g, retain_graph=True)[0] for out in (y, leaky))
    assert torch.allclose(mixed, 0.75 * exact + 0.25 * g, rtol=0, atol=1e-12)


def test_refusals():
    constraint = hn.Equality(draw(1, 4), 0.0)
    with pytest.raises(hn.errors.OptionError, match="leak: expected a share"):
        hn.HardNet(torch.nn.Linear(4, 4).double(), constraint, leak=2.0)
    model = hn.HardNet(torch.nn.Linear(4, 3).double(), constraint, "aff-eq", leak=0.5)
    with pytest.raises(hn.errors.ShapeError, match="use leak=0 with this method"):
        model(draw(2, 4))
    with pytest.raises(hn.errors.ShapeError, match="raw output has the dimension of y"):
        hn.gradient_flow(model, draw(2, 4), lambda y: y.sum())


def test_what_each_mode_would_keep_is_what_it_keeps():
    x, raw = draw(6, 2, seed=3), 3 * draw(6, 4, seed=4)
    constraint = hn.Affine(draw(2, 4, seed=5), upper=0.1) & hn.Box(-1.0, 1.0)
    loss = lambda y: (y - 0.3).square().sum()
    models = {
        mode: hn.HardNet(Constant([0.0]), constraint, "projection", **options)
        for mode, options in (
            ("gradient='exact'", {}),
            ("gradient='tangent'", {"gradient": "tangent"}),
            ("leak=0.1", {"leak": 0.1}),
        )
    }
    for model in models.values():
        model.net = torch.nn.Linear(2, 4).double()
        model.net.forward = lambda x: raw  # the same raw outputs for all
    flows = {mode: hn.gradient_flow(model, x, loss) for mode, model in models.items()}
    assert set(flows["gradient='exact'"].modes) == {"gradient='tangent'", "leak=0.1"}
    assert set(flows["gradient='tangent'"].modes) == {"gradient='exact'", "leak=0.1"}
    assert set(flows["leak=0.1"].modes) == {"gradient='tangent'"}
    for mode, expected in flows["gradient='exact'"].modes.items():
        assert torch.allclose(expected, flows[mode].kept, rtol=0, atol=1e-12)
    assert torch.allclose(
        flows["gradient='tangent'"].modes["gradient='exact'"], flows["gradient='exact'"].kept, rtol=0, atol=1e-12
    )
    assert "kept with leak=0.1" in str(flows["gradient='exact'"])


def test_a_network_without_a_layer_is_refused():
    with pytest.raises(hn.errors.DTypeError, match="model: expected a HardNet, got Linear"):
        hn.gradient_flow(torch.nn.Linear(2, 2), draw(3, 2), lambda y: y.sum())  # pyright: ignore[reportArgumentType]
