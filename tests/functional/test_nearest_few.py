"""The nearest point for few rows: exact answers, guarantees and derivatives of the plain formulas."""

import math
from fractions import Fraction

import pytest
import torch

import hardnet as hn
from hardnet.errors import HardNetError, OptionError
from hardnet.functional import project_affine
from hardnet.kernels.tolerances import FEW_ROWS
from hardnet.nearest import few_rows
from hardnet.solvers import Status
from tests.bounds import assert_within, of_factor
from tests.functional.nearest_cases import nearest_exactly, nearest_few, random_problem, small_integers, tensors

SHAPES = [(1, 1), (1, 3), (2, 1), (2, 2), (2, 5), (3, 2), (3, 3), (4, 2), (4, 3), (4, 6)]
EPS = torch.finfo(torch.float64).eps


def compute_y(*numbers, **options):
    return nearest_few(*numbers, **options).y


def certificate(y, A, lower, upper):
    return hn.check(hn.Affine(lambda x: A, lower=lambda x: lower, upper=lambda x: upper), y, y)


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_brute_force_in_rational_numbers_agrees(m, n):
    cases = list(small_integers(10 * m + n, 60, m, n))
    found = nearest_few(*tensors(cases))
    for sample, case in enumerate(cases):
        expected, dual = nearest_exactly(*case), found.dual[sample].tolist()
        if expected is None:
            assert found.status[sample] == Status.INFEASIBLE
            assert found.y[sample].isnan().all()
            check_contradiction(case, dual)
        else:
            assert found.status[sample] == Status.SOLVED
            expected = torch.tensor([float(value) for value in expected], dtype=torch.float64)
            torch.testing.assert_close(found.y[sample], expected, rtol=0, atol=1e3 * EPS)


def check_contradiction(case, dual):
    """Check the proof of an empty set: ``A' dual = 0`` while dual times the bounds is negative."""
    _, A, lower, upper = case
    for column in zip(*A, strict=True):
        assert abs(sum(entry * value for entry, value in zip(column, dual, strict=True))) < 1e3 * EPS
    sides = (high if value > 0 else low for value, low, high in zip(dual, lower, upper, strict=True))
    assert sum(value * side for value, side in zip(dual, sides, strict=True) if abs(value) > 1e3 * EPS) < 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("m", "n"), [(1, 4), (2, 2), (3, 3), (4, 8)])
def test_the_certificate_holds_from_near_and_far(m, n, dtype):
    for far in (1.0, 1e6):
        raw, A, lower, upper = random_problem(m, 20_000, m, n, far=far, dtype=dtype)
        found = nearest_few(raw, A, lower, upper)
        assert (found.status == Status.SOLVED).all()
        assert certificate(found.y, A, lower, upper).ok
        terms = found.dual.double().unsqueeze(-1) * A.double()
        size = raw.abs().amax(-1) + found.y.abs().amax(-1)
        gap = raw.double() - found.y.double() - terms.sum(1)
        rounding = 4 * torch.finfo(dtype).eps * (size + terms.abs().sum((1, 2)))
        assert (gap.abs().amax(-1) <= FEW_ROWS.stationary * size + rounding).all()


@pytest.mark.parametrize(("dtype", "large"), [(torch.float64, 2.0**490), (torch.float32, 2.0**60)])
def test_units_do_not_matter(dtype, large):
    """Rows and outputs in other units of a power of two change no bit but the exponents."""
    raw, A, lower, upper = random_problem(3, 200, 3, 4, dtype=dtype)
    y = compute_y(raw, A, lower, upper)
    for rows in (large, 1 / large):
        for unit in (large, 1 / large):
            other = nearest_few(raw * unit, A * rows, lower * rows * unit, upper * rows * unit)
            assert torch.equal(other.y, y * unit)
            assert (other.status == Status.SOLVED).all()
    mixed = torch.tensor([large, 1.0, 1 / large], dtype=dtype)
    assert torch.equal(compute_y(raw, A * mixed[:, None], lower * mixed, upper * mixed), y)


@pytest.mark.parametrize("angle", [1e-3, 1e-5, 1e-7, 1e-9, 0.0])
def test_nearly_parallel_rows_are_exact_to_the_condition_of_the_problem(angle):
    """Two rows of a small angle, both ways round: against the answer in rational numbers."""
    for sign in (1.0, -1.0):
        A = torch.tensor([[1.0, 0.0], [sign, angle]], dtype=torch.float64)
        for raw in ([2.0, 0.5], [2.0, 3.0], [-2.0, 1.0], [0.5, -4.0]):
            exact = [[Fraction(v) for v in row.tolist()] for row in A]
            expected = nearest_exactly(
                [Fraction(v) for v in raw], exact, [Fraction(-1), Fraction(-1)], [Fraction(1), Fraction(1)]
            )
            assert expected is not None
            found = nearest_few(
                torch.tensor([raw], dtype=torch.float64), A, torch.full((2,), -1.0).double(), torch.ones(2).double()
            )
            assert found.status == Status.SOLVED
            close = 64 * EPS * (1 + 1 / angle if angle else 1)
            torch.testing.assert_close(
                found.y, torch.tensor([[float(v) for v in expected]], dtype=torch.float64), rtol=close, atol=close
            )


