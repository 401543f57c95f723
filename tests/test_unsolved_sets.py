"""A sample of a curved, relaxed or entropic set that was not solved: an error, NaN for it alone, or its last point.

As in `test_unsolved`, the solvers solve everything that could be drawn, so samples far away are called unsolved here.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

import hardnet as hn
from hardnet.functional import conic, l1_ball, linsat, nonlinear, program, quadratic, relaxed
from hardnet.solvers import Status
from tests.draws import draw

D = torch.float64
BAD, GOOD = [1, 3], [0, 2, 4]
FAR = 50


class Family(NamedTuple):
    """A set, the method, and whether a graph can hold it."""

    method: str
    constraint: Callable[[], hn.sets.ConstraintSet]
    graphs: bool = False


def rows(upper=0.3):
    return hn.Affine(torch.ones(1, 4, dtype=D), upper=upper)


def contradiction():
    """Two rows of which one has to give way, and a limit that holds."""
    A = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]], dtype=D)
    return hn.Relaxed(hn.Affine(A, lower=[1.0, -torch.inf], upper=[torch.inf, 0.0])) & hn.Box(-2.0, 2.0)


def in_a_ball(y):
    import cvxpy

    return [cvxpy.norm(y) <= 1]


def sphere(y, x):
    return y.square().sum(-1, keepdim=True)


EYE, ZERO = torch.eye(4, dtype=D), torch.zeros(4, dtype=D)
FAMILIES = {
    "ball and rows": Family("cvx", lambda: hn.Ball(ZERO, 1.0) & rows(), graphs=True),
    "cone": Family("cvx", lambda: hn.SecondOrderCone(EYE, ZERO, ZERO, 1.0), graphs=True),
    "quadratic": Family("cvx", lambda: hn.Quadratic(EYE, ZERO, -1.0), graphs=True),
    "scaled quadratic": Family("cvx", lambda: hn.scaled(hn.Quadratic(EYE, ZERO, -1.0), ZERO, ZERO + 2), graphs=True),
    "l1 ball and rows": Family("cvx", lambda: hn.L1Ball(ZERO, 1.0) & rows()),
    "relaxed": Family("cvx", contradiction),
    "relaxed, projection": Family("projection", contradiction),
    "entropic": Family("linsat", lambda: rows(1.5)),
    "program": Family("cvx", lambda: hn.Cvxpy(in_a_ball, dim=4)),
    "nonlinear": Family("nonlinear", lambda: hn.Nonlinear(sphere, dim=4, upper=1.0)),
}
GRAPHS = [name for name, family in FAMILIES.items() if family.graphs]


def unsolved(found, bad, last):
    status = torch.where(bad, int(Status.NOT_CONVERGED), found.status.long()).to(torch.int8)
    y = torch.where(bad.unsqueeze(-1), last.to(found.y), found.y)
    found = found._replace(status=status, y=y)
    return found._replace(residual=torch.where(bad, torch.inf, found.residual)) if hasattr(found, "residual") else found


@pytest.fixture(autouse=True)
def spoilt(monkeypatch):
    """Solvers that do not solve samples whose first raw output is far away, and end at raw."""

    def left(call, raw_of):
        def spoil(*given, **named):
            found, raw = call(*given, **named), raw_of(*given)
            return unsolved(found, raw[..., 0] > FAR, raw)

        return spoil

    def root(raw, *rest):
        found, bad = nearest(raw, *rest), raw[..., 0] > FAR
        lost = bad.unsqueeze(-1)
        return found._replace(
            y=torch.where(lost, torch.nan, found.y),
            last=torch.where(lost, raw.double(), found.last),
            bad=found.bad | bad,
        )

    def pieces(raw, region):
        signs, found = search(raw, region)
        return signs, unsolved(found, raw[..., 0] > FAR, raw)

    def cones(self, raw, numbers):
        y, failed = project(self, raw, numbers)
        bad = raw[:, 0] > FAR
        return torch.where(bad.unsqueeze(-1), raw, y), failed | bad

    def steps(rows, raw, **named):
        found, bad = descent(rows, raw, **named), raw[..., 0] > FAR
        status = torch.where(bad, 2, found.status.long()).to(torch.int8)
        return found._replace(status=status, y=torch.where(bad.unsqueeze(-1), raw, found.y))

    nearest, search, project = quadratic._nearest, l1_ball._search, program.Program.project

    descent = nonlinear.find_point
    monkeypatch.setattr(nonlinear, "find_point", steps)
    monkeypatch.setattr(conic, "_find", left(conic._find, lambda raw, *_: raw))
    monkeypatch.setattr(relaxed, "relax", left(relaxed.relax, lambda raw, *_: raw))
    monkeypatch.setattr(linsat, "balance_by_newton", left(linsat.balance_by_newton, lambda _, scores: scores / 20))
    monkeypatch.setattr(quadratic, "_nearest", root)
    monkeypatch.setattr(l1_ball, "_search", pieces)
    monkeypatch.setattr(program.Program, "project", cones)


def raw_outputs():
    raw = 3 * draw(5, 4, seed=3)
    raw[BAD, 0] = 100.0
    return raw


def layer_of(name, **options):
    if name == "program":
        pytest.importorskip("cvxpylayers")
    family = FAMILIES[name]
    return hn.layers.LAYERS[family.method](family.constraint(), **options)


@pytest.mark.parametrize("policy", ["auto", "raise"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_error_names_the_samples_and_carries_the_others(name, policy):
    raw = raw_outputs()
    with pytest.raises(hn.errors.ConvergenceError, match="in samples 1, 3;") as caught:
        layer_of(name, on_unsolved=policy)(raw)
    found = caught.value.solution
    assert caught.value.samples == BAD
    assert found.status.tolist() == [0, 2, 0, 2, 0]
    assert found.y[BAD].isnan().all()
    assert torch.equal(found.y[GOOD], layer_of(name, on_unsolved="nan")(raw)[GOOD])
    assert len({len(part) for part in found}) == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_nan_for_these_alone_and_no_gradient_from_them(name):
    layer, raw = layer_of(name, on_unsolved="nan"), raw_outputs().requires_grad_()
    y = layer(raw)
    assert y[BAD].isnan().all()
    assert torch.allclose(y[GOOD], layer(raw[GOOD]), rtol=0, atol=1e-12 if name != "program" else 1e-9)
    y.square().nansum().backward()
    assert raw.grad[BAD].eq(0).all()
    assert raw.grad[GOOD].isfinite().all()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_best_point_is_asked_for_by_name(name):
    raw = raw_outputs().requires_grad_()
    y = layer_of(name, on_unsolved="best")(raw)
    assert y.isfinite().all()
    assert torch.equal(y[GOOD], layer_of(name, on_unsolved="nan")(raw)[GOOD])
    (grad,) = torch.autograd.grad(y.sum(), raw)
    assert grad[BAD].eq(0).all()
    assert grad.isfinite().all()


@pytest.mark.parametrize("policy", ["auto", "best"])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_reads_no_value(name, policy):
    torch._dynamo.reset()
    raw = raw_outputs()
    y = torch.compile(layer_of(name, on_unsolved=policy), backend="eager", fullgraph=True)(raw)
    assert torch.equal(y[GOOD], layer_of(name, on_unsolved="nan")(raw)[GOOD])
    assert y[BAD].isfinite().all() if policy == "best" else y[BAD].isnan().all()


def test_a_curved_point_whose_rows_hold_is_feasible_and_warned_of_once(monkeypatch):
    find, layer = conic._find, layer_of("cone")

    def doubted(raw, *given):
        found = find(raw, *given)
        return found._replace(status=torch.where(found.status == 2, 2, int(Status.FEASIBLE)).to(torch.int8))

    raw = raw_outputs()[GOOD]
    expected = layer(raw)
    monkeypatch.setattr(conic, "_find", doubted)
    with pytest.warns(hn.errors.NotConvergedWarning, match="3 of 3 points are in the set"):
        assert torch.equal(layer(raw), expected)
    layer(raw)  # warnings are errors here, and this one was given
