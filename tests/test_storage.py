"""save / load: a reloaded model enforces; another constraint, another network or a broken file is refused."""

import json

import pytest
import torch

import hardnet as hn
from tests.cases import bound_of, draw, matrix_of

FileError = hn.errors.FileError


def network(outputs=4):
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, outputs)).double()


def constant():
    return hn.Affine(draw(2, 4, seed=2), upper=0.1) & hn.Equality(draw(1, 4, seed=3), 0.2)


def test_a_constant_set_is_rebuilt_from_the_file(tmp_path):
    model, x = hn.HardNet(network(), constant()), draw(9, 4)
    hn.save(model, tmp_path / "model")
    loaded = hn.load(tmp_path / "model", network())
    assert torch.equal(loaded(x), model(x))
    assert hn.check(loaded.constraint, loaded(x)).ok
    assert loaded.method == model.method


def test_only_safetensors_and_json_are_written(tmp_path):
    hn.save(hn.HardNet(network(), constant()), tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.json", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    description = json.loads((tmp_path / "model" / "model.json").read_text())
    assert description["method"] == "aff"
    assert description["constraint"]["type"] == "Intersection"


def test_options_of_the_layer_survive(tmp_path):
    constraint = hn.Affine(draw(2, 4, seed=2), upper=0.1)
    model = hn.HardNet(network(), constraint, hn.layers.HardNetAff(constraint, strict=True, on_invalid="nan"))
    hn.save(model, tmp_path / "model")
    layer = hn.load(tmp_path / "model", network()).layer
    assert layer.options.strict
    assert layer.options.on_invalid == "nan"


def test_a_set_of_x_must_be_given_again(tmp_path):
    model, x = hn.HardNet(network(), hn.Affine(matrix_of, upper=bound_of)), draw(9, 4)
    hn.save(model, tmp_path / "model", example=x)
    with pytest.raises(FileError, match="depends on x; pass the set as constraint="):
        hn.load(tmp_path / "model", network())
    loaded = hn.load(tmp_path / "model", network(), hn.Affine(matrix_of, upper=bound_of))
    assert torch.equal(loaded(x), model(x))


def tightened(x):
    return bound_of(x) - 0.1


@pytest.mark.parametrize(
    "other",
    [
        lambda: hn.Affine(matrix_of, upper=tightened),
        lambda: hn.Affine(matrix_of, lower=bound_of),
        lambda: hn.Affine(matrix_of, upper=1.0),
    ],
)
def test_another_function_is_refused(tmp_path, other):
    hn.save(hn.HardNet(network(), hn.Affine(matrix_of, upper=bound_of)), tmp_path / "model", example=draw(9, 4))
    with pytest.raises(FileError, match="not the one saved"):
        hn.load(tmp_path / "model", network(), other())


def test_another_value_behind_the_same_name_is_refused(tmp_path):
    def build(shift):
        def bound(x):
            return x[..., :2] + shift

        return hn.Affine(matrix_of, upper=bound)

    hn.save(hn.HardNet(network(), build(0.0)), tmp_path / "model", example=draw(9, 4))
    hn.load(tmp_path / "model", network(), build(0.0))
    with pytest.raises(FileError, match="other numbers at the saved example"):
        hn.load(tmp_path / "model", network(), build(0.5))


def test_another_constant_is_refused(tmp_path):
    hn.save(hn.HardNet(network(), constant()), tmp_path / "model")
    other = hn.Affine(draw(2, 4, seed=8), upper=0.1) & hn.Equality(draw(1, 4, seed=3), 0.2)
    with pytest.raises(FileError, match=r"its constant 'members.0.A' differs"):
        hn.load(tmp_path / "model", network(), other)


def test_a_whole_model_can_be_loaded_into(tmp_path):
    model, x = hn.HardNet(network(), constant()), draw(9, 4)
    hn.save(model, tmp_path / "model")
    twin = hn.HardNet(network(), constant())
    assert torch.equal(hn.load(tmp_path / "model", twin)(x), model(x))


def test_another_network_is_refused(tmp_path):
    hn.save(hn.HardNet(network(), constant()), tmp_path / "model")
    wider = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.ReLU(), torch.nn.Linear(9, 4)).double()
    with pytest.raises(FileError, match="the network is not the one saved"):
        hn.load(tmp_path / "model", wider)


def test_saving_again_replaces_the_model_and_nothing_else(tmp_path):
    hn.save(hn.HardNet(network(), constant()), tmp_path / "model")
    second, x = hn.HardNet(network(), constant()), draw(9, 4)
    hn.save(second, tmp_path / "model")
    assert torch.equal(hn.load(tmp_path / "model", network())(x), second(x))
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(FileError, match="is not a saved model; choose another path"):
        hn.save(second, tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.json", b"{", "not a saved model"),
        ("model.json", b'{"format": 99}', "expected format 1"),
        ("model.safetensors", b"rubbish", "not a safetensors file"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, name, content, message):
    hn.save(hn.HardNet(network(), constant()), tmp_path / "model")
    (tmp_path / "model" / name).write_bytes(content)
    with pytest.raises(FileError, match=message):
        hn.load(tmp_path / "model", network())


def test_a_missing_model_is_refused(tmp_path):
    with pytest.raises(FileError, match="not a saved model"):
        hn.load(tmp_path / "nothing", network())
