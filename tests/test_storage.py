"""save / load: the same model comes back; another constraint, network, method, option or dtype is refused."""

import json
import stat
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import hardnet as hn
from tests.cases import CASES, network
from tests.draws import draw

FileError, OptionError, FileWarning = hn.errors.FileError, hn.errors.OptionError, hn.errors.FileWarning
OLD = Path(__file__).parent / "data" / "version-0.1"


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
    assert description["method"] == "projection"
    assert description["constraint"]["type"] == "Intersection"


def test_options_of_the_layer_survive(tmp_path):
    constraint = hn.Affine(draw(2, 4, seed=2), upper=0.1)
    model = hn.HardNet(network(), constraint, hn.layers.HardNetAff(constraint, strict=True, on_invalid="nan"))
    hn.save(model, tmp_path / "model")
    layer = hn.load(tmp_path / "model", network()).layer
    assert layer.options.strict
    assert layer.options.on_invalid == "nan"


def test_another_constant_is_refused(tmp_path):
    hn.save(hn.HardNet(network(), constant()), tmp_path / "model")
    other = hn.Affine(draw(2, 4, seed=8), upper=0.1) & hn.Equality(draw(1, 4, seed=3), 0.2)
    with pytest.raises(FileError, match=r"the constraint is not the one saved; .*its 'members.0.A' differs"):
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


def test_a_missing_model_is_refused(tmp_path):
    for folder in (tmp_path / "nothing", tmp_path):
        with pytest.raises(FileError, match="not a saved model"):
            hn.load(folder, network())


class First(torch.nn.Module):
    """Passes what the case's layer takes as raw; with a weight, so that there is something to save."""

    def __init__(self, raw):
        super().__init__()
        self.raw = torch.nn.Parameter(raw)

    def forward(self, x):
        return self.raw if x is None else self.raw + 0 * x.sum()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_layer_on_every_set_comes_back(case, tmp_path):
    (x, raw), layer = case.data(), case.layer()
    model = hn.HardNet(First(raw), layer.constraint, layer).eval()
    moving = x is not None
    hn.save(model, tmp_path / "model", example=x)
    given = case.layer().constraint if moving else None
    with warnings.catch_warnings():
        warnings.simplefilter("error", FileWarning)
        loaded = hn.load(tmp_path / "model", First(torch.zeros_like(raw)), given).eval()
    assert torch.equal(loaded(x), model(x))
    assert (loaded.method, loaded.layer.options) == (model.method, model.layer.options)
    assert str(loaded.layer) == str(model.layer)


OPTIONS = [
    ("dc3", {"steps": 3, "step": 0.01, "momentum": 0.0}),
    ("dc3", {"completion": False, "steps": 2, "extra_steps": 3, "tolerance": 1e-3}),
    ("cdgm", {"order": [3, 2, 1, 0]}),
    ("rayen", {"raw_as": "point"}),
    ("projection", {"on_infeasible": "nearest", "on_invalid": "nan"}),
    ("aff", {"strict": True}),
    ("soft", {}),
    ("none", {}),
]


def rows():
    return hn.Affine(draw(2, 4, seed=2), lower=-torch.ones(2).double(), upper=torch.ones(2).double())


@pytest.mark.parametrize(("method", "options"), OPTIONS)
def test_every_option_comes_back_and_another_model_is_refused_by_name(tmp_path, method, options):
    model, x = hn.HardNet(network(), rows(), method, leak=0.25, **options).eval(), 5 * draw(9, 4)
    hn.save(model, tmp_path / "model")
    loaded = hn.load(tmp_path / "model", network()).eval()
    assert torch.equal(loaded(x), model(x))
    assert (loaded.method, loaded.layer.options, loaded.leak) == (method, model.layer.options, 0.25)
    same = hn.load(tmp_path / "model", hn.HardNet(network(), rows(), method, leak=0.25, **options)).eval()
    assert torch.equal(same(x), model(x))
    other = "none" if method == "soft" else "soft"
    with pytest.raises(FileError, match=f"method saved '{method}', given '{other}'"):
        hn.load(tmp_path / "model", hn.HardNet(network(), rows(), other, leak=0.25))
    with pytest.raises(FileError, match=r"leak saved 0.25, given 0"):
        hn.load(tmp_path / "model", hn.HardNet(network(), rows(), method, **options))
    if options:
        with pytest.raises(FileError, match=f"option '{next(iter(options))}' saved "):
            hn.load(tmp_path / "model", hn.HardNet(network(), rows(), method, leak=0.25))


