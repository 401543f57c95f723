"""`explain`: what it says of a set is what the layers do with it."""

import re

import pytest
import torch

import hardnet as hn
from hardnet.layers import LAYERS
from tests.cases import CASES

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


def two_rows(x):
    return torch.stack([torch.cat([x, x[..., :1]], -1), torch.ones(*x.shape[:-1], 4)], -2)


def eight_rows(x):
    return torch.cat([two_rows(x)] * 4, -2)


SEEN = [
    (hn.Box(0.0, 1.0) & hn.Affine(two_rows, upper=1.0), "a box and 2 rows: the box as bounds, which are no rows"),
    (hn.Affine(two_rows, upper=1.0), "2 rows: a fixed program"),
    (hn.Affine(eight_rows, upper=1.0), "8 rows: the general solver"),
    (hn.Box(0.0) & hn.Affine(torch.ones(1, 4), upper=lambda x: x[..., :1].abs()), "a box and 1 row: the box as bounds"),
    (hn.Box(lambda x: x - 1, 5.0) & hn.Affine(torch.ones(1, 3), upper=1.0), "a box and 1 row: a fixed program"),
    (hn.Affine(lambda x: two_rows(x[:1]), upper=lambda x: x[..., :2].abs()), "2 rows: a fixed program"),
]


@pytest.mark.parametrize(("constraint", "structure"), SEEN)
def test_an_input_tells_the_structure_where_the_set_alone_does_not(constraint, structure):
    assert structure in hn.explain(constraint, X).reasons["projection"]
    assert "hn.explain(constraint, x)" in hn.explain(constraint).reasons["projection"]


def test_the_batch_is_that_of_the_rows_whatever_the_shape_of_x():
    images = torch.zeros(5, 2, 8, 8)
    constraint = hn.Box(0.0, 1.0) & hn.Affine(lambda x: two_rows(x[:, 0, 0, :3]), upper=1.0)
    assert "a box and 2 rows" in hn.explain(constraint, {"image": images}["image"]).reasons["projection"]


def test_learned_rows_need_no_input():
    learned = hn.Affine(torch.nn.Parameter(torch.ones(3, 4)), upper=1.0)
    assert "3 rows: a fixed program" in hn.explain(learned).reasons["projection"]


def test_what_only_the_network_knows_is_said_to_be_so():
    boxes = hn.Box(0.0) & hn.Box(upper=1.0)
    assert "which the network alone knows" in hn.explain(boxes, X).reasons["projection"]


def test_the_closed_form_is_refused_where_its_layer_refuses_the_rows():
    told = hn.explain(hn.Affine(eight_rows, upper=1.0), X)
    assert told.reasons["aff"].startswith("refused: it has 8 rows for 4 outputs")
    assert "closed form 0" not in told.reasons["projection"]
    twice = hn.Affine(torch.ones(2, 4), upper=torch.tensor([1.0, 2.0]))
    assert hn.explain(twice).reasons["aff"].startswith("refused: its rows are linearly dependent")
    with pytest.raises(hn.errors.RankError):
        hn.layers.HardNetAff(twice)


def test_the_closed_form_moves_outputs_by_the_condition_of_its_unit_rows():
    rows = torch.tensor([[1.0, 0.0], [3.0, 4.0]])  # an angle with cosine 0.6: cond = sqrt(1.6 / 0.4)
    assert "by 2 times the violation" in hn.explain(hn.Affine(rows, upper=1.0)).reasons["aff"]


ADVISED = [case.layer().constraint for case in CASES] + [constraint for constraint, _ in SEEN]


@pytest.mark.parametrize("constraint", ADVISED, ids=lambda constraint: type(constraint).__name__)
def test_a_refusal_sends_nobody_to_a_method_that_refuses_as_well(constraint):
    for told in hn.explain(constraint).reasons.values():
        if told.startswith("refused: "):
            advised = set(re.findall(r"'([a-z0-9-]+)'", told)) - {"auto"}
            assert not [name for name in advised if LAYERS[name].refusal(constraint)], told


def test_an_option_of_the_projection_asks_for_it():
    row = hn.Affine([[1.0, 1.0]], upper=[1.0])
    assert hn.HardNet(torch.nn.Linear(3, 2), row).layer.name == "aff"
    assert hn.HardNet(torch.nn.Linear(3, 2), row, on_infeasible="nan").layer.name == "projection"
    assert hn.HardNet(torch.nn.Linear(3, 2), row, strict=True).layer.name == "aff"
    with pytest.raises(hn.errors.OptionError, match="misspelled"):
        hn.HardNet(torch.nn.Linear(3, 2), row, misspelled=1)
