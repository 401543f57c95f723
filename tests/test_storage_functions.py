"""save / load of sets with functions of x: given again, compared by their numbers on an example, refused if others."""

import pytest
import torch

import hardnet as hn
from hardnet.errors import FileError, OptionError
from tests.cases import bound_of, matrix_of, network
from tests.draws import draw


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


class Learned(torch.nn.Module):
    def __init__(self, offset):
        super().__init__()
        self.linear, self.offset = torch.nn.Linear(4, 2).double(), offset

    def forward(self, x):
        return self.linear(x) + self.offset


@pytest.mark.parametrize(
    ("wrong", "whole"),
    [(wrong, whole) for wrong in ("function", "learned number", "constant", "network") for whole in (True, False)]
    + [("method", True)],
)
def test_what_is_refused_keeps_its_weights(tmp_path, wrong, whole):
    def build(upper=bound_of, offset=0.0, constant=0.2):
        numbers = hn.Affine(matrix_of, upper=upper) & hn.Affine(draw(2, 4), upper=Learned(offset))
        return numbers & hn.Equality(draw(1, 4, seed=3), constant)

    hn.save(hn.HardNet(network(), build()), tmp_path / "model", example=draw(9, 4))
    other = {"function": {"upper": tightened}, "learned number": {"offset": 1.0}, "constant": {"constant": 0.3}}
    net, constraint = network(), build(**other.get(wrong, {}))
    if wrong == "network":
        net = torch.nn.Sequential(*net[:2], torch.nn.Linear(8, 4, bias=False).double())
    model = hn.HardNet(net, constraint, method="soft" if wrong == "method" else "auto")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(FileError, match="not the one saved"):
        hn.load(tmp_path / "model", *((model,) if whole else (net, constraint)))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_load_that_is_interrupted_leaves_the_weights(tmp_path, monkeypatch):
    build = lambda: hn.Affine(matrix_of, upper=bound_of)
    hn.save(hn.HardNet(network(), build()), tmp_path / "model", example=draw(9, 4))
    model = hn.HardNet(network(), build())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    changed = {name: value.clone() for name, value in model.state_dict().items()}

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("hardnet.storage._require_same_numbers", interrupt)
    with pytest.raises(KeyboardInterrupt):
        hn.load(tmp_path / "model", model)
    weights = model.state_dict()
    assert any(not torch.equal(value, before[name]) for name, value in weights.items())
    assert all(torch.equal(value, changed[name]) for name, value in weights.items())


def lambdas(shift=0.0, slope=1.0):
    """The same lambda from another function each time: its numbers are what it is known by."""
    return hn.Affine(matrix_of, upper=lambda x: slope * x[..., :2].abs() + shift)


def test_a_set_with_functions_asks_for_an_example(tmp_path):
    sets = [lambdas(), lambdas() & hn.Box(-9.0, 9.0), hn.Ball(torch.zeros(4).double(), lambda x: 1 + x[..., 0].abs())]
    for constraint in sets:
        with pytest.raises(OptionError, match=r"example: expected an input x, since '\w+' is a function, .*got None"):
            hn.save(hn.HardNet(network(), constraint), tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "other", [{"shift": 1e-6}, {"shift": -0.3}, {"slope": 1.0 + 1e-9}, {"slope": -1.0}, {"shift": torch.inf}]
)
def test_functions_are_compared_by_their_numbers(tmp_path, other):
    model, x = hn.HardNet(network(), lambdas()), draw(9, 4)
    hn.save(model, tmp_path / "model", example=x)
    assert torch.equal(hn.load(tmp_path / "model", network(), lambdas())(x), model(x))
    assert torch.equal(hn.load(tmp_path / "model", network(), hn.Affine(matrix_of, upper=Absolute()))(x), model(x))
    with pytest.raises(FileError, match="it gives other numbers at the saved example"):
        hn.load(tmp_path / "model", network(), lambdas(**other))


class Absolute:
    def __call__(self, x):
        return x[..., :2].abs()


