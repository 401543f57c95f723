"""The meta device: models are built there, filled by a load, and serve as the base of an ensemble."""

import copy

import pytest
import torch
from torch.func import functional_call, stack_module_state

import hardnet as hn


def rows():
    return hn.Affine(torch.arange(8.0).reshape(2, 4).cos(), upper=torch.ones(2))


def equalities():
    return hn.Equality(torch.arange(8.0).reshape(2, 4).cos(), torch.ones(2))


def box():
    return hn.Box(torch.zeros(4), torch.ones(4))


def network(outputs=4):
    return torch.nn.Linear(3, outputs)


@pytest.mark.parametrize("build", [rows, equalities, box, lambda: hn.Simplex(4), lambda: hn.Ball(torch.zeros(4), 1.0)])
def test_a_model_built_on_the_meta_device_enforces_after_a_load(build):
    with torch.device("meta"):
        model = hn.HardNet(network(), build())
    real = hn.HardNet(network(), build())
    model.to_empty(device="cpu").load_state_dict(real.state_dict())
    x = torch.randn(5, 3)
    assert torch.equal(model(x), real(x))


@pytest.mark.parametrize("method", ["aff-eq", "acnet", "kkt-hpinn", "dc3", "rayen", "cdgm", "linsat", "cone"])
def test_methods_that_need_the_numbers_say_so(method):
    with torch.device("meta"), pytest.raises(hn.errors.UnsupportedSetError, match="its numbers are on the meta device"):
        hn.HardNet(network(), equalities(), method)


@pytest.mark.parametrize(
    ("build", "method"),
    [
        (rows, "aff"),
        (equalities, "aff-eq"),
        (equalities, "acnet"),
        (equalities, "kkt-hpinn"),
        (rows, "dc3"),
        (box, "cvx"),
        (box, "rayen"),
        (rows, "cdgm"),
        (rows, "soft"),
    ],
)
def test_an_ensemble_on_a_meta_base(build, method):
    constraint = build()
    outputs = hn.layers.LAYERS[method](constraint).raw_dim
    models = [hn.HardNet(network(outputs), constraint, method) for _ in range(3)]
    x = torch.randn(5, 3)
    parameters, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    together = torch.vmap(lambda p, b: functional_call(base, (p, b), (x,)))(parameters, buffers)
    torch.testing.assert_close(together, torch.stack([model(x) for model in models]))