def test_raw_inside_comes_back_bit_for_bit_and_bad_samples_harm_nobody():
    raw, A, lower, upper = random_problem(5, 60, 3, 4)
    inside = compute_y(raw, A, lower, upper)
    at = torch.einsum("bmn,bn->bm", A, inside)
    wide = (torch.minimum(lower, at) - 1e-9, torch.maximum(upper, at) + 1e-9)
    inside[0] = 0.0
    inside[0, 0] = -0.0
    wide[0][0], wide[1][0] = -1.0, 1.0
    assert torch.equal(compute_y(inside, A, *wide).view(torch.int64), inside.view(torch.int64))
    clean = nearest_few(raw, A, lower, upper)
    raw[1, 0], A[2, 0, 0], lower[3], upper[3], lower[4, 1], upper[5, 1] = (
        math.nan,
        math.inf,
        1.0,
        0.0,
        math.inf,
        math.nan,
    )
    dirty = nearest_few(*(leaf.requires_grad_() for leaf in (raw, A, lower, upper)))
    assert (dirty.status[1:6] == Status.INVALID).all()
    assert dirty.y[1:6].isnan().all()
    others = [0, *range(6, 60)]
    assert torch.equal(dirty.y[others], clean.y[others])
    for grad in torch.autograd.grad(dirty.y[others].sum(), [raw, A, lower, upper]):
        assert grad.isfinite().all()
        assert (grad[1:6] == 0).all()


def test_samples_do_not_depend_on_their_batch():
    raw, A, lower, upper = random_problem(6, 70, 4, 5)
    together = compute_y(raw, A, lower, upper)
    for sample in (0, 33, 69):
        one = slice(sample, sample + 1)
        assert torch.equal(compute_y(raw[one], A[one], lower[one], upper[one]), together[one])


