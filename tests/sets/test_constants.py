"""Constants of a set: no state dict changes them; other ones are refused by name, empty ones are filled."""

import copy

import pytest
import torch

import hardnet as hn
from hardnet.errors import FileError, FileWarning, StateError
from tests.cases import CASES
from tests.draws import draw

F64 = torch.float64


def changed(state, name, change):
    return state | {name: change(state[name].clone())}


def moved(value, roundings):
    """One entry changed by so many roundings of the largest number, by one bit at least."""
    flat, sizes = value.reshape(-1), value[value.isfinite()].abs()
    step = roundings * torch.finfo(value.dtype).eps * (sizes.amax() if sizes.numel() else 0.0)
    bit = torch.nextafter(flat[-1], torch.full_like(flat[-1], torch.inf))
    flat[-1] = torch.maximum(flat[-1] + step, bit)
    return value


def nudge(value):
    """The smallest change that no other order of a sum explains."""
    return moved(value, 32)


def constants(layer):
    """Names in the state dict of the layer that belong to constants."""
    return [f"constraint.{name}" for name, value in layer.constraint.named_buffers() if not value.requires_grad]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("assign", [False, True])
def test_every_constant_of_every_set_is_kept_bit_for_bit(case, assign):
    layer, twin = case.layer(), case.layer()
    layer.load_state_dict(twin.state_dict(), assign=assign)
    before = copy.deepcopy(dict(layer.constraint.named_buffers()))
    for name in constants(layer):
        for change in (nudge, lambda value: value + 1, lambda value: value.reshape(*value.shape, 1)):
            with pytest.raises(StateError, match=rf"'{name.removeprefix('constraint.')}' (differs|has shape)"):
                layer.load_state_dict(changed(twin.state_dict(), name, change), assign=assign)
    after = dict(layer.constraint.named_buffers())
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("assign", [False, True])
def test_a_constant_that_was_computed_on_another_make_of_cpu_is_the_same_one_and_keeps_its_bits(assign):
    layer = hn.HardNet(torch.nn.Linear(2, 4).double(), hn.Affine(draw(2, 4), upper=draw(2).abs()), "projection")
    state = copy.deepcopy(layer.state_dict())
    layer.load_state_dict(changed(state, "layer.constraint.A", lambda value: moved(value, 4)), assign=assign)
    assert torch.equal(layer.constraint.A, draw(2, 4))


@pytest.mark.parametrize("strict", [False, True])
def test_all_of_them_are_named_and_the_network_is_left_as_it_was(strict):
    def build(size):
        box = hn.Box(torch.full((3,), -size, dtype=F64), torch.full((3,), size, dtype=F64))
        return hn.HardNet(torch.nn.Linear(2, 3).double(), box & hn.Affine(draw(1, 3), upper=size))

    model, other = build(1.0), build(2.0)
    before = model.net.weight.detach().clone()
    with pytest.raises(
        StateError, match=r"'members.0.lower' differs by up to 1; .*'members.0.upper' .*'members.1.upper' .*build"
    ):
        model.load_state_dict(other.state_dict(), strict=strict)
    assert torch.equal(model.net.weight, before)
    assert isinstance(StateError(""), FileError | RuntimeError)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_checkpoint_of_a_shorter_dtype_does_not_round_constants(dtype):
    def build():
        return hn.HardNet(torch.nn.Linear(2, 4).double(), hn.Affine(draw(2, 4), upper=draw(2).abs()), "projection")

    model, other = build(), build()
    state = copy.deepcopy(other).to(dtype).state_dict()
    model.load_state_dict(state)
    assert torch.equal(model.constraint.A, draw(2, 4))
    assert torch.equal(model.net.weight, other.net.weight.to(dtype).double())
    low = build().to(dtype)
    low.load_state_dict(other.state_dict())
    assert torch.equal(low.constraint.A, draw(2, 4).to(dtype))


def test_learned_numbers_are_loaded():
    def build(seed):
        bound = torch.nn.Parameter(draw(2, seed=seed))
        return hn.HardNet(torch.nn.Linear(2, 4).double(), hn.Affine(draw(2, 4), upper=bound), "projection")

    model = build(1)
    model.load_state_dict(build(2).state_dict())
    assert torch.equal(model.constraint.upper, draw(2, seed=2))


@pytest.mark.parametrize("assign", [False, True])
def test_constants_from_the_meta_device_are_filled_and_not_read_before(assign):
    def build():
        A, b = draw(1, 3), torch.ones(1, dtype=F64)
        device = torch.get_default_device()
        return hn.HardNet(torch.nn.Linear(2, 3).double(), hn.Affine(A.to(device), upper=b.to(device)), "projection")

    source, x = build(), draw(5, 2)
    with torch.device("meta"):
        model = build()
    if not assign:
        model.to_empty(device="cpu")
        with pytest.raises(FileError, match="from the meta device and was never filled; load a state dict first"):
            model(x)
    model.load_state_dict(source.state_dict(), assign=assign)
    assert torch.equal(model(x), source(x))
    with pytest.raises(StateError, match="'A' differs"):
        model.load_state_dict(changed(source.state_dict(), "layer.constraint.A", nudge))


def test_a_set_by_itself_keeps_its_constants_too():
    box = hn.Box(draw(3), draw(3) + 1)
    with pytest.raises(StateError, match="'upper' differs by up to 1"):
        box.load_state_dict(hn.Box(draw(3), draw(3) + 2).state_dict())


def test_a_state_dict_without_constants_is_a_partial_one():
    model = hn.HardNet(torch.nn.Linear(2, 3).double(), hn.Box(draw(3), draw(3) + 1))
    weights = {name: value for name, value in model.state_dict().items() if name.startswith("net.")}
    with pytest.warns(FileWarning):
        assert model.load_state_dict(weights, strict=False).missing_keys
    with pytest.warns(FileWarning), pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(weights)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", list(hn.layers.LAYERS))
def test_sets_given_by_numbers_alone_have_the_dtype_of_any_network(method, dtype):
    """A total, or one number for all bounds: what a method keeps of them follows, in any order of dtypes."""
    for build in (lambda: hn.Simplex(4), lambda: hn.Box(0.0, 0.9) & hn.Simplex(4, total=2)):
        if hn.layers.LAYERS[method].refusal(build()) is not None:
            continue
        layer = hn.layers.LAYERS[method](build())
        for own in (dtype, torch.float32, dtype):
            raw = torch.rand(3, layer.raw_dim or 4, generator=torch.Generator().manual_seed(0)).to(own)
            assert layer(raw).dtype == own
