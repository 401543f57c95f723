"""Closed forms: the simplex, the ball and the box."""

import pytest
import torch

import hardnet as hn
from hardnet.errors import BoundsError, DTypeError, NonFiniteError, ShapeError
from hardnet.functional import project_ball, project_box, project_simplex
from hardnet.kernels.cpu import launch
from tests.draws import draw

pytestmark = pytest.mark.core

D = torch.float64


def test_simplex_known_answer_and_jacobian():
    raw = torch.tensor([0.5, 1.2, -0.3], dtype=D)
    torch.testing.assert_close(project_simplex(raw), torch.tensor([0.15, 0.85, 0], dtype=D))
    support = torch.tensor([1.0, 1, 0], dtype=D)
    expected = torch.diag(support) - torch.outer(support, support) / 2
    torch.testing.assert_close(torch.autograd.functional.jacobian(project_simplex, raw), expected)


def test_simplex_gradcheck_to_raw_and_total():
    raw, total = draw(5, 6).requires_grad_(), torch.linspace(0.5, 3, 5, dtype=D).requires_grad_()
    assert torch.autograd.gradcheck(project_simplex, (raw, total))


def test_simplex_inside_is_kept_bit_for_bit_with_the_right_gradient():
    raw = torch.softmax(draw(7, 5), -1).requires_grad_()
    y = project_simplex(raw)
    assert torch.equal(y, raw)
    (grad,) = torch.autograd.grad(y[:, 0].sum(), raw)  # the equality still removes the mean
    torch.testing.assert_close(grad.sum(-1), torch.zeros(7, dtype=D))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_simplex_is_feasible_to_rounding_at_any_size(dtype):
    raw = (100 * draw(20, 1000)).to(dtype)
    y = project_simplex(raw, 3.0)
    assert y.dtype == dtype
    assert bool((y >= 0).all())
    assert bool(((y.double().sum(-1) - 3).abs() <= 1000 * torch.finfo(dtype).eps).all())


@pytest.mark.parametrize("mode", ["eager", "mapped"])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6, 1e9])
def test_simplex_of_a_common_offset_passes_the_certificate(offset, mode):
    raw = draw(300, 8) + offset
    y = project_simplex(raw) if mode == "eager" else torch.vmap(project_simplex)(raw)
    assert bool((y >= 0).all())
    assert hn.check(hn.Simplex(8), y).ok
    torch.testing.assert_close(y, project_simplex(raw - offset), rtol=0, atol=16 * torch.finfo(D).eps * (1 + offset))


@pytest.mark.parametrize("mode", ["eager", "functional"])
@pytest.mark.parametrize("n", [2, 3, 49, 200])
def test_simplex_gradient_of_the_sum_is_zero_at_ties(n, mode):
    for raw in (torch.eye(n, dtype=D)[:2], torch.zeros(2, n, dtype=D), 3 * torch.eye(n, dtype=D)[:2]):
        of_sum = lambda raw: project_simplex(raw).sum()
        grad = torch.func.grad(of_sum)(raw) if mode == "functional" else None
        if grad is None:
            tracked = raw.clone().requires_grad_()
            (grad,) = torch.autograd.grad(of_sum(tracked), tracked)
        assert torch.equal(grad, torch.zeros_like(grad))


@pytest.mark.skipif(not launch.HAS_NUMBA, reason="numba compiles the code that may leave a sample open")
def test_simplex_that_compiled_code_leaves_open_is_sorted(monkeypatch):
    raw, weight = draw(4, 6), draw(4, 6, seed=1)
    compiled = launch.BoxRows.forward

    def leave_one_open(self, flat, rounding):
        found = compiled(self, flat, rounding)
        found[0][1], found[4][1] = torch.nan, 2
        return found

    def y_and_gradient():
        leaf = raw.clone().requires_grad_()
        y = project_simplex(leaf)
        return y.detach(), torch.autograd.grad((y * weight).sum(), leaf)[0]

    expected = y_and_gradient()
    monkeypatch.setattr(launch.BoxRows, "forward", leave_one_open)
    for found, known in zip(y_and_gradient(), expected, strict=True):
        torch.testing.assert_close(found, known, rtol=0, atol=16 * torch.finfo(D).eps * raw.abs().max().item())


def test_simplex_of_total_zero_is_the_origin():
    assert torch.equal(project_simplex(draw(3, 4), 0.0), torch.zeros(3, 4, dtype=D))


