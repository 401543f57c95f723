"""Affine, Equality, Box and their intersection: numbers, residuals, constants, and every refusal."""

import pytest
import torch

import hardnet as hn
from tests.draws import draw

D = torch.float64


def test_residual_of_both_sides():
    constraint = hn.Affine(torch.eye(2, dtype=D), lower=torch.zeros(2, dtype=D), upper=torch.ones(2, dtype=D))
    y = torch.tensor([[-1.0, 3.0], [0.5, 1.0]], dtype=D)
    assert torch.equal(constraint.violation(y), torch.tensor([[1.0, 2.0], [0.0, 0.0]], dtype=D))


def test_one_sided_and_infinite_bounds_agree():
    A, y = draw(3, 5), 3 * draw(7, 5, seed=1)
    lower = torch.full((3,), -torch.inf, dtype=D)
    assert torch.equal(hn.Affine(A, upper=0.5).violation(y), hn.Affine(A, lower=lower, upper=0.5).violation(y))


def test_an_equality_is_two_equal_bounds():
    A, b, y = draw(2, 4), draw(2, seed=2), draw(5, 4, seed=3)
    assert torch.equal(hn.Equality(A, b).violation(y), hn.Affine(A, lower=b, upper=b).violation(y))


def test_numbers_may_be_functions_of_x():
    constraint = hn.Affine(lambda x: x.unsqueeze(-2), upper=lambda x: x[..., :1])
    x, y = draw(6, 3), draw(6, 3, seed=1)
    expected = ((x * y).sum(-1, keepdim=True) - x[..., :1]).clamp_min(0)
    assert torch.allclose(constraint.violation(y, x), expected, rtol=0, atol=1e-12)


def test_numbers_may_be_learned():
    bound = torch.nn.Linear(3, 2).double()
    constraint = hn.Affine(draw(2, 4), upper=bound)
    x, y = draw(6, 3), 5 * draw(6, 4, seed=1)
    constraint.violation(y, x).sum().backward()
    assert bound.weight.grad is not None
    assert bound.weight.grad.abs().sum() > 0
    assert not constraint.constant
    assert set(dict(constraint.named_parameters())) == {"upper.weight", "upper.bias"}


def test_rows_of_an_intersection_are_stacked():
    A = draw(2, 3)
    both = hn.Affine(A, upper=1.0) & hn.Box(-1.0) & hn.Equality(lambda x: x.unsqueeze(-2), 0.0)
    x, y = draw(4, 3, seed=1), draw(4, 3, seed=2)
    rows = both.affine(x, y)
    assert rows.A.shape == (4, 6, 3)
    assert torch.equal(rows.lower, torch.tensor([-torch.inf] * 2 + [-1.0] * 3 + [0.0], dtype=D))
    assert torch.equal(rows.upper, torch.tensor([1.0] * 2 + [torch.inf] * 3 + [0.0], dtype=D))
    assert both.violation(y, x).shape == (4, 6)


def test_intersections_flatten():
    box = hn.Box(0.0, 1.0)
    assert len(((box & hn.Box(0.0)) & (box & hn.Box(None, 2.0))).parts) == 4


@pytest.mark.parametrize(
    ("constraint", "constant"),
    [
        (hn.Affine(draw(2, 3), lower=0.0), True),
        (hn.Affine(draw(2, 3), lower=lambda x: x), False),
        (hn.Affine(draw(2, 3).requires_grad_(), lower=0.0), False),
        (hn.Affine(torch.nn.Parameter(draw(2, 3)), lower=0.0), False),
        (hn.Box(0.0) & hn.Equality(draw(1, 3), 1.0), True),
        (hn.Box(0.0) & hn.Equality(draw(1, 3), lambda x: x), False),
    ],
)
def test_constant_means_nothing_moves(constraint, constant):
    assert constraint.constant is constant


