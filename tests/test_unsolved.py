"""A sample that was not solved is never returned as if it were: an error, NaN for it alone, or its last point by name.

The solvers of polyhedra solve everything that these tests could draw, so some samples are called unsolved here, with
raw as their last point; everything behind the solver is the library's own.
"""

import copy
import pickle
import warnings
from typing import NamedTuple

import pytest
import torch

import hardnet as hn
from hardnet.functional import nearest
from hardnet.layers import nearest as dispatch
from hardnet.solvers import Status
from hardnet.solvers.polyhedron import box_rows, fixed

D = torch.float64
BAD = [1, 3]
GOOD = [0, 2, 4]


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=D)


def spoil(found, raw):
    """The outcome with the samples whose first raw output is far away called unsolved, at raw."""
    bad = raw[..., 0] > 50
    status = torch.where(bad, int(Status.NOT_CONVERGED), found.status.long()).to(torch.int8)
    residual = torch.where(bad, torch.inf, found.residual)
    return found._replace(y=torch.where(bad.unsqueeze(-1), raw.to(found.y), found.y), status=status, residual=residual)


@pytest.fixture
def unsolved(monkeypatch):
    """Solvers that do not solve the samples in `BAD` of `raw_outputs`."""
    solve, program, inside, traced = nearest.solve, fixed.project_fixed, nearest._in_box, box_rows.solve
    few = nearest.fixed_program

    def pivots(rows, *given):
        found, inverse = program(rows, *given)
        return spoil(found, rows.raw), inverse

    def few_rows(rows, gradient):
        found = spoil(few(rows, gradient), rows.raw)
        return found._replace(y=torch.where(rows.raw[..., :1] > 50, torch.nan, found.y))

    monkeypatch.setattr(nearest, "solve", lambda rows, **given: spoil(solve(rows, **given), rows.raw))
    monkeypatch.setattr(fixed, "project_fixed", pivots)
    monkeypatch.setattr(nearest, "_in_box", lambda rows: spoil(inside(rows), rows.raw))
    monkeypatch.setattr(box_rows, "solve", lambda raw, *flat, **given: spoil(traced(raw, *flat, **given), raw))
    monkeypatch.setattr(nearest, "fixed_program", few_rows)
    monkeypatch.setattr(dispatch, "_by_faces", lambda *_: None)  # a program that leaves no sample unsolved


class Family(NamedTuple):
    """A set of which no point has a first output above 50, and options of the layer."""

    constraint: hn.sets.ConstraintSet
    options: dict


def rows(m, n):
    """A polytope that has the origin inside: some rows, and the sum of the outputs."""
    A = torch.cat([torch.eye(n, dtype=D)[:1] + 0.1 * draw(1, n, seed=m), draw(m - 1, n, seed=m)])
    return hn.Affine(A, lower=-1.0, upper=torch.linspace(1.0, 2.0, m, dtype=D), name="flow")


FAMILIES = {
    "few rows": Family(rows(3, 4), {}),
    "few rows, tangent": Family(rows(3, 4), {"gradient": "tangent"}),
    "few rows in a box": Family(hn.Box(-2.0, 2.0) & rows(1, 3), {}),
    "box and rows": Family(hn.Box(-2.0, 2.0, name="limits") & rows(2, 6), {}),
    "box and rows, strict": Family(hn.Box(-2.0, 2.0) & rows(2, 6), {"strict": True}),
    "rows": Family(rows(7, 4), {}),
    "rows, tangent": Family(rows(7, 4), {"gradient": "tangent"}),
    "rows, strict": Family(rows(7, 4), {"strict": True}),
    "shared rows": Family(rows(48, 20), {}),
}
GRAPHS = [name for name in FAMILIES if "tangent" not in name]


def raw_outputs(family):
    raw = 3 * draw(5, family.constraint.dim, seed=3)
    raw[BAD, 0] = 100.0
    return raw


def layer_of(family, on_unsolved):
    return hn.layers.Projection(copy.deepcopy(family.constraint), on_unsolved=on_unsolved, **family.options)


