"""The solution of a layer: its point, multipliers that prove it nearest, and a status for every sample."""

import pytest
import torch

import hardnet as hn
from hardnet.functional import solve_rows
from hardnet.functional.conic import solve_intersection
from hardnet.solvers import Status
from hardnet.structure import BoxedRows
from tests.cases import ball_of_x, cone, many_rows, moving_rows, quadratic
from tests.draws import draw
from tests.waiting import NoWait

F64 = torch.float64
ONES = torch.ones(1, 4, dtype=F64)
WIDE = torch.ones(4, dtype=F64)


def shared():
    """Twenty constant rows beside a box, and eight equalities in twelve outputs, whose factors are kept."""
    A, b = draw(20, 12, seed=3), draw(8, seed=4)
    inside = hn.Affine(A, lower=-20.0, upper=20.0)
    return hn.Equality(draw(8, 12, seed=5), b) & inside & hn.Box(-50 * torch.ones(12, dtype=F64), 50.0)


POLYHEDRA = {
    "few rows of x": moving_rows,
    "a box": lambda: hn.Box(-WIDE, 1.0),
    "a box and a row": lambda: hn.Box(-WIDE, 1.0) & hn.Equality(ONES, 1.0),
    "a box and three rows": lambda: hn.Affine(draw(3, 4), upper=0.5) & hn.Box(-WIDE, 1.0),
    "a simplex": lambda: hn.Simplex(4),
    "general rows": lambda: hn.Affine(draw(6, 4), lower=-0.5, upper=0.5),
    "general rows and a box": many_rows,
    "shared factors": shared,
}
OTHERS = {
    "a ball": ball_of_x,
    "a quadratic": quadratic,
    "a cone": cone,
    "a ball and a box": lambda: hn.Ball(torch.zeros(4, dtype=F64), 0.3) & hn.Box(-0.2, 0.2),
    "sparse rows": lambda: hn.Affine(draw(6, 4).to_sparse_csr(), lower=-0.5, upper=0.5),
    "sparse rows and a box": lambda: hn.Affine(draw(6, 4).to_sparse_csr(), upper=0.5) & hn.Box(-WIDE, 1.0),
}


def data(constraint, samples=24):
    return 3 * draw(samples, constraint.dim or 4, seed=1), draw(samples, 4, seed=2)


def expected_step(constraint, found, raw, x):
    """``A'dual`` of the general rows plus the multipliers of the box."""
    rows = constraint.structure(constraint.numbers(x, raw), raw)
    m = rows.A.shape[-2]
    assert found.dual.shape[-1] == (m + raw.shape[-1] if rows.boxed else m)
    step = (rows.A.mT @ found.dual[..., :m, None]).squeeze(-1)
    return step + found.dual[..., m:] if rows.boxed else step


def assert_signs(constraint, found, x):
    """Check that positive multipliers belong to upper bounds and negative ones to lower bounds."""
    A, lower, upper = constraint.structure(constraint.numbers(x, found.y), found.y).dense()
    value = (A @ found.y.unsqueeze(-1)).squeeze(-1)
    for bound, sign in ((lower, -1), (upper, 1)):
        active = sign * found.dual > 1e-9
        if bound is None:
            assert not active.any()
        else:
            assert torch.where(active, value - bound, 0.0).abs().max() <= 1e-9


@pytest.mark.parametrize("method", ["projection", "cvx"])
@pytest.mark.parametrize("name", POLYHEDRA)
def test_multipliers_show_the_nearest_point(name, method):
    constraint = POLYHEDRA[name]()
    layer = hn.layers.LAYERS[method](constraint)
    raw, x = data(constraint)
    found, y = layer.solve(raw, x), layer(raw, x)
    assert (found.status == Status.SOLVED).all()
    torch.testing.assert_close(found.y, y, rtol=0, atol=1e-12)
    torch.testing.assert_close(raw - found.y, expected_step(constraint, found, raw, x), rtol=0, atol=1e-10)
    assert_signs(constraint, found, x)
    assert found.residual.max() <= 1e-9
    assert found.status.shape == found.iterations.shape == found.residual.shape == (len(raw),)