def test_a_model_of_auto_does_not_take_the_place_of_another_method(tmp_path):
    hn.save(hn.HardNet(network(), rows(), "soft"), tmp_path / "model")
    with pytest.raises(FileError, match="the model is not the one saved; method saved 'soft', given "):
        hn.load(tmp_path / "model", hn.HardNet(network(), rows()))
    assert hn.load(tmp_path / "model", network()).method == "soft"


@pytest.mark.parametrize(("saved", "given"), [(torch.float64, torch.float32), (torch.float32, torch.float64)])
@pytest.mark.parametrize("whole", [False, True])
def test_another_dtype_is_refused_with_the_way_out(tmp_path, saved, given, whole):
    model = hn.HardNet(network(), rows()).to(saved)
    hn.save(model, tmp_path / "model")
    net = hn.HardNet(network(), rows()).to(given) if whole else network().to(given)
    with pytest.raises(FileError, match=rf"is {saved} in the file and {given} here; call .to\({saved}\)"):
        hn.load(tmp_path / "model", net)
    loaded = hn.load(tmp_path / "model", network().to(saved)).to(given)
    assert loaded(draw(3, 4).to(given)).dtype == given


def test_names_of_sets_come_back_and_are_only_names(tmp_path):
    box = hn.Box(-torch.ones(4).double(), torch.ones(4).double(), name="limits")
    model = hn.HardNet(network(), box & hn.Affine(draw(2, 4), upper=1.0, name="budget"))
    hn.save(model, tmp_path / "model")
    loaded = hn.load(tmp_path / "model", network())
    assert [part.name for part in loaded.constraint.parts] == ["limits", "budget"]
    plain = hn.Box(-torch.ones(4).double(), torch.ones(4).double()) & hn.Affine(draw(2, 4), upper=1.0)
    hn.load(tmp_path / "model", network(), plain)


@pytest.mark.parametrize("tied", ["bounds", "weights", "both"])
def test_tensors_that_are_tied(tmp_path, tied):
    def build():
        torch.manual_seed(4)
        bound, net = draw(2).abs(), torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(2)]).double()
        if tied != "bounds":
            net[1].weight = net[0].weight
        upper = bound if tied != "weights" else bound.clone()
        return hn.HardNet(net, hn.Affine(draw(2, 4), lower=bound, upper=upper), "projection")

    model, x = build(), draw(5, 4)
    hn.save(model, tmp_path / "model")
    assert torch.equal(hn.load(tmp_path / "model", build().net)(x), model(x))


def test_a_method_of_ones_own_comes_back(tmp_path, monkeypatch):
    class Halved(hn.layers.HardNetAff):
        name = "halved"

    constraint, x = rows(), draw(3, 4)
    model = hn.HardNet(network(), constraint, Halved(constraint, strict=True))
    hn.save(model, tmp_path / "model")
    with pytest.raises(FileError, match=r"saved with method 'halved', which this program lacks; .*hn.register"):
        hn.load(tmp_path / "model", network())
    monkeypatch.setitem(hn.layers.LAYERS, "halved", Halved)  # taken back after the test
    hn.register(Halved)
    assert torch.equal(hn.load(tmp_path / "model", network())(x), model(x))


def line():
    torch.manual_seed(3)
    return torch.nn.Linear(2, 3).double()


