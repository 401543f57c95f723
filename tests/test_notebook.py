"""What people look at prints as a short text and, in a notebook, as a table; whatever stands in it is escaped."""

import inspect

import pytest
import torch

import hardnet as hn
from hardnet.layers import LAYERS

D = torch.float64


def limits():
    return hn.Box(0.0, 1.0, name="limits") & hn.Affine(torch.ones(1, 3, dtype=D), upper=1.5, name="<b>budget</b>")


def model():
    torch.manual_seed(0)
    return hn.HardNet(torch.nn.Linear(2, 3).double(), limits(), "projection")


def shown():
    own, x = model(), torch.randn(5, 2, dtype=D)
    yield "explain", hn.explain(limits())
    yield "methods", hn.methods()
    yield "check", hn.check(limits(), own(x) + 1, x)
    yield "gradient_flow", hn.gradient_flow(own, x, lambda y: y.square().sum())


@pytest.mark.parametrize(("name", "result"), list(shown()), ids=lambda value: value if isinstance(value, str) else "")
def test_results_print_as_text_and_show_as_a_table(name, result):
    text, table = repr(result), result._repr_html_()
    assert text == str(result)
    assert "tensor(" not in text
    assert "dataclass" not in text
    assert table.count("<table>") == table.count("</table>") == 1
    assert "<b>" not in table


def test_a_comparison_has_a_dash_and_the_reason_where_a_method_refuses():
    pytest.importorskip("hardnet_lab")
    x = torch.rand(64, 2)
    caps = hn.Box(0.0, lambda x: x)
    problem = hn.problems.OwnProblem("caps", x, caps, lambda y, x: (y - 1).square().sum(-1), output_dim=2)
    found = hn.compare(problem, methods=["projection", "police"], seeds=1, epochs=1, device="cpu")
    assert repr(found) == str(found)
    (line,) = (line for line in str(found).splitlines() if "gave up" in line)
    assert "cannot enforce this set" in line
    assert "| -" in line
    assert "<table" in found._repr_html_()
    with pytest.raises(hn.errors.HardNetError):
        hn.compare(problem, methods=["police"], seeds=1, epochs=1, device="cpu")


def test_the_options_of_a_layer_stand_in_its_signature():
    for layer in LAYERS.values():
        parameters = inspect.signature(layer).parameters
        assert not any(own.kind is inspect.Parameter.VAR_KEYWORD for own in parameters.values()), layer
        assert set(inspect.signature(layer.Options).parameters) <= set(parameters), layer
    assert inspect.signature(hn.layers.Projection).parameters["on_infeasible"].default == "auto"


def test_a_misspelled_option_or_method_is_answered_with_the_nearest_name():
    for call, name in (
        (lambda: hn.HardNet(torch.nn.Identity(), limits(), "projection", strikt=True), "strict"),
        (lambda: hn.layers.Projection(limits(), on_infeasable="nan"), "on_infeasible"),
        (lambda: hn.HardNet(torch.nn.Identity(), limits(), "projektion"), "projection"),
    ):
        with pytest.raises(hn.errors.HardNetError, match=f"did you mean '{name}'"):
            call()
    with pytest.raises(hn.errors.OptionError) as far:
        hn.layers.Projection(limits(), xyz=1)
    assert "did you mean" not in str(far.value)