def test_simplex_errors_name_the_sample():
    raw = draw(3, 4)
    total = torch.tensor([1.0, -1, 1], dtype=D)
    with pytest.raises(BoundsError, match=r"total: .* in sample 1") as caught:
        project_simplex(raw, total)
    assert caught.value.samples == [1]
    y = project_simplex(raw, total, on_invalid="nan")
    assert bool(y[1].isnan().all())
    assert torch.equal(y[[0, 2]], project_simplex(raw)[[0, 2]])
    raw[2, 0] = torch.nan
    with pytest.raises(NonFiniteError, match=r"raw: .* in sample 2"):
        project_simplex(raw)
    with pytest.raises(ShapeError, match="total"):
        project_simplex(draw(3, 4), torch.ones(2, dtype=D))


def test_ball_known_answers():
    raw, center = torch.tensor([[3.0, 4], [0.1, 0], [0, 0]], dtype=D), torch.zeros(2, dtype=D)
    expected = torch.tensor([[0.6, 0.8], [0.1, 0], [0, 0]], dtype=D)
    torch.testing.assert_close(project_ball(raw, center, 1.0), expected)
    assert torch.equal(project_ball(raw, center, 0.0), torch.zeros(3, 2, dtype=D))


def test_ball_gradcheck_to_raw_center_and_radius():
    raw, center = draw(6, 3).requires_grad_(), draw(6, 3, seed=1).requires_grad_()
    radius = torch.linspace(0.2, 4, 6, dtype=D).requires_grad_()
    assert torch.autograd.gradcheck(project_ball, (raw, center, radius))


def test_ball_gradient_at_the_center_is_finite():
    raw = torch.zeros(1, 3, dtype=D, requires_grad=True)
    (grad,) = torch.autograd.grad(project_ball(raw, torch.zeros(3, dtype=D), 0.0).sum(), raw)
    assert bool(grad.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ball_leaves_nothing_outside_in_its_own_dtype(dtype):
    raw, center = (5 * draw(2000, 8)).to(dtype), draw(8, seed=2).to(dtype)
    y = project_ball(raw, center, 1.5)
    excess = torch.linalg.vector_norm((y - center).double(), dim=-1) - 1.5
    assert excess.max().item() <= 4 * torch.finfo(dtype).eps * (1.5 + center.double().norm().item())


def test_ball_compiles_and_maps():
    """A norm and a scaled step, about ten roundings of the size of raw and center, on either route."""
    raw, center = draw(4, 3), draw(3, seed=1)
    eager, rounding = project_ball(raw, center, 0.5), 20 * torch.finfo(D).eps * (raw.abs().max() + center.abs().max())
    compiled = torch.compile(lambda r: project_ball(r, center, 0.5), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(raw), eager, rtol=0, atol=rounding.item())
    mapped = torch.vmap(lambda r: project_ball(r, center, 0.5))(raw)
    torch.testing.assert_close(mapped, eager, rtol=0, atol=rounding.item())


def test_ball_errors_name_the_sample():
    raw, center = draw(3, 2), torch.zeros(2, dtype=D)
    with pytest.raises(BoundsError, match=r"radius: .* in sample 0"):
        project_ball(raw, center, torch.tensor([-1.0, 1, 1], dtype=D))
    with pytest.raises(ShapeError, match="center"):
        project_ball(raw, torch.zeros(3, dtype=D), 1.0)
    with pytest.raises(DTypeError, match="center"):
        project_ball(raw, center.float(), 1.0)
    raw[1, 1] = torch.inf
    with pytest.raises(NonFiniteError, match="in sample 1"):
        project_ball(raw, center, 1.0)
    assert bool(project_ball(raw, center, 1.0, on_invalid="nan")[1].isnan().all())


def test_box_clamps_and_refuses_crossed_bounds():
    raw = torch.tensor([[2.0, -2], [0.5, 0.5]], dtype=D)
    assert torch.equal(project_box(raw, -1.0, 1.0), raw.clamp(-1, 1))
    assert torch.equal(project_box(raw, upper=0.0), raw.clamp_max(0))
    lower = torch.tensor([[0.0, 0], [2, 0]], dtype=D)
    with pytest.raises(BoundsError, match=r"lower <= upper in every row, got lower > upper .* in sample 1"):
        project_box(raw, lower, 1.0)
    y = project_box(raw, lower, 1.0, on_invalid="nan")
    assert bool(y[1].isnan().all())
    assert torch.equal(y[0], torch.tensor([1.0, 0], dtype=D))
    with pytest.raises(NonFiniteError, match="NaN"):
        project_box(raw * torch.nan, 0.0, 1.0)
