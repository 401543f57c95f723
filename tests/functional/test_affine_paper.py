"""The paper's statements on HardNet-Aff (Min & Azizan), one test each."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardnet.functional import enforce_affine
from tests.functional.affine_problems import multiply, problem

pytestmark = [pytest.mark.core, pytest.mark.usefixtures("path")]

F64 = torch.float64


def jacobian_of(raw, A, lower, upper):
    """dy/draw of one sample."""
    return torch.autograd.functional.jacobian(lambda point: enforce_affine(point, A, lower, upper), raw)


def violated_rows(raw, A, lower, upper):
    product = multiply(A, raw)
    return (product < lower) | (product > upper)


@pytest.mark.parametrize(("n", "m"), [(3, 2), (5, 3), (4, 4), (10, 9)])
def test_proposition_1_two_level_argmin(n, m):
    """y is nearest to raw among the minimizers of |A(z - raw)| over the set: both levels by an independent solver."""
    optimize = pytest.importorskip("scipy.optimize")
    for sample in range(5):
        raw, A, lower, upper = (part[0] for part in problem(n, m, samples=1, seed=sample))
        y = enforce_affine(raw, A, lower, upper)
        # inner level in p = A z (A is onto): least squares over the box lower <= p <= upper
        inner = optimize.lsq_linear(
            torch.eye(m).numpy(), multiply(A, raw).numpy(), bounds=(lower.numpy(), upper.numpy()), tol=1e-14
        )
        torch.testing.assert_close(multiply(A, y), torch.from_numpy(inner.x), rtol=1e-6, atol=1e-6)
        # outer level: the nearest z to raw with A z = p, as the saddle point of its Lagrangian
        kkt = torch.zeros(n + m, n + m, dtype=F64)
        kkt[:n, :n], kkt[n:, :n], kkt[:n, n:] = torch.eye(n, dtype=F64), A, A.mT
        saddle = torch.linalg.solve(kkt, torch.cat([raw, multiply(A, y)]))
        torch.testing.assert_close(y, saddle[:n], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_proposition_1_against_a_cone_solver(seed):
    """The two levels as two programs for CVXPY, without any use of the closed form."""
    cvxpy = pytest.importorskip("cvxpy")
    raw, A, lower, upper = (part[0].numpy() for part in problem(4, 3, samples=1, seed=seed))
    z = cvxpy.Variable(4)
    rows = [A @ z >= lower, A @ z <= upper]
    tight = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(A @ (z - raw))), rows).solve(solver="CLARABEL", **tight)
    level = A @ z.value  # all minimizers share A z, by strict convexity in A z
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(z - raw)), [A @ z == level]).solve(solver="CLARABEL", **tight)
    y = enforce_affine(*(torch.from_numpy(part) for part in (raw, A, lower, upper)))
    torch.testing.assert_close(y, torch.from_numpy(z.value), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 1), (4, 4), (10, 5), (20, 12), (12, 12)])
def test_proposition_2_parallel_projection(n, m):
    """a_i'y is the bound where raw violates the row, and a_i'raw where it does not."""
    raw, A, lower, upper = problem(n, m, samples=200)
    before, after = multiply(A, raw), multiply(A, enforce_affine(raw, A, lower, upper))
    expected = torch.where(before < lower, lower, torch.where(before > upper, upper, before))
    scale = (A.norm(dim=-1) * raw.norm(dim=-1, keepdim=True)).amax()
    assert (after - expected).abs().max() <= 1e-12 * scale


def test_proposition_2_exactly_on_exact_numbers():
    """Small integers and orthogonal rows leave no rounding: the cases of the proposition hold with equality."""
    A = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 1.0]], dtype=F64)
    raw = torch.tensor([[5.0, 1.0, 2.0], [-5.0, 4.0, 4.0], [0.0, 1.0, 0.0]], dtype=F64)
    lower, upper = torch.tensor([-4.0, 0.0], dtype=F64), torch.tensor([4.0, 2.0], dtype=F64)
    y = enforce_affine(raw, A.expand(3, 2, 3), lower, upper)
    assert torch.equal(multiply(A, y), multiply(A, raw).clamp(lower, upper))
    assert torch.equal(y[2], raw[2])


def test_single_constraint_formula_and_example():
    """y = f - a relu(a'f - b) / |a|², which is the Euclidean projection; a = (-1, 1), b = 0 sends (3, 5) to (4, 4)."""
    raw, A, _, upper = problem(5, 1, samples=100)
    a, b = A[:, 0], upper[:, 0]
    excess = ((a * raw).sum(-1) - b).relu()
    formula = raw - a * (excess / a.square().sum(-1)).unsqueeze(-1)
    y = enforce_affine(raw, A, None, upper)
    torch.testing.assert_close(y, formula, rtol=1e-13, atol=1e-13)
    inside = y - 0.3 * a.abs() * torch.sign(a)  # any feasible point makes an obtuse angle with raw - y
    assert (((raw - y) * (inside - y)).sum(-1) <= 1e-12).all()
    example = enforce_affine(torch.tensor([3.0, 5.0]), torch.tensor([[-1.0, 1.0]]), None, 0.0)
    assert torch.equal(example, torch.tensor([4.0, 4.0]))


@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 4), (6, 3), (20, 10)])
def test_lipschitz_bound_of_the_approximation_theorem(n, m):
    """|y_t - P(f)| <= (1 + 2 |A⁺||A|) |y_t - f| for every feasible y_t."""
    raw, A, lower, upper = problem(n, m, samples=500)
    target = enforce_affine(raw + torch.randn_like(raw), A, lower, upper)
    values = torch.linalg.svdvals(A)
    constant = 1 + 2 * values[:, 0] / values[:, -1]
    moved = (target - enforce_affine(raw, A, lower, upper)).norm(dim=-1)
    assert (moved <= constant * (target - raw).norm(dim=-1) * (1 + 1e-9)).all()


