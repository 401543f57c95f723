"""CAffNet's tasks: the published draws, rows that the projection keeps, and the closed form refuses."""

import math

import numpy as np
import pytest
import torch

import hardnet as hn
from hardnet.errors import HardNetError
from hardnet_lab.problems.piecewise import BOX_TARGET
from hardnet_lab.problems.suites.caffnet import (
    LOWER,
    POLYGONS,
    UPPER,
    NearNominal,
    PointwiseBounds,
    PolygonUnicycle,
    SmallPrograms,
    sides,
)


def test_the_target_lies_between_all_bounds():
    x = PointwiseBounds().test[:, :1]
    assert (LOWER(x).amax(-1) <= UPPER(x).amin(-1)).all()
    assert (LOWER(x) <= BOX_TARGET(x)).all()
    assert (BOX_TARGET(x) <= UPPER(x)).all()


def test_a_program_is_drawn_in_the_published_order():
    problem = SmallPrograms(7)
    random = np.random.RandomState(7)
    Q, p = random.random_sample(5), random.random_sample(5)
    A, C = random.normal(size=(5, 5)), random.normal(size=(3, 5))
    x = random.uniform(-1, 1, (2010, 3))
    for found, expected in ((problem.Q, Q), (problem.p, p), (problem.A, A), (problem.C, C)):
        assert torch.equal(found, torch.from_numpy(expected))
    assert torch.equal(problem.inputs(problem.test), torch.from_numpy(x[1010:]))


@pytest.mark.parametrize("build", [PointwiseBounds, lambda: SmallPrograms(1), PolygonUnicycle])
def test_more_rows_than_outputs_are_kept_by_the_projection_and_refused_by_the_closed_form(build):
    problem = build()
    x = problem.inputs(problem.train)[:40]
    raw = 3 * torch.randn(len(x), problem.output_dim, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    assert hn.check(problem.constraint, hn.layers.Projection(problem.constraint)(raw, x), x).ok
    with pytest.raises(HardNetError, match=r"m <= n|at most n"):
        hn.HardNet(torch.nn.Identity(), problem.constraint, "aff").layer(raw, x)


def test_sides_are_the_hull():
    for center, points in POLYGONS:
        found = sides(center, points)
        inside = torch.tensor(points, dtype=torch.float64) + torch.tensor(center, dtype=torch.float64)
        assert (found[:, :2] @ inside.T <= found[:, 2:] + 1e-12).all()
        touched = (found[:, :2] @ inside.T - found[:, 2:]).abs() < 1e-9
        assert (touched.sum(-1) >= 2).all()
        torch.testing.assert_close(found[:, :2].norm(dim=-1), torch.ones(len(found)).double())


def test_the_rows_are_the_derivative_of_the_barriers():
    problem = PolygonUnicycle()
    x = problem.inputs(problem.train)[:9]
    slopes = torch.func.vmap(torch.func.jacrev(lambda pose: problem.rows.heights(pose)[0]))(x)
    along = slopes[..., 0] * x[:, None, 2].cos() + slopes[..., 1] * x[:, None, 2].sin()
    torch.testing.assert_close(problem.rows.matrix(x)[:, :3, 0], along)


def test_a_rollout_behind_the_layer_breaks_no_row():
    torch.manual_seed(0)
    problem, net = PolygonUnicycle(), NearNominal(5, 2).double()
    layer = hn.layers.Projection(problem.constraint, on_infeasible="nearest")
    with torch.no_grad():
        found = problem.evaluate(lambda x: layer(net(x), x), problem.test)
        plain = problem.evaluate(net, problem.test)
    assert found["worst_violation"] < 1e-12
    assert plain["worst_violation"] > 0.1
    assert math.isfinite(found["objective"])