@pytest.mark.parametrize(("m", "n"), [(1, 2), (2, 2), (3, 4), (4, 3)])
def test_derivatives_of_every_kind_agree_with_differences(m, n):
    numbers = [part.requires_grad_() for part in bounded_problem(m, n)]
    assert torch.autograd.gradcheck(compute_y, numbers, check_batched_grad=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(compute_y, numbers, fast_mode=m > 2)


def bounded_problem(m, n, samples=3):
    """Finite bounds with a gap, because finite differences in the bounds of an equality would empty the set."""
    source = torch.Generator().manual_seed(7)
    uniform = lambda *shape: torch.rand(*shape, generator=source, dtype=torch.float64)
    raw, A = 6 * uniform(samples, n) - 3, 4 * uniform(samples, m, n) - 2
    return [raw, A, -uniform(samples, m) - 0.1, uniform(samples, m) + 0.1]


def test_the_gradient_is_that_of_the_kkt_system():
    raw, A, lower, upper = (part.requires_grad_() for part in random_problem(8, 40, 3, 5))
    found = nearest_few(raw, A, lower, upper)
    g = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = torch.autograd.grad(found.y, [raw, A, lower, upper], g)
    for b in range(40):
        J = (found.dual[b] != 0) | (lower[b] == upper[b])
        C = A[b][J].detach()
        w = torch.zeros(3).double()
        w[J] = torch.linalg.lstsq(C.mT, g[b].unsqueeze(-1)).solution.squeeze(-1) if J.any() else w[J]
        u = g[b] - A[b].detach().mT @ w
        part = of_factor(A[b])  # what active rows have is no worse
        assert_within(ours[0][b], u, part, most=1e-9)
        matrix = -torch.outer(found.dual[b], u) - torch.outer(w, found.y[b].detach())
        assert_within(ours[1][b], matrix, part, most=1e-9)
        equal = lower[b] == upper[b]
        above = torch.where(equal, 0.5, (found.dual[b] > 0).double())
        assert_within(ours[3][b], w * above, part, most=1e-9)
        assert_within(ours[2][b] + ours[3][b], w, part, most=1e-9)


def test_tangent_lets_through_what_pulls_back_inside():
    """One violated row: the normal part of a gradient passes if a step against it goes inside, and else does not."""
    raw = torch.tensor([[3.0, 1.0]], dtype=torch.float64, requires_grad=True)
    A, one = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for bounds, inward in (((None, one), 1.0), ((5 * one, None), -1.0)):
        y = compute_y(raw, A, *bounds, gradient="tangent")
        for normal in (1.0, -1.0):
            g = torch.tensor([[normal, 2.0]], dtype=torch.float64)
            (grad,) = torch.autograd.grad(y, raw, g, retain_graph=True)
            assert grad.tolist() == [[normal if normal == inward else 0.0, 2.0]]
    (grad,) = torch.autograd.grad(compute_y(raw, A, one, one, gradient="tangent"), raw, torch.ones_like(raw))
    assert grad.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("gradient", ["exact", "tangent"])
def test_transforms_agree_with_backward(gradient):
    numbers = bounded_problem(3, 4)
    loss = lambda raw, A, lower, upper: compute_y(raw, A, lower, upper, gradient=gradient).sin().sum()
    leaves = [part.clone().requires_grad_() for part in numbers]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    one = lambda *parts: loss(*(part.unsqueeze(0) for part in parts))
    mapped = torch.func.vmap(torch.func.grad(one, argnums=(0, 1, 2, 3)))(*numbers)
    for first, second in zip(mapped, expected, strict=True):
        assert_within(first, second, of_factor(numbers[1]), most=1e-9)
    if gradient == "tangent":
        with pytest.raises(HardNetError, match="forward mode"):
            torch.func.jvp(loss, tuple(numbers), tuple(numbers))
    else:
        curvature = torch.func.hessian(lambda raw: loss(raw, *numbers[1:]))(numbers[0])
        other = torch.autograd.functional.hessian(lambda raw: loss(raw, *numbers[1:]), numbers[0])
        assert_within(curvature, other, of_factor(numbers[1], 3), most=1e-9)


def test_a_shared_matrix_and_absent_bounds_agree_with_their_copies():
    raw, A, lower, upper = random_problem(9, 8, 2, 3)
    leaf, copies = A[0].clone().requires_grad_(), A[:1].repeat(8, 1, 1).requires_grad_()
    ours, theirs = (
        compute_y(raw, leaf, None, upper[0]),
        compute_y(raw, copies, torch.full_like(lower, -math.inf), upper[:1].repeat(8, 1)),
    )
    torch.testing.assert_close(ours, theirs)
    (shared,), (apart,) = torch.autograd.grad(ours.sum(), leaf), torch.autograd.grad(theirs.sum(), copies)
    torch.testing.assert_close(shared, apart.sum(0))
    assert torch.equal(compute_y(raw, A), raw)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_an_absent_bound_is_an_infinite_one(m, n, side):
    """The same points, multipliers and contradictions."""
    raw, A, *bounds = tensors(list(small_integers(m + n, 80, m, n)))
    for ours, theirs in zip(one_sided(raw, A, bounds, side, None), one_sided(raw, A, bounds, side), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e3 * EPS, equal_nan=True)


def one_sided(raw, A, bounds, side, *absent):
    """All results of the formulas for one bound, with the other one `absent` or infinite."""
    infinite = torch.full_like(bounds[side], -math.inf if side else math.inf)
    kept = [*absent, infinite][0]
    return few_rows.nearest(raw, A, *((kept, bounds[1]) if side else (bounds[0], kept)))


class Rows(torch.nn.Module):
    """The function as a module."""

    def forward(self, raw, A, lower, upper):
        return nearest_few(raw, A, lower, upper)


def test_one_graph_compiles_for_any_batch():
    compiled = torch.compile(compute_y, fullgraph=True, dynamic=True, backend="aot_eager")
    for samples in (3, 5):
        leaves = [part.requires_grad_() for part in bounded_problem(2, 3, samples)]
        y, expected = compiled(*leaves), compute_y(*leaves)
        torch.testing.assert_close(y, expected)
        for pair in zip(torch.autograd.grad(y.sum(), leaves), torch.autograd.grad(expected.sum(), leaves), strict=True):
            torch.testing.assert_close(*pair)


def test_it_exports_and_onnx_runs_it_without_an_operator_of_its_own(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    axes = {0: torch.export.Dim("batch", min=1, max=4096)}
    program = torch.onnx.export(
        Rows().eval(), tuple(random_problem(1, 3, 2, 2)), dynamo=True, dynamic_shapes=(axes,) * 4
    )
    assert program is not None
    program.save(tmp_path / "rows.onnx")
    session = runtime.InferenceSession(tmp_path / "rows.onnx")
    numbers = random_problem(2, 1000, 2, 2)
    names = [entry.name for entry in session.get_inputs()]
    outputs = session.run(None, {name: part.numpy() for name, part in zip(names, numbers, strict=True)})
    expected = nearest_few(*numbers)
    assert_within(torch.tensor(outputs[0]), expected.y, of_factor(numbers[1], 1), most=1e-9)
    assert torch.equal(torch.tensor(outputs[2]), expected.status)
    assert certificate(torch.tensor(outputs[0]), *numbers[1:]).ok


def test_a_wrong_active_set_is_noticed(monkeypatch):
    raw, A, lower, upper = random_problem(4, 30, 2, 3, equalities=0.0)
    right = few_rows.nearest(raw, A, lower, upper)
    solve = few_rows.multipliers
    monkeypatch.setattr(few_rows, "multipliers", lambda *parts: (0.5 * solve(*parts)[0], solve(*parts)[1]))
    wrong = few_rows.nearest(raw, A, lower, upper)
    moved = (right.dual != 0).any(-1)
    assert moved.any()
    assert (wrong.status[moved] == Status.NOT_CONVERGED).all()


@pytest.mark.parametrize("option", ["gradient", "on_infeasible", "on_invalid"])
def test_an_unknown_option_is_refused_by_name(option):
    with pytest.raises(OptionError, match=option):
        project_affine(torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(2), **{option: "none"})
