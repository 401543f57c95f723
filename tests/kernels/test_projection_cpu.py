"""General projections by compiled code on a CPU: they agree with the general path, or are left open."""

import pytest
import torch

from hardnet.kernels.cpu.launch import AnyRows
from hardnet.rows import Batch, step_limit
from hardnet.solvers import Status, project_affine
from hardnet.solvers.polyhedron import projection
from hardnet.solvers.polyhedron.problem import GENERAL
from tests.bounds import of_factor
from tests.draws import draw
from tests.solvers.families import FAMILIES, gaussian, product

pytest.importorskip("numba")

TOLERANCES = GENERAL._replace(allowed=torch.inf)
CLEAN = [(10, 5, 0), (10, 20, 0), (10, 20, 2), (7, 7, 7), (50, 50, 10), (100, 100, 50), (25, 100, 0), (1, 4, 0)]
"""Numbers of outputs, rows and equalities of families without ties."""


def answer(raw, A, lower, upper, limit=None, tolerances=TOLERANCES):
    """y, dual, side, steps, residual and which samples are open."""
    rows = Batch(raw, A, lower, upper)
    return AnyRows().forward(rows, step_limit(A) if limit is None else limit, tolerances)[:6]


def held(A, lower, upper, side):
    """The equalities and active rows of each sample, ``(k, n)`` each."""
    holds = (side != 0) | (lower == upper)
    return [rows[own] for rows, own in zip(A.expand(len(side), *A.shape[-2:]), holds, strict=True)]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("n", "m", "equalities"), CLEAN)
def test_agrees_with_the_steps(n, m, equalities, shared):
    """Both solve with the Gram matrix of the active rows, and the multipliers follow from y by one more solve."""
    raw, A, lower, upper = gaussian(24, n, m, equalities, shared, seed=3)
    expected = projection.solve_in_steps(Batch(raw, A, lower, upper), "torch")
    y, dual, side, steps, residual, unsolved = answer(raw, A, lower, upper)
    assert not unsolved.any()
    assert (residual <= GENERAL.solved).all()
    assert side.equal(expected.side)
    assert (steps > 0).equal(expected.iterations > 0)
    for sample, rows in enumerate(held(A, lower, upper, side)):
        if len(rows):
            size = max(raw[sample].abs().max(), y[sample].abs().max())
            assert (y - expected.y)[sample].abs().max() <= of_factor(rows) * size
            enlarged = size / torch.linalg.matrix_norm(rows, -2)
            assert (dual - expected.dual)[sample].abs().max() <= of_factor(rows) * enlarged


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "one row of one"])
def test_with_its_open_samples_settled_it_is_what_the_steps_are(name):
    rows = Batch(*FAMILIES[name](), look=True, memory=True)
    again = projection._again(rows)
    expected = projection.solve_in_steps(rows, "torch", None, again, 2.0**-52)
    found = projection._by_kernel(AnyRows(), rows, again, 2.0**-52)
    assert found.status.equal(expected.status)
    assert (found.y - expected.y).abs().max() <= 1e-9 * expected.y.abs().max()


def test_what_is_not_clean_is_left_open():
    """An empty set, repeated equalities, a row that touches y without a multiplier, and too few steps."""
    raw, A, lower, upper = gaussian(5, 4, 6, equalities=1)
    A[0, 2], lower[0, 2], upper[0, 2] = A[0, 1], upper[0, 1] + 1, upper[0, 1] + 2
    A[1, 1], lower[1, 1], upper[1, 1] = 2 * A[1, 0], 2 * lower[1, 0], 2 * upper[1, 0]
    y = project_affine(raw, A, lower, upper, backend="torch").y
    A[2, 5] = draw(4, seed=9)
    lower[2, 5], upper[2, 5] = -torch.inf, (A[2, 5] * y[2]).sum()  # through the vertex of the other rows
    lower[3], upper[3] = -1e3, 1e3
    raw[3] = 0.0
    *found, unsolved = answer(raw, A, lower, upper)
    assert unsolved.tolist() == [True, True, True, False, False]
    assert found[0][3].equal(raw[3])
    assert found[3][3] == 0
    assert answer(raw, A, lower, upper, limit=1)[-1].tolist() == [True, True, True, False, True]


@pytest.mark.parametrize(("name", "value"), [("feasible", 1e3), ("solved", -1.0), ("strict", 1e3), ("certain", -1.0)])
def test_no_tolerance_is_forgotten(name, value):
    """A tolerance that nothing can meet leaves every sample open; a large feasibility tolerance returns raw."""
    arguments = gaussian(16, 6, 9, seed=1)
    y, *_, unsolved = answer(*arguments, tolerances=TOLERANCES._replace(**{name: value}))
    if name == "feasible":
        assert y.equal(arguments[0])
    else:
        assert unsolved.all()


@pytest.mark.parametrize(("n", "m", "equalities"), CLEAN)
def test_no_row_is_violated_beyond_rounding(n, m, equalities):
    raw, A, lower, upper = gaussian(40, n, m, equalities, seed=7)
    y, *_, unsolved = answer(raw, A, lower, upper)
    at_y = product(A, y)
    terms = product(A.abs(), y.abs())
    excess = torch.maximum(at_y - upper, lower - at_y)
    rounding = (n + 6) * torch.finfo(y.dtype).eps  # of the sum in the kernel and of the sum here
    assert (excess <= rounding * terms).all()
    assert not unsolved.any()


@pytest.mark.parametrize(("n", "m", "equalities"), CLEAN)
def test_a_sample_has_the_same_bits_in_any_batch(n, m, equalities):
    raw, A, lower, upper = gaussian(13, n, m, equalities, seed=5)
    whole = answer(raw, A, lower, upper)
    for part in (slice(0, 1), slice(3, 5), slice(6, 13)):
        alone = answer(*(x[part].clone() for x in (raw, A, lower, upper)))
        assert all(mine.equal(ours[part]) for mine, ours in zip(alone, whole, strict=True))


@pytest.mark.parametrize("exponent", [-200, -3, 5, 180])
@pytest.mark.parametrize(("n", "m"), [(10, 5), (6, 20)])
def test_powers_of_two_as_units_change_no_bit(n, m, exponent):
    raw, A, lower, upper = gaussian(8, n, m, equalities=1, seed=2)
    expected = project_affine(raw, A, lower, upper)
    sample, row = 2.0**exponent, torch.ldexp(torch.ones(m, dtype=A.dtype), torch.arange(m) * 3 - exponent)
    found = project_affine(sample * raw, row[:, None] * A, sample * row * lower, sample * row * upper)
    assert found.y.equal(sample * expected.y)
    assert found.dual.equal(sample * expected.dual / row)


def test_compiled_code_serves_a_cpu_where_gram_matrices_are_small():
    zeros = lambda *shape: torch.zeros(*shape, dtype=torch.float64)
    takes = lambda A, look=True: AnyRows().takes(Batch(zeros(7, A.shape[-1]), A, None, None, look=look))
    assert takes(zeros(7, 20, 5))
    assert takes(zeros(20, 5))
    assert not takes(zeros(20, 5), look=False)
    assert not takes(zeros(7, 21, 5))
    assert not takes(zeros(0, 5, 5))
    solved = project_affine(*gaussian(3, 5, 20))
    assert (solved.status == Status.SOLVED).all()