@pytest.mark.parametrize(("n", "m"), [(2, 2), (5, 3), (12, 9)])
def test_jacobian_of_appendix_c(n, m):
    """J = I - A⁺ V A; J² = J; rank J = n - #violated; a_i'J = 0 on violated rows and a_i' on the others."""
    raw, A, lower, upper = problem(n, m, samples=10)
    for numbers in zip(raw, A, lower, upper, strict=True):
        J, violated = jacobian_of(*numbers), violated_rows(*numbers)
        row = numbers[1]
        expected = torch.eye(n, dtype=F64) - torch.linalg.pinv(row) @ (violated[:, None] * row)
        torch.testing.assert_close(J, expected, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(J @ J, J, rtol=1e-7, atol=1e-7)
        assert torch.linalg.matrix_rank(J, atol=1e-6) == n - violated.sum()
        torch.testing.assert_close(row @ J, ~violated[:, None] * row, rtol=1e-8, atol=1e-8)


def test_gradient_vanishes_where_all_of_n_rows_are_violated():
    """Appendix C, first case: m = n and every row violated gives J = 0; with m < n it never does."""
    _, A, _, _ = problem(3, 3, samples=1)
    raw = torch.linalg.solve(A[0], torch.ones(3, dtype=F64))  # A raw = 1, above the bound 0 in every row
    assert jacobian_of(raw, A[0], torch.full((3,), -1.0, dtype=F64), torch.zeros(3, dtype=F64)).abs().max() < 1e-12
    J = jacobian_of(raw, A[0, :2], torch.full((2,), -1.0, dtype=F64), torch.zeros(2, dtype=F64))
    assert torch.linalg.matrix_rank(J, atol=1e-9) == 1


def test_gradient_vanishes_in_the_span_of_violated_rows():
    """Appendix C, second case: a loss gradient in the span of the violated rows is lost, and only there."""
    raw, A, lower, upper = problem(6, 3, samples=50)
    raw.requires_grad_()
    violated = violated_rows(raw, A, lower, upper)
    lost = ((violated * torch.randn(50, 3, dtype=F64)).unsqueeze(-2) @ A).squeeze(-2)
    (grad,) = torch.autograd.grad(enforce_affine(raw, A, lower, upper), raw, lost)
    assert grad.abs().max() < 1e-12 * lost.abs().max()
    (grad,) = torch.autograd.grad(enforce_affine(raw, A, lower, upper), raw, torch.ones_like(raw))
    assert (grad.norm(dim=-1) > 1e-6).all()


def test_jacobian_of_the_known_answer():
    """A = [[1, 0], [1, 1]], upper = (1, 1), raw = (2, -2): the second row is kept and J = [[0, 0], [1, 1]]."""
    A, upper = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=F64), torch.ones(2, dtype=F64)
    J = jacobian_of(torch.tensor([2.0, -2.0], dtype=F64), A, upper - 100, upper)
    torch.testing.assert_close(J, torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64))


numbers = st.integers(-8, 8).map(float)


@st.composite
def sets(draw):
    """A full-rank A of small integers with equal, two-sided or one-sided bounds, and any raw."""
    n = draw(st.integers(1, 4))
    m = draw(st.integers(1, n))
    matrix = lambda rows, columns: torch.tensor(
        draw(st.lists(st.lists(numbers, min_size=columns, max_size=columns), min_size=rows, max_size=rows)), dtype=F64
    )
    A = torch.eye(m, n, dtype=F64) * 20 + matrix(m, n) / 2  # dominant diagonal: never dependent
    lower = matrix(1, m)[0]
    width = torch.tensor(draw(st.lists(st.sampled_from([0.0, 1.0, torch.inf]), min_size=m, max_size=m)), dtype=F64)
    return 10 * matrix(1, n)[0], A, lower, lower + width


@settings(max_examples=150, deadline=None)
@given(sets())
def test_any_set_any_output(problem_of_one):
    raw, A, lower, upper = problem_of_one
    y = enforce_affine(raw, A, lower, upper)
    product = multiply(A, raw)
    torch.testing.assert_close(multiply(A, y), product.clamp(lower, upper), rtol=1e-11, atol=1e-11)
    if bool(((product >= lower) & (product <= upper)).all()):
        assert torch.equal(y, raw)
    torch.testing.assert_close(enforce_affine(y, A, lower, upper), y, rtol=1e-11, atol=1e-11)
    beyond = y - raw  # the move lies in the row space
    torch.testing.assert_close(torch.linalg.pinv(A) @ multiply(A, beyond), beyond, rtol=1e-9, atol=1e-9)
