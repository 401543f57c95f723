"""The fixed program of curved sets, as GPUs and graphs run it: no look, the same answers, never a wrong one."""

import pytest
import torch

import hardnet as hn
from hardnet import SecondOrderCone, errors
from hardnet.functional import conic as conic_gradient
from hardnet.functional import conic as functional
from hardnet.functional import project_intersection
from hardnet.functional.conic import solve_intersection
from hardnet.solvers import Intervals, Quadratics, SecondOrder, SemiDefinite, Status
from hardnet.solvers.algebra.small import jacobi
from hardnet.solvers.conic import solve as conic
from hardnet.solvers.conic import solve as conic_distance
from hardnet.solvers.conic import solve as conic_fixed
from hardnet.solvers.conic import solve as conic_interior
from hardnet.solvers.conic import solve as conic_newton
from hardnet.solvers.conic.blocks import Linear
from hardnet.solvers.conic.solve import Saddle, StiffSaddle
from tests.draws import draw
from tests.solvers.convex import D, ball, families, half_plane

FAMILIES = families(12, 4)
EPS = 2.0**-52
BLIND = (functional, conic_gradient, conic, conic_distance, conic_fixed, conic_interior, conic_newton)
"""Where a look is asked for."""


@pytest.fixture
def blind(monkeypatch):
    """Forbid every look, as on a GPU: a value that is asked for raises."""
    for module in BLIND:
        monkeypatch.setattr(module, "may_look", lambda _: False)
    asked = AssertionError("a value was looked at")

    def refuse(*_):
        raise asked

    for name in ("__bool__", "item", "nonzero", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    yield
    monkeypatch.undo()


def programs(seed=0, samples=6):
    """Equalities and many quadratics, and equalities, a box and many cones: each kind as one image."""
    make = lambda *shape, at: draw(*shape, seed=seed + at)
    A, y0 = make(1, 4, 10, at=1), make(samples, 10, at=2)
    b = (A @ y0.unsqueeze(-1)).squeeze(-1)
    q, P = make(12, 10, at=3), torch.diag_embed(make(12, 10, at=4).abs())
    inside = (P @ y0[0] / 2 + q) @ y0[0]
    centered = Intervals(A, b[:1].expand_as(b), b[:1].expand_as(b))
    many = [Quadratics(P[i : i + 1], q[i : i + 1], -inside[i : i + 1] - 0.1) for i in range(12)]
    K, k, c = make(9, 5, 10, at=5), make(9, 5, at=6), make(9, 10, at=7)
    height = torch.linalg.vector_norm(K @ y0[0] + k, dim=-1) - c @ y0[0] + 0.1
    cones = [SecondOrder(*(part[i : i + 1] for part in (K, k, c, height))) for i in range(9)]
    bounds = torch.full((1, 10), 5.0, dtype=D)
    box = Intervals(torch.eye(10, dtype=D).unsqueeze(0), -bounds, bounds)
    return {"quadratics": [centered, *many], "cones": [centered, box, *cones]}


def curved_sets(dtype):
    """Matrix inequalities of two orders, and a ball, an ellipsoid and a cone beside others, of size one."""
    make = lambda *shape, seed: draw(*shape, seed=seed).to(dtype)
    symmetric = lambda order: (make(4, order, order, seed=order) + make(4, order, order, seed=order).mT) / 2
    one, P = torch.ones(4, dtype=dtype), make(4, 4, seed=1)
    ball = hn.Ball(0.1 * one, one[0])
    cone = hn.SecondOrderCone(make(3, 4, seed=2), 0.1 * one[:3], 0.1 * make(4, seed=3), one[0])
    return {
        "LMI of order 4": hn.LMI(torch.eye(4, dtype=dtype), symmetric(4)),
        "LMI of order 9": hn.LMI(torch.eye(9, dtype=dtype), symmetric(9)),
        "ball and row": ball & hn.Affine(make(1, 4, seed=4), upper=0.3 * one[:1]),
        "ball and ellipsoid": ball & hn.Quadratic(P @ P.mT + torch.eye(4, dtype=dtype), 0.1 * one, -one[0]),
        "cone and box": cone & hn.Box(-one, one),
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", curved_sets(D))
def test_what_is_solved_without_a_look_passes_its_certificate(name, dtype, monkeypatch):
    constraint = curved_sets(dtype)[name]
    for distance in (1.0, 3.0, 1e2, 1e4, 1e6):
        raw = distance * draw(60, 4, seed=5).to(dtype)
        with monkeypatch.context() as patched:
            for module in BLIND:
                patched.setattr(module, "may_look", lambda _: False)
            found = constraint.solve(raw)
        holds = hn.check(constraint, found.y.to(dtype)).holds.flatten(1).all(-1)
        solved = found.status == Status.SOLVED
        assert (holds | ~solved).all(), (distance, int((~holds & solved).sum()))
        assert solved.double().mean() > 0.9 or distance > 1e2


@pytest.mark.parametrize("size", [0.5, 3.0, 30.0])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_fixed_program_finds_the_same_point_without_a_look(name, size, blind, request):
    raw, blocks = size * draw(12, 5, seed=3)[:, : _outputs(FAMILIES[name])], FAMILIES[name]
    found = solve_intersection(raw, blocks)
    request.getfixturevalue("monkeypatch").undo()
    expected = solve_intersection(raw, blocks)
    assert found.status.tolist() == expected.status.tolist() == [Status.SOLVED] * len(raw)
    # both end at a residual of some roundings of the unit, at most 4 |raw|; the projection moves y by as much
    assert (found.y - expected.y).abs().max().item() <= 1e-9 * (1 + raw.abs().max().item())


def _outputs(blocks):
    first = blocks[0]
    return first.F.shape[-3] if isinstance(first, SemiDefinite) else first[0].shape[-1]


@pytest.mark.parametrize("name", ["quadratics", "cones"])
def test_many_sets_of_one_kind_are_one_image_and_are_solved(name, blind, request):
    raw, blocks = 3 * draw(6, 10, seed=8), programs()[name]
    found = solve_intersection(raw, blocks)
    images = conic.images(blocks)
    stack = conic.Stack(images, 10)
    missed = stack.miss(found.y) / stack.size(found.y)
    request.getfixturevalue("monkeypatch").undo()
    assert len(images) == (2 if name == "quadratics" else 3)
    assert found.status.tolist() == [Status.SOLVED] * 6
    assert missed.max().item() <= 64 * EPS


@pytest.mark.parametrize("name", ["quadratics", "cones"])
def test_gradients_of_the_fixed_program_are_those_of_the_looking_one(name, monkeypatch):
    blocks, raw = programs()[name], (3 * draw(6, 10, seed=8)).requires_grad_()
    fields = [field.clone().requires_grad_() for block in blocks for field in block if field.isfinite().all()]
    parts = iter(fields)
    own = [type(block)(*(next(parts) for _ in block)) for block in blocks]
    weight = draw(6, 10, seed=9)
    expected = torch.autograd.grad((project_intersection(raw, own) * weight).sum(), [raw, *fields])
    for module in (functional, conic_gradient, conic, conic_fixed, conic_interior):
        monkeypatch.setattr(module, "may_look", lambda _: False)
    found = torch.autograd.grad((project_intersection(raw, own) * weight).sum(), [raw, *fields])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7)


def test_without_an_answer_a_sample_is_nan_alone_and_its_gradient_zero(monkeypatch):
    for module in (functional, conic_gradient, conic, conic_fixed, conic_interior):
        monkeypatch.setattr(module, "may_look", lambda _: False)
    bound = torch.tensor([[0.5], [-3.0], [0.5]], dtype=D)  # the second plane misses the disc
    blocks = [ball([0.0, 0], 1.0), Intervals(torch.tensor([[[1.0, 0]]], dtype=D), bound - 9, bound)]
    raw = torch.tensor([[3.0, 1], [3, 1], [torch.nan, 1]], dtype=D, requires_grad=True)
    y = project_intersection(raw, blocks, on_infeasible="auto")
    assert y.isnan().all(-1).tolist() == [False, True, True]
    y[0].sum().backward()
    assert raw.grad[1:].abs().sum().item() == 0.0
    status = solve_intersection(raw.detach(), blocks).status
    assert status.tolist()[0] == Status.SOLVED
    assert status.tolist()[1] in (Status.INFEASIBLE, Status.NOT_CONVERGED)
    assert status.tolist()[2] == Status.INVALID


def test_a_curved_set_tells_the_status_of_each_sample():
    found = SecondOrderCone(torch.eye(2, dtype=D), [0.0, 0.0], [0.0, 0.0], 1.0).solve(3 * draw(5, 2))
    assert found.status.tolist() == [Status.SOLVED] * 5
    assert torch.linalg.vector_norm(found.y, dim=-1).max().item() <= 1 + 16 * EPS


def test_an_error_is_refused_inside_a_capture(monkeypatch):
    monkeypatch.setattr(functional, "may_look", lambda _: False)
    monkeypatch.setattr(functional, "may_wait", lambda: False)
    with pytest.raises(errors.OptionError, match=r"on_infeasible: expected no error inside a capture"):
        project_intersection(draw(2, 2), [ball([0.0, 0], 1.0), half_plane([-1.0, 0], -0.5)], on_infeasible="raise")


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7])
def test_jacobi_diagonalizes(k):
    X = draw(20, k, k)
    X = X + X.mT
    X[0], X[1] = 0.0, torch.eye(k, dtype=D)
    values, V = jacobi(X)
    # eigenvalues move by at most the norm of the perturbation, some roundings for each of the rotations
    bound = 64 * k * k * EPS * torch.linalg.matrix_norm(X).max().item()
    assert ((V * values.unsqueeze(-2)) @ V.mT - X).abs().max().item() <= bound
    assert (values.sort(-1).values - torch.linalg.eigvalsh(X)).abs().max().item() <= bound


def test_the_stiff_saddle_solves_what_the_exact_one_does_dependent_rows_too():
    rows, root = draw(5, 4, 6, seed=1), draw(5, 6, 6, seed=2)
    rows[:, 3] = rows[:, 2]
    W = root @ root.mT + torch.eye(6, dtype=D)
    linear = Linear(rows, torch.tensor([0.0, 1, 0, 0], dtype=D).expand(5, 4))
    q = draw(5, 4, seed=3) * linear.tight
    q[:, 3] = q[:, 2]
    for one, other in zip(
        StiffSaddle(W, linear).solve(draw(5, 6), q), Saddle(W, linear).solve(draw(5, 6), q), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)