def test_functions_of_y_are_compared_by_the_violations_they_give(tmp_path):
    def build(radius):
        return hn.sets.Smooth(4, lambda y, x: y.square().sum(-1, keepdim=True) - radius * (1 + x[..., :1].square()))

    def model(radius):
        return hn.HardNet(network(), build(radius), "soft")

    hn.save(model(1.0), tmp_path / "model", example=draw(5, 4))
    hn.load(tmp_path / "model", network(), build(1.0))
    for radius in (1.001, 2.0, -1.0):
        with pytest.raises(FileError, match="other numbers at the saved example"):
            hn.load(tmp_path / "model", network(), build(radius))


class TwoInputs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4).double()

    def forward(self, x):
        return self.inner(x["state"]) * x["rest"][0]


def test_an_example_may_be_any_structure_of_tensors(tmp_path):
    def build(scale=1.0):
        return hn.Affine(draw(2, 4), upper=lambda x: scale * x["rest"][1])

    x = {"state": draw(5, 4), "rest": (draw(5, 1), draw(5, 2).abs(), None)}
    model = hn.HardNet(TwoInputs(), build())
    hn.save(model, tmp_path / "model", example=x)
    assert torch.equal(hn.load(tmp_path / "model", TwoInputs(), build())(x), model(x))
    with pytest.raises(FileError, match="other numbers"):
        hn.load(tmp_path / "model", TwoInputs(), build(1.5))
    with pytest.raises(OptionError, match="example: expected a tensor, or tuples, lists and dicts of tensors, got set"):
        hn.save(model, tmp_path / "model", example={1, 2})


def test_learned_numbers_come_back(tmp_path):
    def build(seed):
        torch.manual_seed(seed)
        bound = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2)).double()
        return hn.HardNet(network(), hn.Affine(draw(2, 4), upper=bound), "projection")

    model, x = build(1), draw(9, 4)
    model(x)  # moves the statistics
    model.eval()
    hn.save(model, tmp_path / "model", example=x)
    fresh = build(2)
    loaded = hn.load(tmp_path / "model", fresh.net, fresh.constraint).eval()
    assert torch.equal(loaded(x), model(x))
    parameter = hn.HardNet(network(), hn.Affine(draw(2, 4), upper=torch.nn.Parameter(draw(2).abs())), "projection")
    hn.save(parameter, tmp_path / "parameter")
    assert torch.equal(hn.load(tmp_path / "parameter", network())(x), parameter(x))


def test_saving_moves_no_statistics_and_no_mode(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)).double()
    model = hn.HardNet(net, lambdas()).train()
    net[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hn.save(model, tmp_path / "model", example=draw(9, 4))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (model.training, net[1].training, net[2].training) == (True, True, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1.0, 500.0, 1e4])
def test_small_numbers_beside_large_ones_are_compared_too(tmp_path, size, dtype):
    """Each entry of A and each bound in turn off by a hundredth of the entry, or of 0.1, if float32 can hold that."""
    A, upper = torch.tensor([[size, 1.0], [0.0, 0.2]]), torch.tensor([size, 0.1])

    def build(rows, bounds):
        rows, bounds = rows.to(dtype), bounds.to(dtype)
        return hn.Affine(lambda x: rows + 0 * x[..., :1, None], upper=lambda x: bounds + 0 * x[..., :1])

    net, x = torch.nn.Linear(3, 2).to(dtype), draw(4, 3).to(dtype)
    hn.save(hn.HardNet(net, build(A, upper)), tmp_path / "model", example=x)
    hn.load(tmp_path / "model", net, build(A * (1 + 8 * torch.finfo(dtype).eps), upper))
    for number in (A, upper):
        for place in range(number.numel()):
            other = number.clone()
            other.view(-1)[place] += max(
                0.01 * float(number.reshape(-1)[place]), 0.001, 32 * torch.finfo(dtype).eps * size
            )
            with pytest.raises(FileError, match="other numbers at the saved example"):
                hn.load(tmp_path / "model", net, build(*(other if part is number else part for part in (A, upper))))
