"""Unions: the nearest of the pieces by oracles of their own, which piece, what is not proved, files, refusals."""

import math

import pytest
import torch

import hardnet as hn
from tests.draws import draw, draw_uniform, tensor

F64 = torch.float64
SOLVED, INFEASIBLE, NOT_CONVERGED, INVALID, FEASIBLE = range(5)


def nearest(constraint, raw, x=None, **options):
    return hn.layers.UnionLayer(constraint, **options)(raw, x)


def polygon(corners):
    """The convex polygon with these corners ``(k, 2)``, counterclockwise, as rows."""
    edges = corners.roll(-1, 0) - corners
    normals = torch.stack([edges[:, 1], -edges[:, 0]], -1)
    return hn.Affine(normals, upper=(normals * corners).sum(-1))


def nearest_in_polygon(raw, corners):
    """By hand: raw itself inside, else the nearest point of all edges."""
    after = corners.roll(-1, 0)
    along = after - corners
    share = ((raw[:, None] - corners) * along).sum(-1) / along.square().sum(-1)
    points = corners + share.clamp(0, 1)[..., None] * along
    best = (points - raw[:, None]).norm(dim=-1).argmin(-1)
    offset = raw[:, None] - corners
    inside = (along[:, 0] * offset[..., 1] - along[:, 1] * offset[..., 0] >= 0).all(-1)
    return torch.where(inside[:, None], raw, points[torch.arange(len(raw)), best])


def star(points):
    """The tips of a star, triangles around a polygon, which they leave open."""
    angle = torch.arange(points, dtype=F64) * 2 * math.pi / points
    half = math.pi / points
    inner = lambda at: 0.5 * torch.stack([(angle + at).cos(), (angle + at).sin()], -1)
    outer = torch.stack([angle.cos(), angle.sin()], -1)
    return torch.stack([inner(-half), outer, inner(half)], 1)


def closest_of(answers, raw):
    """The nearest of several answers ``(k, B, n)``, and which it is."""
    distance = (torch.stack(answers) - raw).norm(dim=-1)
    piece = distance.argmin(0)
    return torch.stack(answers)[piece, torch.arange(len(raw))], piece