def test_a_constant_model_of_version_0_1_loads_with_a_warning():
    expected = load_file(OLD / "expected.safetensors")
    with pytest.warns(FileWarning, match=r"as those of hardnet 0\.1"):
        loaded = hn.load(OLD / "constant", torch.nn.Linear(2, 3).double())
    assert (loaded.method, loaded.leak) == ("aff", 0.25)
    torch.testing.assert_close(loaded(expected["x"]), expected["constant"], rtol=1e-12, atol=1e-12)
    with pytest.raises(FileError, match="method saved 'aff', given 'soft'"):
        hn.load(OLD / "constant", hn.HardNet(line(), loaded.constraint, "soft", leak=0.25))


def test_a_moving_model_of_version_0_1_loads_with_the_same_function_alone():
    expected = load_file(OLD / "expected.safetensors")
    A = torch.tensor([[1.0, 2.0, -1.0]], dtype=torch.float64)
    with pytest.warns(FileWarning):
        loaded = hn.load(OLD / "moving", line(), hn.Affine(A, upper=lambda x: x[..., :1].abs() + 0.1))
    assert loaded.layer.options.strict
    torch.testing.assert_close(loaded(expected["x"]), expected["moving"], rtol=1e-12, atol=1e-12)
    with pytest.warns(FileWarning), pytest.raises(FileError, match="other numbers at the saved example"):
        hn.load(OLD / "moving", line(), hn.Affine(A, upper=lambda x: x[..., :1].abs() + 0.2))


def test_files_have_the_permissions_of_the_users_other_files(tmp_path):
    (tmp_path / "other").write_text("")
    hn.save(hn.HardNet(network(), constant()), tmp_path / "model")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()}
    assert modes == {stat.S_IMODE((tmp_path / "other").stat().st_mode)}


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "build",
    [
        lambda: hn.Box(torch.zeros(3), torch.ones(3)),
        lambda: hn.Affine(torch.ones(1, 3), upper=torch.ones(1)),
        lambda: hn.Ball(torch.zeros(3), 1.0) & hn.Box(torch.zeros(3), 1.0),
        lambda: hn.Box(-1.0, 1.0) & hn.Relaxed(hn.Affine(torch.ones(1, 3), lower=torch.full((1,), 9.0))),
    ],
    ids=["box", "rows", "ball & box", "relaxed"],
)
def test_a_network_in_half_precision_beside_float32_constants_is_saved(tmp_path, half, build):
    """It is enforced in float32, and so the numbers at the example are those of float32."""
    model, x = hn.HardNet(torch.nn.Linear(3, 3).to(half), build()), draw(4, 3).to(half)
    hn.save(model, tmp_path / "model", example=x)
    assert torch.equal(hn.load(tmp_path / "model", torch.nn.Linear(3, 3).to(half))(x), model(x))


SECOND = Path(__file__).parent / "data" / "version-0.2"
SAVED = sorted(path.name for path in SECOND.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", SAVED)
def test_models_of_version_0_2_load_and_enforce(name):
    """Made at revision 8ed4124 by make.py beside them: the same answers, in the set, also into a whole model."""
    layer, expected = (
        next(case for case in CASES if case.name == name).layer(),
        load_file(SECOND / "expected.safetensors"),
    )
    weights = load_file(SECOND / name / "model.safetensors")
    outputs, inputs = weights["net.weight"].shape
    x, y = expected[f"{name}.x"], expected[f"{name}.y"]
    net = lambda: torch.nn.Linear(inputs, outputs).double()
    with torch.no_grad():
        for given in ((net(), layer.constraint), (hn.HardNet(net(), layer.constraint, layer), None)):
            model = hn.load(SECOND / name, *given)
            torch.testing.assert_close(model(x), y, rtol=1e-9, atol=1e-9)
            if layer.guarantee in ("exact", "tolerance"):
                assert hn.check(model, model(x), x).ok
        whole = hn.HardNet(net(), layer.constraint, layer)
        whole.load_state_dict({key: value for key, value in weights.items() if not key.startswith("example")})
        torch.testing.assert_close(whole(x), y, rtol=1e-9, atol=1e-9)


def test_models_of_version_0_2_know_every_method():
    assert {json.loads((SECOND / name / "model.json").read_text())["method"] for name in SAVED} >= {
        *"aff aff-eq projection cvx nonlinear dc3 kkt-hpinn acnet rayen linsat cdgm cone".split()
    }