def test_a_fixed_matrix_survives_moving_bounds():
    A = draw(2, 3)
    constraint = hn.Affine(A, upper=lambda x: x) & hn.Box(0.0)
    like = constraint.origin()
    assert torch.equal(constraint.fixed_matrix(like), torch.cat([A, torch.eye(3, dtype=D)]))
    assert hn.Affine(lambda x: x, lower=0.0).fixed_matrix(like) is None
    assert hn.Affine(A.requires_grad_(), lower=0.0).fixed_matrix(like) is None


def test_constants_follow_moves():
    constraint = hn.Affine(draw(2, 3), lower=0.0).to(torch.float32)
    assert constraint.A.dtype == torch.float32
    assert torch.equal(constraint.A, draw(2, 3).float())
    assert constraint.violation(torch.zeros(1, 3)).dtype == torch.float32


def test_python_numbers_follow_the_output():
    for dtype in (torch.float32, D):
        violation = hn.Box(0.0, 1.0).violation(torch.tensor([[2.0, 0.5]], dtype=dtype))
        assert violation.dtype == dtype
        assert violation.amax() == 1.0


def test_box_projection_is_the_clamp():
    box, raw = hn.Box(-0.5, lambda x: x), 3 * draw(8, 4)
    x = draw(8, 4, seed=1).abs()
    y = hn.layers.HardNetCvx(box)(raw, x)
    assert torch.equal(y, raw.clamp_min(-0.5).minimum(x))


@pytest.mark.parametrize("kind", [hn.Box, hn.Simplex, hn.Ball])
def test_the_old_spellings_give_what_the_layer_gives(kind):
    given = {hn.Box: (-0.5, 0.5), hn.Simplex: (4,), hn.Ball: (torch.zeros(4, dtype=D), 0.5)}[kind]
    constraint, raw = kind(*given), 3 * draw(8, 4)
    layer = hn.layers.HardNetCvx(constraint)
    with pytest.warns(DeprecationWarning, match="constraint.project is deprecated"):
        assert torch.equal(constraint.project(constraint.numbers(None, raw), raw), layer(raw))
    with pytest.warns(DeprecationWarning, match="constraint.solve is deprecated"):
        assert torch.equal(constraint.solve(raw).y, layer.solve(raw).y)


REFUSALS = [
    (lambda: hn.Affine(draw(2, 3)), hn.errors.ShapeError, "expected at least one bound"),
    (lambda: hn.Box(), hn.errors.ShapeError, "expected at least one bound"),
    (lambda: hn.Affine(draw(3), lower=0.0), hn.errors.ShapeError, r"A: expected shape \(m, n\)"),
    (
        lambda: hn.Affine(torch.eye(2, dtype=torch.int64), lower=0.0),
        hn.errors.DTypeError,
        "A: expected a floating-point",
    ),
    (lambda: hn.Box(torch.zeros(2), 1.0) & hn.Box(torch.zeros(3)), hn.errors.ShapeError, "one output dimension"),
    (lambda: hn.Affine(draw(2, 3), lower=lambda x: x).violation(draw(4, 3)), hn.errors.ShapeError, "'lower' of Affine"),
    (
        lambda: hn.Affine(draw(2, 3), lower=lambda x: 1.0).violation(draw(4, 3), draw(4, 3)),
        hn.errors.DTypeError,
        "returns a",
    ),
    (
        lambda: hn.Affine(draw(2, 3), lower=0.0).violation(draw(4, 2)),
        hn.errors.ShapeError,
        r"A: expected shape \(m, 2\)",
    ),
    (
        lambda: hn.Affine(draw(2, 3), lower=draw(3)).violation(draw(4, 3)),
        hn.errors.ShapeError,
        r"lower: expected shape \(2,",
    ),
    (lambda: hn.Affine(draw(2, 3), lower=0.0).violation(draw(4, 3).float()), hn.errors.DTypeError, "the dtype of raw"),
    (lambda: hn.Affine(draw(5, 2, 3), lower=0.0).violation(draw(4, 3)), hn.errors.ShapeError, "batch dimensions"),
]


@pytest.mark.parametrize(("build", "error", "message"), REFUSALS)
def test_refusals(build, error, message):
    with pytest.raises(error, match=message):
        build()