@pytest.mark.parametrize("name", OTHERS)
def test_other_sets_tell_their_status(name):
    layer = hn.layers.HardNetCvx(OTHERS[name]())
    raw, x = data(layer.constraint)
    raw[3, 0] = torch.nan
    found = layer.solve(raw, x)
    good = torch.arange(len(raw)) != 3
    assert (found.status == torch.where(good, int(Status.SOLVED), int(Status.INVALID))).all()
    assert found.y[3].isnan().all()
    torch.testing.assert_close(found.y[good], layer(raw[good], x[good]), rtol=0, atol=1e-9)
    assert found.residual[good].max() <= 1e-9


def test_multipliers_of_a_ball_are_those_of_its_cone():
    ball = ball_of_x()
    raw, x = data(ball)
    closed = hn.layers.HardNetCvx(ball).solve(raw, x)
    by_cone = solve_intersection(raw, [ball.block(ball.numbers(x, raw)).cone()])
    torch.testing.assert_close(closed.dual, by_cone.dual, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["few rows of x", "a box and a row", "a box and three rows", "general rows"])
def test_bad_samples_have_their_status_and_leave_their_mates_alone(name):
    layer = hn.layers.Projection(POLYHEDRA[name]())
    raw, x = data(layer.constraint)
    clean = layer.solve(raw, x)
    raw[1, 2], raw[4, 0] = torch.nan, torch.inf
    found = layer.solve(raw, x)
    bad = torch.zeros(len(raw), dtype=torch.bool)
    bad[[1, 4]] = True
    assert (found.status[bad] == Status.INVALID).all()
    assert found.y[bad].isnan().all()
    for one, other in zip(found, clean, strict=True):
        assert torch.equal(one[~bad], other[~bad])


EMPTY = {
    "few": (torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], dtype=F64), None),
    "box": (torch.tensor([[1.0, 1.0, 0.0]], dtype=F64), 1.0),
    "general": (torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], dtype=F64).repeat(3, 1), None),
}


@pytest.mark.parametrize("kind", EMPTY)
@pytest.mark.parametrize("look", [True, False])
def test_an_empty_set_is_a_status_and_no_error(kind, look, request):
    A, side = EMPTY[kind]
    lower = torch.tensor([[5.0], [0.5]], dtype=F64).expand(2, len(A)).contiguous()  # only the second has a point
    lower = lower if side else torch.where(torch.arange(len(A)) % 2 == 0, lower, torch.tensor([[0.0], [-9.0]]).double())
    rows = BoxedRows(A, lower, None, *((-side * WIDE[:3], side * WIDE[:3]) if side else (None, None)))
    if not look:
        request.getfixturevalue("blind")
    found = solve_rows(torch.zeros(2, 3, dtype=F64), rows)
    assert found.status[1] == Status.SOLVED
    assert found.status[0] in ((Status.INFEASIBLE,) if look else (Status.INFEASIBLE, Status.NOT_CONVERGED))
    assert found.y[0].isnan().all()
    assert found.y[1].isfinite().all()


def test_the_compromise_is_the_answer_of_an_empty_set_where_it_is_asked_for():
    A = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=F64)
    layer = hn.layers.Projection(hn.Affine(A, lower=[1.0, 1.0]), on_infeasible="nearest")
    found = layer.solve(torch.zeros(1, 2, dtype=F64))
    assert found.status[0] == Status.INFEASIBLE
    torch.testing.assert_close(found.y, layer(torch.zeros(1, 2, dtype=F64)))


