"""Table 1: every claim of every row is backed by a test that exists, most of them by the ones below."""

from pathlib import Path

import pytest
import torch

import hardnet as hn
from hardnet.functional.conic import solve_intersection
from hardnet.layers import LAYERS, methods
from hardnet.sets import Ball
from hardnet.solvers import project_affine

ROOT = Path(__file__).parents[2]
CONTRACT = "tests/test_contract.py::test_layer_keeps_the_contract"
HERE = "tests/layers/test_table.py::"
EVIDENCE = {
    "constraint": HERE + "test_a_method_accepts_its_class_and_refuses_others_by_name",
    "input_dependence": HERE + "test_input_dependence",
    "equalities": HERE + "test_equalities_and_inequalities",
    "inequalities": HERE + "test_equalities_and_inequalities",
    "guarantee": CONTRACT,
    "computation": CONTRACT,
    "universal_approximation": HERE + "test_every_point_of_the_set_is_reached",
}
"""The tests that back the claims of most rows."""
OTHER = {
    "projection": {"computation": HERE + "test_iterative_methods_report_their_iterations"},
    "cvx": {"computation": HERE + "test_iterative_methods_report_their_iterations"},
    "nonlinear": {"computation": "tests/solvers/nonlinear/test_solve.py::test_it_reports_iterations_and_status"},
    "dc3": {
        "guarantee": "tests/layers/test_dc3.py::test_inequalities_converge_with_the_automatic_step",
        "computation": "tests/layers/test_dc3.py::test_known_answer_of_the_published_iteration",
    },
    "linsat": {"computation": "tests/layers/test_linsat.py::test_sweeps_and_newton_give_the_same_answer"},
    "police": {
        "constraint": "tests/layers/test_police.py::test_modules_that_would_break_the_guarantee_are_refused_by_name",
        "input_dependence": "tests/layers/test_police.py::test_affine_on_the_region_for_any_weights_and_not_outside",
        "equalities": "tests/layers/test_police.py::test_a_given_map_holds_on_the_region_and_the_rest_is_learned",
        "inequalities": "tests/layers/test_police.py::test_bad_arguments_are_named",
        "guarantee": "tests/layers/test_police.py::test_the_guarantee_survives_training",
        "computation": "tests/layers/test_police.py::test_known_shifts",
    },
    "soft": {
        "guarantee": "tests/layers/test_soft.py::test_returns_raw_itself_and_promises_nothing",
        "computation": "tests/layers/test_soft.py::test_returns_raw_itself_and_promises_nothing",
    },
    "none": {
        "guarantee": "tests/layers/test_soft.py::test_returns_raw_itself_and_promises_nothing",
        "computation": "tests/layers/test_soft.py::test_returns_raw_itself_and_promises_nothing",
    },
}
"""Those of the other rows, claim by claim."""
ROWS = {row.name: row for row in methods()}
F64 = torch.float64
SHARES = torch.tensor([[1.0, 2.0, 0.5, 1.0]], dtype=F64)
A = torch.tensor([[1.0, -2.0, 0.5, 0.0], [0.3, 0.2, -1.0, 1.0]], dtype=F64)
ONES = torch.ones(2, dtype=F64)
UNIT = hn.Box(torch.zeros(4, dtype=F64), torch.ones(4, dtype=F64))


def moving_matrix(x):
    return A + 0.1 * x.unsqueeze(-1)


def moving_bound(x):
    return 1 + x.square()


def linsat(A, upper):
    return hn.Affine(SHARES if A is not moving_matrix else moving_matrix, upper=upper) & UNIT


INEQUALITIES = {
    "cone": lambda A, b: hn.Affine(A, upper=torch.zeros(2, dtype=F64) if b is ONES else b),
    "linsat": lambda A, b: linsat(A, b[:1] if b is ONES else moving_bound),
    "aff-eq": lambda A, b: hn.Equality(A, b) & hn.Affine(SHARES, upper=ONES[:1]),
}
EQUALITIES = {
    "cone": lambda A, b: hn.Equality(A, torch.zeros(2, dtype=F64)),
    "linsat": lambda A, b: hn.Equality(SHARES, ONES[:1]) & UNIT,
}