@pytest.mark.parametrize("policy", ["auto", "raise"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_error_names_the_samples_and_carries_the_others(name, policy, unsolved):
    family = FAMILIES[name]
    raw = raw_outputs(family)
    with pytest.raises(hn.errors.ConvergenceError, match="in samples 1, 3; pass on_unsolved='nan'") as caught:
        layer_of(family, policy)(raw)
    found = caught.value.solution
    assert caught.value.samples == BAD
    assert found.status.tolist() == [0, 2, 0, 2, 0]
    assert found.y[BAD].isnan().all()
    assert torch.equal(found.y[GOOD], layer_of(family, "nan")(raw)[GOOD])
    assert len({len(part) for part in found}) == 1
    assert hn.check(family.constraint, found.y[GOOD]).ok


@pytest.mark.parametrize("name", FAMILIES)
def test_nan_for_these_alone_and_no_gradient_from_them(name, unsolved):
    family, layer = FAMILIES[name], layer_of(FAMILIES[name], "nan")
    layer.constraint.requires_grad_(True)
    raw = raw_outputs(family).requires_grad_()
    y = layer(raw)
    assert y[BAD].isnan().all()
    assert torch.equal(y[GOOD], layer(raw[GOOD]))
    y.square().nansum().backward()
    assert raw.grad[BAD].eq(0).all()
    assert raw.grad.isfinite().all()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_numbers_that_samples_share_keep_a_gradient(name, unsolved):
    """One unsolved sample makes no gradient NaN: that of A is the sum over the samples that were solved."""
    family, raw = FAMILIES[name], raw_outputs(FAMILIES[name])
    A, lower, upper = family.constraint.affine(None, raw)
    grads = []
    for given in (raw, raw[GOOD]):
        numbers = [part.clone().requires_grad_() for part in (A, lower, upper)]
        y = hn.functional.project_affine(given, *numbers, on_unsolved="nan", **family.options)
        grads.append(torch.autograd.grad(y.square().nansum(), numbers))
    for whole, part in zip(*grads, strict=True):
        assert torch.allclose(whole, part, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_best_point_is_asked_for_by_name(name, unsolved):
    family, layer = FAMILIES[name], layer_of(FAMILIES[name], "best")
    raw = raw_outputs(family)
    y, found = layer(raw), layer.solve(raw)
    assert y.isfinite().all()
    assert torch.equal(y[GOOD], layer_of(family, "nan")(raw)[GOOD])
    assert found.status.tolist() == [0, 2, 0, 2, 0]
    assert (found.residual[BAD] > 1).all()
    assert torch.equal(found.y[BAD], y[BAD])
    assert layer_of(family, "auto").solve(raw).y[BAD].isnan().all()


@pytest.mark.parametrize("policy", ["auto", "nan", "best"])
@pytest.mark.parametrize("route", ["compile", "export", "vmap"])
@pytest.mark.parametrize("name", GRAPHS)
def test_routes_that_read_no_value(name, route, policy, unsolved):
    family, layer = FAMILIES[name], layer_of(FAMILIES[name], policy)
    raw = raw_outputs(family)
    if route == "compile":
        torch._dynamo.reset()
        run = torch.compile(layer, backend="eager", fullgraph=True)
    else:
        run = torch.export.export(layer, (raw,)).module() if route == "export" else torch.func.vmap(layer)
    y = run(raw)
    assert hn.check(family.constraint, y[GOOD]).ok
    assert y[BAD].isfinite().all() if policy == "best" else y[BAD].isnan().all()


def test_rows_that_hold_at_a_point_that_nothing_proves_nearest(monkeypatch):
    """Such a point is FEASIBLE: it is returned, with one warning of the layer, and counts as unsolved in the status."""
    family, solve = FAMILIES["rows"], nearest.solve

    def doubted(rows, **given):
        found = solve(rows, **given)
        bad = rows.raw[:, 0] > 50
        status = torch.where(bad, int(Status.NOT_CONVERGED), found.status.long()).to(torch.int8)
        return found._replace(status=status, residual=torch.where(bad, 1e-3, found.residual))

    raw, layer = raw_outputs(family), layer_of(family, "auto")
    expected = layer(raw)
    monkeypatch.setattr(nearest, "solve", doubted)
    with pytest.warns(hn.errors.NotConvergedWarning, match=r"2 of 5 points .* \(residual 1.0e-03 in samples 1, 3\)"):
        y = layer(raw)
    assert torch.equal(y, expected)
    assert layer.solve(raw).status.tolist() == [0, 4, 0, 4, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(raw)


@pytest.mark.parametrize("name", ["rows", "box and rows"])
def test_a_layer_keeps_the_option(name, tmp_path, unsolved):
    family, raw = FAMILIES[name], raw_outputs(FAMILIES[name])
    model = hn.HardNet(torch.nn.Identity(), family.constraint, "projection", on_unsolved="nan", **family.options)
    assert "on_unsolved='nan'" in str(model)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    path = tmp_path / "model.pt"
    hn.save(model, path, example=raw)
    copies.append(hn.load(path, torch.nn.Identity()))
    for again in copies:
        assert again.layer.options == model.layer.options
        assert again(raw)[BAD].isnan().all()
    other = hn.HardNet(torch.nn.Identity(), family.constraint, "projection", on_unsolved="best", **family.options)
    with pytest.raises(hn.errors.StateError, match="option 'on_unsolved' saved 'nan', given 'best'"):
        other.load_state_dict(model.state_dict())


def test_an_unknown_value_is_refused_by_name():
    constraint = rows(3, 4)
    with pytest.raises(hn.errors.OptionError, match="on_unsolved: expected 'auto' or 'raise' or 'nan' or 'best'"):
        hn.layers.Projection(constraint, on_unsolved="nearest")
    for function in (hn.functional.project_affine, hn.functional.project_box_rows):
        with pytest.raises(hn.errors.OptionError, match="on_unsolved: expected 'auto' or 'raise' or 'nan' or 'best'"):
            function(draw(2, 4), torch.ones(1, 4, dtype=D), on_unsolved="raw")


def test_rows_of_an_empty_set_are_counted_by_their_set_at_size():
    """Names come from the set without a second solve, also where there are more rows than anyone reads."""
    n = 1500
    ceiling = hn.Affine(torch.ones(1, n, dtype=D), lower=lambda x: x, name="demand")
    layer = hn.layers.Projection(hn.Box(0.0, 1.0, name="capacity") & ceiling)
    with pytest.raises(hn.errors.InfeasibleError, match=r"capacity: 1500 rows, demand\)") as caught:
        layer(torch.zeros(2, n, dtype=D), torch.tensor([[5.0], [2000.0]], dtype=D))
    assert caught.value.samples == [1]
    assert caught.value.names[0][0] == "capacity[0]"
    assert len(caught.value.rows[0]) == n + 1
