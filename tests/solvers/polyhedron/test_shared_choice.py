"""Constant rows in the projection and its layer: who takes shared factors, and that nothing else changes."""

import copy
import pickle

import pytest
import torch

import hardnet as hn
from hardnet.rows import take_rows
from hardnet.solvers.polyhedron import shared_rows
from hardnet.solvers.polyhedron.shared_rows import prepare_rows
from tests.draws import draw
from tests.solvers.families import F64
from tests.solvers.polyhedron.test_shared_rows import boxed, programs


def of_each(A, raw):
    """The same rows as a matrix of each sample, which the general solver takes."""
    return A.expand(len(raw), *A.shape).clone()


@pytest.fixture
def counted(monkeypatch):
    """How many calls took shared factors, by the rule without compiled code, which serves most rows otherwise."""
    calls = []
    monkeypatch.setattr(shared_rows, "HAS_NUMBA", False)
    plain = shared_rows.rows_for

    def rows_for(*arguments):
        found = plain(*arguments)
        calls.append(found is not None)
        return found

    monkeypatch.setattr("hardnet.functional.nearest.rows_for", rows_for)
    return calls


@pytest.mark.parametrize("equalities", [0, 10, 20, 36])
def test_who_serves_constant_rows_changes_nothing_but_rounding(equalities, monkeypatch):
    """Compiled code takes all but rows that are mostly equalities, batches those and what it does not take."""
    pytest.importorskip("numba")
    raw, A, lower, upper = programs(24, 100, equalities, 40 - equalities)
    results, takes = [], []
    for compiled in (True, False):
        monkeypatch.setattr(shared_rows, "HAS_NUMBA", compiled)
        takes.append(shared_rows.rows_for(take_rows(raw, A, lower, upper), None) is not None)
        results.append(hn.functional.project_affine(raw, A, lower, upper))
    assert takes == [equalities == 36, True]
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", [programs, boxed], ids=lambda family: family.__name__)
def test_values_and_gradients_are_those_of_the_general_solver(family, counted):
    raw, A, lower, upper = family()
    weight = draw(*raw.shape, seed=8)
    results = []
    for matrix in (A, of_each(A, raw)):
        leaves = [raw.clone().requires_grad_(), matrix.clone().requires_grad_(), lower.clone(), upper.clone()]
        leaves = [*leaves[:2], leaves[2].requires_grad_(), leaves[3].requires_grad_()]
        y = hn.functional.project_affine(*leaves)
        results.append((y, *torch.autograd.grad(y, leaves, weight)))
    assert counted == [family is programs]
    shared, general = results
    general = (*general[:2], general[2].sum(0), *general[3:])
    for found, expected in zip(shared, general, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_the_derivative_of_the_derivative(counted):
    raw, A, lower, upper = programs(16, 10, 8, 8, spread=0.5)
    raw = raw.requires_grad_()
    function = lambda raw, A: hn.functional.project_affine(raw, A, lower, upper)
    y = function(raw, A.requires_grad_())
    (first,) = torch.autograd.grad(y.square().sum(), A, create_graph=True)
    found = torch.autograd.grad(first.square().sum(), (raw, A))
    each = of_each(A.detach(), raw).requires_grad_()
    y = function(raw, each)
    (first,) = torch.autograd.grad(y.square().sum(), each, create_graph=True)
    expected = torch.autograd.grad(first.sum(0).square().sum(), (raw, each))
    assert counted == [True]
    torch.testing.assert_close(found[0], expected[0], rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(found[1], expected[1].sum(0), rtol=1e-7, atol=1e-7)


def test_mates_change_no_bit(counted):
    raw, A, lower, upper = programs(32)
    weight = draw(*raw.shape, seed=8)
    kept = torch.arange(32) % 3 == 0
    results = []
    for change in (False, True):
        point, low, high = raw.clone(), lower.clone(), upper.clone()
        if change:
            point[1], point[2], point[4] = torch.nan, 1e6, 0.0
            high[5, 0], low[7, 0], high[7, 0] = -1e4, 1.0, -1.0
        point = point.requires_grad_()
        y = hn.functional.project_affine(point, A, low, high, on_infeasible="nan", on_invalid="nan")
        (y[kept] * weight[kept]).sum().backward()
        results += [(y.detach()[kept], point.grad[kept])]
    assert counted == [True, True]
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_an_empty_set_names_its_rows():
    raw, A, lower, upper = programs(20)
    A = torch.cat([A, A[:1]])
    lower = torch.cat([lower, torch.full((20, 1), -torch.inf, dtype=F64)], 1)
    upper = torch.cat([upper, torch.full((20, 1), torch.inf, dtype=F64)], 1)
    lower[4, -1] = upper[4, 0] + 1
    with pytest.raises(hn.errors.InfeasibleError) as caught:
        hn.functional.project_affine(raw, A, lower, upper)
    assert caught.value.samples == [4]
    assert caught.value.rows == [[0, 40]]
    y = hn.functional.project_affine(raw, A, lower, upper, on_infeasible="nan")
    assert y[4].isnan().all()
    assert y.isfinite().all(-1).sum() == 19


def right_hand_side(x):
    return x


def layered(dtype=F64):
    raw, A, lower, upper = programs()
    constraint = hn.Affine(A[:20].to(dtype), upper=upper[:, :20].amax(0).to(dtype)) & hn.Equality(
        A[20:].to(dtype), right_hand_side
    )
    return (
        hn.HardNet(torch.nn.Identity(), constraint, method="projection").layer,
        raw.to(dtype),
        lower[:, 20:].to(dtype),
    )


def test_a_layer_keeps_its_factors_and_they_follow_it(counted):
    layer, raw, x = layered()
    assert layer.kept.shared is not None
    assert len(layer.kept.shared.equal) == 20
    y = layer(raw, x)
    assert hn.check(layer.constraint, y, x).ok
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(raw, x), y)
    short = copy.deepcopy(layer).to(torch.float32)
    assert short.kept.shared.gram.dtype == torch.float64
    rounded = prepare_rows(layer.constraint.fixed_matrix(raw).float(), torch.arange(40) >= 20)
    torch.testing.assert_close(short.kept.shared.gram, rounded.gram, rtol=0, atol=0)
    point = short(raw.float(), x.float())
    assert point.dtype == torch.float32
    assert hn.check(short.constraint, point, x.float()).ok
    assert all(counted)
    assert not [name for name in layer.state_dict() if "shared" in name]


def test_a_load_makes_the_factors_of_what_was_loaded():
    layer, raw, x = layered()
    with torch.device("meta"):
        other = layered()[0]
    other = other.to_empty(device="cpu")
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(raw, x), layer(raw, x))


def test_few_samples_and_compiled_code_take_other_ways(counted):
    layer, raw, x = layered()
    y = layer(raw, x)
    torch.testing.assert_close(layer(raw[:3], x[:3]), y[:3], rtol=0, atol=1e-11)
    mapped = torch.func.vmap(lambda raw, x: layer(raw, x))(raw[:4], x[:4])
    torch.testing.assert_close(mapped, y[:4], rtol=0, atol=1e-10)
    assert counted == [True, False]