@pytest.mark.parametrize("points", [2, 5, 16])
def test_a_star_by_its_triangles(points):
    triangles = list(star(points) if points > 2 else star(5)[:2])
    constraint = polygon(triangles[0])
    for corners in triangles[1:]:
        constraint = constraint | polygon(corners)
    raw = 1.2 * draw(300, 2, seed=points)
    expected, piece = closest_of([nearest_in_polygon(raw, corners) for corners in triangles], raw)
    found = hn.layers.UnionLayer(constraint).solve(raw)
    assert torch.equal(found.piece, piece)
    assert (found.status == SOLVED).all()
    torch.testing.assert_close(found.y, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(nearest(constraint, raw), expected, rtol=0, atol=1e-12)
    assert hn.check(constraint, nearest(constraint, raw)).ok


@pytest.mark.parametrize("dim", [1, 3, 10])
def test_disconnected_boxes_exactly_and_bit_for_bit_inside(dim):
    """A ring of boxes: clamps are the oracle; the bounds of every piece hold exactly."""
    centers = 4 * draw(6, dim, seed=dim)
    boxes = [(center - 0.3, center + 0.5) for center in centers]
    constraint = hn.Box(*boxes[0], name="a")
    for box in boxes[1:]:
        constraint = constraint | hn.Box(*box)
    raw = 5 * draw(400, dim, seed=dim + 1)
    expected, piece = closest_of([raw.clamp(*box) for box in boxes], raw)
    y = nearest(constraint, raw)
    assert torch.equal(y, expected)
    certificate = hn.check(constraint, y)
    assert certificate.ok
    assert torch.equal(certificate.piece, piece)
    inside = centers + 0.1 * draw_uniform(6, dim, seed=9)
    assert torch.equal(nearest(constraint, inside), inside)


def test_convex_pieces_of_any_kind_that_move_with_x():
    """A ball, a cone and an intersection of a ball and rows, against the layer of each piece."""
    ball = hn.Ball(lambda x: x, 0.5)
    cone = hn.SecondOrderCone(
        torch.eye(3, dtype=F64)[:2], torch.zeros(2, dtype=F64), tensor(0.0, 0, 1), lambda x: x[..., 0]
    )
    lens = hn.Ball(lambda x: x - 2, 1.0) & hn.Affine([[1.0, 1.0, 1.0]], lower=lambda x: x.sum(-1, keepdim=True) - 7)
    constraint = ball | cone | lens
    raw, x = 3 * draw(200, 3, seed=1), draw(200, 3, seed=2)
    answers = [hn.HardNet(torch.nn.Identity(), piece).layer(raw, x) for piece in (ball, cone, lens)]
    expected, piece = closest_of(answers, raw)
    assert len(piece.unique()) == 3
    torch.testing.assert_close(nearest(constraint, raw, x), expected, rtol=0, atol=1e-9)
    assert torch.equal(hn.layers.UnionLayer(constraint).solve(raw, x).piece, piece)
    assert hn.check(constraint, nearest(constraint, raw, x), x).ok


def test_intersections_are_distributed():
    left, right, low, high = (hn.Box(*at) for at in (([0.0, 0], [1.0, 9]), ([3.0, 0], [4.0, 9]), ([0.0, 0], [9.0, 1]),
                                                     ([0.0, 3], [9.0, 4])))  # fmt: skip
    constraint = (left | right) & (low | high)
    assert isinstance(constraint, hn.sets.Union)
    assert len(constraint.pieces) == 4
    raw = 5 * draw(300, 2, seed=3)
    squares = [raw.clamp(tensor(a, b), tensor(a + 1, b + 1)) for a in (0.0, 3.0) for b in (0.0, 3.0)]
    expected, piece = closest_of(squares, raw)
    assert torch.equal(nearest(constraint, raw), expected)
    assert torch.equal(hn.layers.UnionLayer(constraint).solve(raw).piece, piece)
    row = hn.Affine([[1.0, 1.0]], upper=3.5)
    for joined in ((left | right) & row, row & (left | right)):
        assert len(joined.pieces) == 2
        torch.testing.assert_close(nearest(joined, raw), nearest((left & row) | (right & row), raw), rtol=0, atol=0)


def test_it_reports_the_piece_and_its_iterations():
    constraint = (hn.Affine(draw(6, 3, seed=4), upper=-1.0) | hn.Ball([5.0, 5.0, 5.0], 1.0)) | hn.Box(None, -50.0)
    found = hn.layers.UnionLayer(constraint).solve(4 * draw(50, 3, seed=5))
    assert found.piece.shape == found.status.shape == found.iterations.shape == found.residual.shape == (50,)
    assert (found.iterations > 0).any()
    assert set(found.piece.tolist()) <= {0, 1, 2}
    assert found.dual.shape[0] == 50


def test_an_empty_piece_is_not_taken_and_empty_pieces_alone_are_refused():
    """Sample 0 has both pieces, sample 1 the second one, sample 2 none."""
    x = tensor([1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0])
    box = lambda own, at: hn.Box(at, None) & hn.Affine([[1.0, 1.0]], upper=lambda x: 2 * at + x[..., own : own + 1])
    constraint = box(0, 0.0) | box(1, 5.0)
    raw = torch.zeros(3, 2, dtype=F64)
    layer = hn.layers.UnionLayer(constraint)
    found = layer.solve(raw, x)
    assert found.status.tolist() == [SOLVED, SOLVED, INFEASIBLE]
    assert found.piece.tolist() == [0, 1, -1]
    assert found.y[2].isnan().all()
    with pytest.raises(hn.errors.InfeasibleError, match="no piece of the union has a point in sample 2") as caught:
        layer(raw, x)
    assert caught.value.samples == [2]
    raw.requires_grad_()
    y = nearest(constraint, raw, x, on_infeasible="nan")
    torch.testing.assert_close(y[:2], tensor([0.0, 0.0], [5.0, 5.0]))
    y[:2].sum().backward()
    assert raw.grad.isfinite().all()
    assert not raw.grad[2].any()


def test_a_nonlinear_piece_gives_feasible_unless_raw_is_inside():
    disc = hn.Nonlinear(lambda y, x: y.square().sum(-1, keepdim=True), dim=2, upper=1.0)
    constraint = disc | hn.Box([3.0, 3.0], [4.0, 4.0])
    raw = tensor([2.0, 0.0], [5.0, 5.0], [0.1, 0.1], [3.5, 3.5])
    found = hn.layers.UnionLayer(constraint).solve(raw)
    assert found.status.tolist() == [FEASIBLE, FEASIBLE, SOLVED, SOLVED]
    assert found.piece.tolist() == [0, 1, 0, 1]
    with pytest.warns(hn.errors.NotConvergedWarning, match="could not be proved"):
        y = nearest(constraint, raw)
    torch.testing.assert_close(y, tensor([1.0, 0.0], [4.0, 4.0], [0.1, 0.1], [3.5, 3.5]), rtol=0, atol=1e-8)


def test_a_nonlinear_piece_without_a_point_is_unsolved_not_empty():
    nowhere = hn.Nonlinear(lambda y, x: y.square().sum(-1, keepdim=True) + 1, dim=2, upper=0.0)
    far = hn.Box([3.0, 3.0], [4.0, 4.0]) & hn.Affine([[1.0, 1.0]], upper=0.0)
    raw = draw(3, 2)
    layer = hn.layers.UnionLayer(nowhere | far)
    assert (layer.solve(raw).status == NOT_CONVERGED).all()
    with pytest.raises(hn.errors.ConvergenceError, match="on_unsolved"):
        layer(raw)
    assert nearest(nowhere | far, raw, on_unsolved="nan").isnan().all()
    found = hn.layers.UnionLayer(nowhere | hn.Box([3.0, 3.0], [4.0, 4.0])).solve(raw)
    assert (found.status == FEASIBLE).all()
    assert (found.piece == 1).all()


def test_the_gradient_is_that_of_the_piece():
    ball, box = hn.Ball(lambda x: x, 0.5), hn.Box(lambda x: x + 2, lambda x: x + 3)
    raw, x = 3 * draw(40, 2, seed=6), 0.1 * draw(40, 2, seed=7)
    raw.requires_grad_()
    x.requires_grad_()
    y = nearest(ball | box, raw, x)
    piece = hn.layers.UnionLayer(ball | box).solve(raw, x).piece
    assert len(piece.unique()) == 2
    cotangent = draw(40, 2, seed=8)
    grads = torch.autograd.grad(y, (raw, x), cotangent)
    alone = [hn.layers.HardNetCvx(part)(raw, x) for part in (ball, box)]
    expected = torch.where((piece == 0)[:, None], *alone)
    for own, other in zip(grads, torch.autograd.grad(expected, (raw, x), cotangent), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda raw, x: nearest(ball | box, raw, x), (raw[:6], x[:6]))


def test_a_certificate_holds_if_one_piece_does_and_names_the_best():
    constraint = hn.Box([0.0, 0.0], [1.0, 1.0], name="left") | hn.Ball([5.0, 0.0], 1.0, name="right")
    y = tensor([0.5, 0.5], [5.5, 0.0], [1.2, 0.5], [6.5, 0.0], [torch.nan, 0.0])
    certificate = hn.check(constraint, y)
    assert certificate.satisfied.tolist() == [True, True, False, False, False]
    assert certificate.piece[:4].tolist() == [0, 1, 0, 1]
    torch.testing.assert_close(certificate.violation[:4, 0], tensor(0, 0, 0.2, 0.5), rtol=0, atol=1e-12)
    assert certificate.names == ["left | right"]
    assert "2 in left" in str(certificate) or "3 in left" in str(certificate)
    assert not hn.check(constraint, y[:4], tolerance=0.1).ok
    assert hn.check(constraint, y[:4], tolerance=0.6).ok
    inside = hn.check(constraint, y[:2].float())
    assert inside.ok
    assert inside.rounding.shape == inside.tolerance.shape == (2, 1)
    assert inside.by_name()["left | right"].satisfied == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shorter_dtypes_and_moves(dtype):
    constraint = hn.Box([0.0, 0.0], [1.0, 1.0]) | hn.Ball([5.0, 0.0], 1.0)
    model = hn.HardNet(torch.nn.Linear(3, 2), constraint).double().float()
    y = model.layer((4 * draw(50, 2)).to(dtype))
    assert y.dtype == dtype
    assert hn.check(constraint, y).ok
    assert model.layer.solve((4 * draw(50, 2)).to(dtype)).y.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_modules_of_x_see_x_in_the_dtype_of_the_model(dtype):
    constraint = hn.Box(torch.nn.Linear(3, 2), 9.0) | hn.Ball(torch.nn.Linear(3, 2), 0.5)
    model, x = hn.HardNet(torch.nn.Linear(3, 2), constraint).to(dtype), draw(20, 3).to(dtype)
    assert hn.check(model, model(x), x).ok


def test_files_scaling_explain_and_repr(tmp_path):
    constraint = (hn.Box([0.0, 0.0], [1.0, 1.0], name="left") | hn.Ball([5.0, 0.0], 1.0, name="right")) & hn.Affine(
        [[1.0, 1.0]], upper=5.5, name="cut"
    )
    model = hn.HardNet(torch.nn.Linear(3, 2).double(), constraint)
    assert model.method == "union"
    assert "left & cut | right & cut" in repr(model)
    assert hn.explain(constraint).method == "union"
    hn.save(model, tmp_path / "model")
    again = hn.load(tmp_path / "model", net=torch.nn.Linear(3, 2).double())
    x = 4 * draw(20, 3)
    assert torch.equal(again(x), model(x))
    other = hn.HardNet(torch.nn.Linear(3, 2).double(), hn.Box([0.0, 0.0], [1.0, 1.0]) | hn.Box([5.0, 0.0], [6.0, 1.0]))
    with pytest.raises(hn.errors.HardNetError):
        hn.load(tmp_path / "model", net=other)
    z = hn.scaled(constraint, tensor(1.0, 2.0), tensor(3.0, 0.5))
    raw = draw(50, 2)
    y = nearest(z, raw)
    assert hn.check(z, y).ok
    assert hn.check(constraint, tensor(1.0, 2.0) + tensor(3.0, 0.5) * y).ok


def test_refusals():
    box, x = hn.Box([0.0, 0.0], [1.0, 1.0]), torch.zeros(2, 2, dtype=F64)
    with pytest.raises(hn.errors.DTypeError, match=r"after \|"):
        box | 3.0
    with pytest.raises(hn.errors.ShapeError, match="one output dimension"):
        box | hn.Box([0.0], [1.0])
    many = box
    for _ in range(15):
        many = many | box
    with pytest.raises(hn.errors.UnsupportedSetError, match="2 to 16 pieces"):
        many | box
    with pytest.raises(hn.errors.UnsupportedSetError, match="2 to 16 pieces"):
        many & (box | box)
    with pytest.raises(hn.errors.UnsupportedSetError, match="give way"):
        box | hn.Relaxed(box)
    with pytest.raises(hn.errors.UnsupportedSetError, match="no unions"):
        hn.sets.Intersection([box | box, box])
    with pytest.raises(hn.errors.UnsupportedSetError, match="status"):
        hn.HardNet(torch.nn.Identity(), box | hn.Cvxpy(lambda y: [y <= 1], 2))
    for method in ("projection", "cvx", "nonlinear", "rayen", "dc3", "aff"):
        with pytest.raises(hn.errors.UnsupportedSetError, match=method):
            hn.HardNet(torch.nn.Identity(), box | box, method)
    with pytest.raises(hn.errors.UnsupportedSetError, match="affine rows"):
        hn.Relaxed(box | box)
    with pytest.raises(hn.errors.UnsupportedSetError, match="export"):
        torch.export.export(hn.HardNet(torch.nn.Identity(), box | box), (x,))
    with pytest.raises(hn.errors.UnsupportedSetError, match="transform"):
        torch.func.vmap(hn.layers.UnionLayer(box | box))(x)
    with pytest.raises(hn.errors.HardNetError, match="raw"):
        nearest(box | box, x * torch.nan)
    bad = hn.Box(lambda x: x, 1.0) | box
    wrong = tensor([0.0, 0.0], [2.0, 0.0])
    with pytest.raises(hn.errors.HardNetError, match="sample 1"):
        nearest(bad, x + 3, wrong)
    assert nearest(bad, x + 3, wrong, on_invalid="nan").isnan().all(-1).tolist() == [False, True]


def test_a_compiled_graph_calls_it_as_it_is():
    layer, raw = hn.layers.UnionLayer(hn.Box([0.0, 0.0], [1.0, 1.0]) | hn.Ball([5.0, 0.0], 1.0)), 4 * draw(9, 2)
    torch.testing.assert_close(torch.compile(layer, backend="eager")(raw), layer(raw), rtol=0, atol=1e-12)