@pytest.mark.parametrize("name", POLYHEDRA)
@pytest.mark.parametrize("policy", ["auto", "raise", "nan", "nearest"])
def test_bad_numbers_raise_nothing_whatever_the_policies(name, policy):
    layer = hn.layers.Projection(POLYHEDRA[name](), on_infeasible=policy, on_invalid="raise")
    raw, x = data(layer.constraint)
    good = layer.solve(raw, x)
    raw = raw.clone()
    raw[1, 0], raw[2, 0] = torch.nan, torch.inf
    found = layer.solve(raw, x)
    mates = [i for i in range(len(raw)) if i not in (1, 2)]
    assert (found.status[[1, 2]] == int(Status.INVALID)).all()
    assert found.y[[1, 2]].isnan().all()
    assert torch.equal(found.status[mates], good.status[mates])
    torch.testing.assert_close(found.y[mates], good.y[mates], rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{"metric": [1.0, 2.0, 3.0, 4.0]}, {"strict": True}, {"gradient": "tangent"}])
@pytest.mark.parametrize("name", ["few rows of x", "a box and a row", "general rows"])
def test_options_of_the_layer_hold_for_its_solution(name, options):
    layer = hn.layers.Projection(POLYHEDRA[name](), **options)
    raw, x = data(layer.constraint)
    found, W = layer.solve(raw, x), torch.tensor(options.get("metric", 1.0), dtype=F64)
    assert (found.status == Status.SOLVED).all()
    torch.testing.assert_close(found.y, layer(raw, x), rtol=0, atol=1e-12)
    torch.testing.assert_close(W * (raw - found.y), expected_step(layer.constraint, found, raw, x), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", [*POLYHEDRA, "a ball", "a cone"])
def test_nothing_is_looked_at_where_a_look_would_wait(name, blind):
    constraint = (POLYHEDRA | OTHERS)[name]()
    layer = hn.layers.HardNetCvx(constraint) if name in OTHERS else hn.layers.Projection(constraint)
    raw, x = data(constraint)
    y = layer(raw, x)
    with NoWait():
        found = layer.solve(raw, x)
    assert (found.status == Status.SOLVED).all()
    torch.testing.assert_close(found.y, y, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["few rows of x", "general rows", "a ball and a box"])
def test_it_is_part_of_a_compiled_graph(name):
    constraint = (POLYHEDRA | OTHERS)[name]()
    layer = hn.layers.HardNetCvx(constraint) if name in OTHERS else hn.layers.Projection(constraint)
    raw, x = data(constraint, 3)
    found = torch.compile(layer.solve, fullgraph=True, backend="eager")(raw, x)
    expected = layer.solve(raw, x)
    assert torch.equal(found.status, expected.status)
    for one, other in ((found.y, expected.y), (found.dual, expected.dual)):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["few rows of x", "general rows", "a box and a row"])
def test_it_is_mapped(name):
    layer = hn.layers.Projection(POLYHEDRA[name]())
    raw, x = data(layer.constraint, 5)
    found, expected = torch.vmap(layer.solve)(raw, x), layer.solve(raw, x)
    torch.testing.assert_close(found.y, expected.y, rtol=0, atol=1e-9)
    assert torch.equal(found.status, expected.status)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes_of_the_solution(dtype):
    layer = hn.layers.Projection(hn.Affine([[1.0, 1.0], [1.0, -1.0]], upper=[0.5, 0.25]))
    raw = draw(7, 2).to(dtype)
    found = layer.solve(raw)
    assert found.y.dtype == dtype
    assert torch.equal(found.y, layer(raw))
    assert found.status.dtype == torch.int8


def test_rows_that_give_way_are_refused():
    relaxed = hn.Box(-WIDE, 1.0) & hn.Relaxed(hn.Affine(ONES, lower=[9.0]))
    for kind in (hn.layers.Projection, hn.layers.HardNetCvx):
        with pytest.raises(hn.errors.UnsupportedSetError, match="expected"):
            kind(relaxed).solve(draw(2, 4))
