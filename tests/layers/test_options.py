"""Options: one frozen record per layer, checked when it is built, and plain data for files."""

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, asdict, fields

import pytest
import torch

import hardnet as hn
from hardnet.errors import HardNetError, OptionError
from hardnet.layers import LAYERS, SmoothDC3
from tests.cases import CASES

pytestmark = pytest.mark.core

KINDS = [*LAYERS.values(), SmoothDC3]


def box():
    return hn.Box(-torch.ones(3), torch.ones(3))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_layer_built_from_its_own_record_has_the_same_record_and_the_same_answer(case):
    x, raw = case.data()
    layer = case.layer()
    given = json.loads(json.dumps(asdict(layer.options)))
    again = type(layer)(layer.constraint, **given)
    assert again.options == layer.options
    assert torch.equal(again(raw, x), layer(raw, x))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_option_refuses_what_is_none_of_its_values(kind):
    for own in fields(kind.Options):
        for bad in (object(), "foo", -3.5, [0.5], float("nan")):
            if own.metadata["holds"](bad):
                continue
            with pytest.raises(OptionError, match=rf"^{own.name}: expected .*, got "):
                kind.Options(**{own.name: bad})
        assert not own.metadata["holds"](object())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_option_the_layer_lacks_is_named_with_those_it_has(kind):
    with pytest.raises(OptionError, match=f"options: expected an option of method '{kind.name}'.*, got 'color'"):
        kind(box(), color="red")


def test_the_record_is_frozen_copied_and_pickled_with_the_layer():
    layer = hn.layers.HardNetAff(box(), strict=True)
    with pytest.raises(FrozenInstanceError):
        layer.options.strict = False
    assert copy.deepcopy(layer).options == pickle.loads(pickle.dumps(layer)).options == layer.options
    assert "method 'aff', guarantee exact, strict=True, on_invalid='raise'" in repr(layer)


def test_the_model_passes_options_to_the_layer_of_its_method():
    net = torch.nn.Linear(2, 3)
    assert hn.HardNet(net, box(), "aff", strict=True).layer.options.strict
    assert hn.HardNet(net, box(), "projection", on_infeasible="nearest").layer.options.on_infeasible == "nearest"
    with pytest.raises(OptionError, match=r"method 'cvx' \(.*on_infeasible.*\), got 'metric'"):
        hn.HardNet(net, box(), "cvx", metric=torch.ones(3))
    with pytest.raises(OptionError, match="no options beside a layer, which has its own, got strict"):
        hn.HardNet(net, constraint := box(), hn.layers.HardNetAff(constraint), strict=True)
    with pytest.raises(OptionError, match="leak: expected a share between 0 and 1, got 2"):
        hn.HardNet(net, box(), leak=2)
    assert issubclass(OptionError, HardNetError)
    assert issubclass(OptionError, ValueError)


@pytest.mark.parametrize("kind", [hn.layers.HardNetCvx, hn.layers.Projection])
def test_an_unknown_policy_is_refused(kind):
    for name in ("on_infeasible", "on_invalid"):
        with pytest.raises(OptionError, match=f"{name}: expected .*, got 'foo'"):
            kind(box(), **{name: "foo"})
    with pytest.raises(OptionError, match="on_infeasible"):
        hn.layers.HardNetCvx(box(), on_infeasible="nearest")


@pytest.mark.parametrize("kind", [hn.layers.HardNetCvx, hn.layers.Projection])
def test_an_empty_set_raises_by_default_where_a_look_is_free(kind):
    rows = hn.Affine(torch.tensor([[1.0], [-1.0]]), upper=torch.tensor([-1.0, -1.0]))
    with pytest.raises(hn.errors.InfeasibleError):
        kind(rows)(torch.zeros(2, 1))
    assert kind(rows, on_infeasible="nan")(torch.zeros(2, 1)).isnan().all()
