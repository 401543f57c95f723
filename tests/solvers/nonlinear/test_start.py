"""Rows that are not finite somewhere: at raw, at the first step, at the end. The best finite point, or INVALID."""

import pytest
import torch

import hardnet as hn
from hardnet.layers import NonlinearLayer
from hardnet.solvers.nonlinear.solve import NonlinearStatus as Status
from tests.nonlinear_problems import F64, real

HOLDS = (Status.OK, Status.FEASIBLE_ONLY, Status.DEGENERATE)

BEST = {"on_infeasible": "nearest", "on_unsolved": "best", "on_invalid": "nan"}


def replaced(value, bad, where):
    return torch.where(where, torch.full_like(value, bad), value)


def at_raw(bad):
    """A circle whose row is not a number beyond radius 4, where raw is."""
    return lambda y, x: replaced(y.square().sum(-1, keepdim=True) - 1, bad, y.square().sum(-1, keepdim=True) > 16)


def at_the_first_step(bad):
    """A hyperbola; from raw the full step leads to y1 < 0, where the row is not a number."""
    return lambda y, x: replaced(y[..., :1] * y[..., 1:] - 1, bad, y[..., :1] <= 0)


def at_the_end(bad):
    """A circle whose row is not a number around its nearest point (0.6, 0.8), which can so not be reached."""
    return lambda y, x: replaced(
        y.square().sum(-1, keepdim=True) - 1, bad, (y - real([0.6, 0.8])).square().sum(-1, keepdim=True) < 1e-4
    )


FAMILY = {
    "raw": (at_raw, [3.0, 4.0], [0.5, 0.2]),
    "first step": (at_the_first_step, [0.05, 0.1], [2.0, 3.0]),
    "end": (at_the_end, [3.0, 4.0], [-2.0, 1.0]),
}


@pytest.mark.parametrize("iterations", [None, 30])
@pytest.mark.parametrize("mode", ["nearest", "retract"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", FAMILY)
def test_the_best_finite_point_or_invalid(where, bad, mode, iterations):
    make, point, mate = FAMILY[where]
    layer = NonlinearLayer(
        hn.Nonlinear(make(bad), dim=2, lower=0.0, upper=0.0),
        mode=mode,
        on_infeasible="nearest",
        on_unsolved="best",
        on_invalid="nan",
        iterations=iterations,
    )
    raw, harmless = real([mate, point, mate]), real([mate, mate, mate])
    leaf = raw.clone().requires_grad_()
    y, found = layer(leaf), layer.solve(raw)
    assert torch.equal(y[[0, 2]], layer(harmless)[[0, 2]])  # mates, bit for bit
    if found.status[1] == Status.INVALID:
        assert where == "raw"  # a fixed program looks for no other start
        assert iterations is not None
        assert y[1].isnan().all()
        return
    value = make(bad)(y, None)
    assert y[1].isfinite().all()
    assert value[1].isfinite().all()
    assert (found.status[1] in HOLDS) == bool(value[1].abs() <= 1e-9)  # the status says what g says there
    first = make(bad)(raw, None)[1]
    assert value[1].abs() <= first.abs().nan_to_num(torch.inf)  # the best point is no worse than raw
    y.sum().backward()
    assert leaf.grad[[0, 2]].isfinite().all()
    assert leaf.grad[1].isfinite().all()
    if where != "end" and iterations is None:
        assert found.status[1] in HOLDS


def test_no_finite_point_is_invalid_and_its_mates_keep_their_bits():
    layer = NonlinearLayer(
        hn.Nonlinear(lambda y, x: y.square().sum(-1, keepdim=True) + x, dim=2, lower=0.0, upper=0.0),
        on_infeasible="nearest",
        on_unsolved="best",
        on_invalid="nan",
    )
    raw = real([[3.0, 4.0], [1.0, 2.0], [0.5, 0.1]])
    spoilt, sound = real([[-1.0], [torch.nan], [-1.0]]), real([[-1.0], [-2.0], [-1.0]])
    found = layer.solve(raw, spoilt)
    assert found.status.tolist() == [Status.OK, Status.INVALID, Status.OK]
    y = layer(raw, spoilt)
    assert y[1].isnan().all()
    assert torch.equal(y[[0, 2]], layer(raw, sound)[[0, 2]])


@pytest.mark.parametrize("mode", ["nearest", "retract"])
def test_domains_of_logarithm_root_and_quotient(mode):
    """Raw outside of the domain of g: the known nearest points, or a feasible one."""
    logarithm = hn.Nonlinear(lambda y, x: y[..., :1].log() + y[..., 1:], dim=2, lower=0.0, upper=0.0)
    root = hn.Nonlinear(lambda y, x: (4 - y.square().sum(-1, keepdim=True)).sqrt(), dim=2, lower=1.0, upper=1.0)
    for rows, raw in ((logarithm, real([[-3.0, 1.0], [2.0, 1.0]])), (root, real([[3.0, 4.0], [1.0, 1.0]]))):
        layer = NonlinearLayer(rows, mode=mode)
        assert hn.check(rows, layer(raw), tolerance=1e-9).ok  # tol is 1e-10 of scales below 10
    if mode == "nearest":
        length = torch.tensor(3.0, dtype=F64).sqrt()
        torch.testing.assert_close(layer(real([[3.0, 4.0]])), length * real([[0.6, 0.8]]))


def test_affine_rows_may_lead_back_into_the_domain():
    rows = hn.Nonlinear(lambda y, x: y[..., :1].log() + y[..., 1:], dim=2, lower=0.0, upper=0.0)
    both = rows & hn.Box(real([0.5, -5.0]), 5.0)
    layer = NonlinearLayer(both)
    assert hn.check(both, layer(real([[-3.0, 1.0], [2.0, 1.0]])), tolerance=1e-9).ok


def test_an_infinite_derivative_hides_no_violation():
    """The root of 0 has the value 0 and an infinite slope: the row's scale there is no measure of anything."""
    rows = hn.Nonlinear(lambda y, x: y[..., :1].sqrt(), dim=2, lower=1.0, upper=2.0)
    layer = NonlinearLayer(rows, **BEST)
    found = layer.solve(real([[0.0, 5.0], [4.0, 5.0], [9.0, 5.0]]))
    assert found.status[1:].tolist() == [Status.OK, Status.OK]
    assert found.status[0] != Status.OK or found.y[0, 0] >= 1 - 1e-9


def test_a_point_of_the_set_with_an_infinite_derivative_comes_back():
    layer = NonlinearLayer(hn.Nonlinear(lambda y, x: y.sqrt(), dim=1, lower=0.0, upper=2.0))
    raw = real([[0.0], [1.0]])
    assert torch.equal(layer(raw), raw)


def test_rounding_to_float32_may_leave_the_domain():
    """Where g has no number at the rounded point the status may not say that it holds."""
    edge = 1.0 + 2.0**-30  # rounds to 1 in float32, where the row is no number
    rows = hn.Nonlinear(lambda y, x: replaced(y - edge, torch.nan, y <= 1.0), dim=1, lower=0.0, upper=0.0)
    found = NonlinearLayer(rows, **BEST).solve(torch.tensor([[3.0]]))
    assert found.status.item() not in HOLDS
