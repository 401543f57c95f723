"""Method and options travel in the state dict: others are refused by name, their absence is a warning."""

import copy
import io
import pickle
import warnings
from dataclasses import dataclass

import pytest
import torch

import hardnet as hn
from hardnet.errors import FileWarning, StateError
from tests.cases import CASES, bound_of, constant_rows, many_rows
from tests.draws import draw

F64 = torch.float64
KEY = "_extra_state"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_same_layer_takes_its_state_and_every_other_method_refuses_it(case):
    layer = case.layer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        case.layer().load_state_dict(layer.state_dict())
    other = hn.layers.NoEnforcement(case.layer().constraint)
    with pytest.raises(StateError, match=f"method saved '{layer.name}', given 'none'"):
        other.load_state_dict(layer.state_dict(), strict=False)


OPTIONS = [
    ("aff", {}, {"strict": True}),
    ("aff", {"on_invalid": "nan"}, {"on_invalid": "raise"}),
    ("dc3", {"steps": 3}, {"steps": 4}),
    ("dc3", {"momentum": 0.0}, {}),
    ("dc3", {"step": 0.01}, {"step": "auto"}),
    ("cdgm", {"order": [3, 2, 1, 0]}, {}),
    ("cdgm", {"order": [3, 2, 1, 0]}, {"order": (3, 1, 2, 0)}),
    ("projection", {"on_infeasible": "nearest"}, {}),
]


@pytest.mark.parametrize(("method", "saved", "given"), OPTIONS)
def test_other_options_are_refused_by_name(method, saved, given):
    first, second = (hn.layers.LAYERS[method](constant_rows(), **options) for options in (saved, given))
    (name,) = saved.keys() | given.keys()
    with pytest.raises(StateError, match=f"option '{name}' saved "):
        second.load_state_dict(first.state_dict())
    hn.layers.LAYERS[method](constant_rows(), **saved).load_state_dict(first.state_dict())


@pytest.mark.parametrize("strict", [False, True])
def test_their_absence_is_a_warning(strict):
    layer = hn.layers.HardNetAff(constant_rows())
    state = {name: value for name, value in layer.state_dict().items() if name != KEY}
    with pytest.warns(FileWarning, match="does not say which method and options"):
        layer.load_state_dict(state, strict=strict)


@pytest.mark.parametrize(
    "damage", [torch.zeros(3), torch.zeros(9, dtype=torch.uint8), torch.arange(5), "soft", None, {}]
)
def test_what_cannot_be_read_is_refused(damage):
    layer = hn.layers.HardNetAff(constant_rows())
    with pytest.raises(StateError, match="cannot be read"):
        layer.load_state_dict(layer.state_dict() | {KEY: damage})


def test_options_that_a_file_does_not_name_had_their_defaults():
    from hardnet.layers.identity import differences

    options = hn.layers.DC3.Options(steps=3)
    assert differences("dc3", {"steps": 3}, "dc3", options) == []
    assert differences("dc3", {}, "dc3", options) == ["option 'steps' saved 10, given 3"]
    assert differences("dc3", {"steps": 3, "magic": 1}, "dc3", options) == ["option 'magic' saved 1, given None"]


def test_options_that_are_no_plain_data_do_not_break_a_state_dict():
    from hardnet.layers.identity import plain

    @dataclass(frozen=True)
    class Options(hn.layers.HardNetAff.Options):
        weight: object = None

    class Weighted(hn.layers.HardNetAff):
        name = "weighted"

    Weighted.Options = Options
    tensor, function = Weighted(constant_rows(), weight=torch.ones(2)), Weighted(constant_rows(), weight=bound_of)
    assert (plain(tensor.options)["weight"], plain(function.options)["weight"]) == ([1.0, 1.0], "<function>")
    with pytest.raises(StateError, match=r"option 'weight' saved \[1.0, 1.0\], given '<function>'"):
        function.load_state_dict(tensor.state_dict())


@pytest.mark.parametrize("load", [torch.load, None])
def test_every_way_to_keep_a_state_dict_takes_it(load, tmp_path):
    model = hn.HardNet(torch.nn.Linear(4, 4).double(), many_rows(), "dc3", steps=3)
    if load is None:
        from safetensors.torch import load_model, save_model

        save_model(model, tmp_path / "m.safetensors")
        twin = hn.HardNet(torch.nn.Linear(4, 4).double(), many_rows(), "dc3", steps=3)
        load_model(twin, tmp_path / "m.safetensors")
    else:
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        buffer.seek(0)
        twin = hn.HardNet(torch.nn.Linear(4, 4).double(), many_rows(), "dc3", steps=3)
        twin.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(twin(draw(3, 4)), model(draw(3, 4)))


def test_copies_averages_and_functional_calls():
    model, x = hn.HardNet(torch.nn.Linear(4, 4).double(), constant_rows()), draw(3, 4)
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), model(x))
    averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    averaged.update_parameters(model)
    averaged.load_state_dict(copy.deepcopy(averaged.state_dict()))
    assert torch.equal(averaged(x), model(x))
    assert torch.equal(torch.func.functional_call(model, dict(model.state_dict()), (x,)), model(x))
    with torch.device("meta"):
        assert model.state_dict()[f"layer.{KEY}"].device.type == "cpu"