def inequality(name, A, b):
    return INEQUALITIES.get(name, lambda A, b: hn.Affine(A, upper=b))(A, b)


def equality(name, A, b):
    return EQUALITIES.get(name, hn.Equality)(A, b)


def probe(name, A, b):
    """A set of the method's own kind with these numbers."""
    return inequality(name, A, b) if ROWS[name].inequalities else equality(name, A, b)


# police is no map from raw to y: it shifts the hidden layers of the network, and its own tests look at that
POINTWISE = [name for name in ROWS if name != "police"]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_every_claim_names_a_test_that_exists(row):
    unproved = set() if row.universal_approximation == "yes" else {"universal_approximation"}
    for claim, node in (EVIDENCE | OTHER.get(row.name, {})).items():
        assert hasattr(row, claim)
        if claim in unproved:
            continue
        path, _, function = node.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(), node


def test_one_row_per_method_and_the_guarantee_that_its_layer_states():
    assert set(ROWS) == set(LAYERS)
    for name, layer in LAYERS.items():
        assert ROWS[name].guarantee == layer.guarantee, name
    assert {row.computation for row in ROWS.values()} == {"closed form", "iterative"}
    assert ROWS["dc3"].asdict()["guarantee"] == "asymptotic"


@pytest.mark.parametrize("name", POINTWISE)
def test_a_method_accepts_its_class_and_refuses_others_by_name(name):
    layer = LAYERS[name]
    assert layer.refusal(probe(name, A, ONES)) is None
    reason = layer.refusal(Ball(torch.zeros(4, dtype=F64), 1.0))
    if name in ("soft", "none", "cvx", "rayen", "nonlinear", "union"):
        assert reason is None
    else:
        assert "method='" in reason


@pytest.mark.parametrize("name", POINTWISE)
def test_input_dependence(name):
    accepted = {
        "A(x), b(x)": LAYERS[name].refusal(probe(name, moving_matrix, moving_bound)) is None,
        "b(x)": LAYERS[name].refusal(probe(name, A, moving_bound)) is None,
        "no": LAYERS[name].refusal(probe(name, A, ONES)) is None,
    }
    strongest = next(claim for claim, holds in accepted.items() if holds)
    assert ROWS[name].input_dependence == strongest


@pytest.mark.parametrize("name", POINTWISE)
def test_equalities_and_inequalities(name):
    layer, row = LAYERS[name], ROWS[name]
    assert (layer.refusal(equality(name, A, ONES)) is None) == row.equalities
    joint = hn.Equality(A[:1], ONES[:1]) & hn.Affine(A[1:], upper=ONES[1:]) if not row.inequalities else None
    assert (layer.refusal(joint or inequality(name, A, ONES)) is None) == row.inequalities


@pytest.mark.parametrize("name", [name for name in POINTWISE if ROWS[name].universal_approximation == "yes"])
def test_every_point_of_the_set_is_reached(name):
    """Each target in C(x) is the image of a raw output that depends continuously on it, so density carries over."""
    constraint = probe(name, A, ONES)
    rows = constraint.affine(None, torch.zeros(4, dtype=F64))
    far = 3 * torch.randn(40, 4, generator=torch.Generator().manual_seed(0), dtype=F64)
    target = hn.functional.project_affine(far, *rows)
    target = 0.9 * target + 0.1 * hn.functional.project_affine(torch.zeros(4, dtype=F64), *rows)
    layer = LAYERS[name](constraint)
    torch.testing.assert_close(layer(preimage(layer, target)), target, rtol=1e-9, atol=1e-9)


def preimage(layer, target):
    if hasattr(layer, "basis"):
        return (target - layer.center) @ layer.basis
    predicted = getattr(layer, "predicted", torch.empty(0))
    return target[..., predicted] if len(predicted) else target


def test_iterative_methods_report_their_iterations():
    raw = torch.full((3, 4), 5.0, dtype=F64)
    assert (project_affine(raw, A, None, ONES - 2).iterations >= 1).all()
    ball = Ball(torch.zeros(4, dtype=F64), 1.0)
    assert (solve_intersection(raw, [ball.block(ball.numbers(None, raw))]).iterations >= 1).all()
