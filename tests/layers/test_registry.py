"""Own methods: registered by name, and from then on like any other."""

import pytest
import torch

import hardnet as hn
from hardnet.layers import LAYERS


class Clip(hn.layers.Layer):
    """``y = clamp(raw, -1, 1)``."""

    name = "clip-to-one"
    accepts = "any set that holds the unit cube"
    guarantee = hn.layers.Guarantee.NONE

    @classmethod
    def refusal(cls, constraint):
        return None

    def enforce(self, raw, x=None):
        return raw.clamp(-1, 1)


@pytest.fixture
def registered():
    hn.register(Clip)
    yield Clip
    del LAYERS[Clip.name]


def test_a_registered_method_has_a_name_everywhere(registered, tmp_path):
    model = hn.HardNet(torch.nn.Linear(2, 2), constraint := hn.Box(torch.zeros(2), 1.0), "clip-to-one")
    assert isinstance(model.layer, Clip)
    assert hn.methods()[-1].name == "clip-to-one"
    assert hn.methods()[-1].title == "``y = clamp(raw, -1, 1)``."
    assert "clip-to-one" in hn.explain(constraint).reasons
    hn.save(model, tmp_path / "model")
    again = hn.load(tmp_path / "model", torch.nn.Linear(2, 2))
    assert type(again.layer) is Clip
    x = torch.randn(5, 2)
    assert torch.equal(again(x), model(x))


def test_a_class_defined_again_takes_the_place_of_its_elder(registered):
    again = type("Clip", (Clip,), {"__module__": Clip.__module__, "__qualname__": Clip.__qualname__})
    assert hn.register(again) is again is LAYERS["clip-to-one"]


def test_what_cannot_be_registered_is_named(registered):
    taken = type("Other", (Clip,), {"name": "aff"})
    with pytest.raises(hn.errors.UnsupportedSetError, match="expected a name of its own, got 'aff', which is taken"):
        hn.register(taken)
    with pytest.raises(hn.errors.UnsupportedSetError, match="a name of its own, got 'auto'"):
        hn.register(type("Other", (Clip,), {"name": "auto"}))
    with pytest.raises(hn.errors.DTypeError, match=r"layer: expected a subclass of hn\.layers\.Layer, got 3"):
        hn.register(3)
    with pytest.raises(hn.errors.UnsupportedSetError, match="expected the class attribute 'name', got none on Bare"):
        hn.register(type("Bare", (hn.layers.Layer,), {}))
