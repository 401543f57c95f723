"""The projection as a function: its geometry, invariances, errors, dtypes and transforms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardnet.errors import BoundsError, DTypeError, InfeasibleError, NonFiniteError, ShapeError
from hardnet.functional import project_affine
from tests.draws import draw
from tests.solvers.families import F64, FAMILIES, gaussian, integers, product

PROPERTIES = ["many rows", "few rows", "half open", "duplicated rows", "cone apex", "integers", "only equalities"]


@pytest.mark.parametrize("family", PROPERTIES)
def test_it_is_firmly_non_expansive(family):
    raw, A, lower, upper = FAMILIES[family]()
    other = raw + draw(*raw.shape, seed=99)
    y, z = project_affine(raw, A, lower, upper), project_affine(other, A, lower, upper)
    inner = ((y - z) * (raw - other)).sum(-1)
    assert (inner >= (y - z).square().sum(-1) - 1e-11).all()


@pytest.mark.parametrize("family", PROPERTIES)
def test_no_feasible_point_lies_behind_the_answer(family):
    """``(raw - y) . (z - y) <= 0`` for feasible z."""
    raw, A, lower, upper = FAMILIES[family]()
    y = project_affine(raw, A, lower, upper)
    for seed in range(3):
        z = project_affine(raw + 4 * draw(*raw.shape, seed=seed), A, lower, upper)
        assert (((raw - y) * (z - y)).sum(-1) <= 1e-10).all()


@pytest.mark.parametrize("family", PROPERTIES)
def test_it_is_idempotent_to_the_bit(family):
    raw, A, lower, upper = FAMILIES[family]()
    y = project_affine(raw, A, lower, upper)
    assert torch.equal(project_affine(y, A, lower, upper), y)


def test_it_turns_with_the_space():
    raw, A, lower, upper = gaussian(32, 8, 12)
    R = torch.linalg.qr(draw(8, 8, seed=5)).Q
    turned = project_affine(product(R, raw), A @ R.mT, lower, upper)
    assert torch.allclose(turned, product(R, project_affine(raw, A, lower, upper)), rtol=0, atol=1e-12)


def test_order_duplication_and_scaling_of_rows_do_not_matter():
    raw, A, lower, upper = gaussian(32, 8, 12)
    y = project_affine(raw, A, lower, upper)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    twice = torch.cat([order, order[:5]])
    factor = torch.cat([draw(12, seed=3).exp(), -draw(5, seed=4).exp()])
    low, high = factor * lower[:, twice], factor * upper[:, twice]
    again = project_affine(raw, factor.unsqueeze(-1) * A[:, twice], torch.minimum(low, high), torch.maximum(low, high))
    assert torch.allclose(again, y, rtol=0, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 9),
    n=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    step=st.sampled_from([1.0, 0.5, 1 / 3]),
)
def test_degenerate_polyhedra_are_projected_exactly(m, n, seed, step):
    """Rows and bounds from a coarse grid around a feasible point: ties, zero rows, parallel rows, single points."""
    g = torch.Generator().manual_seed(seed)
    A = step * torch.randint(-2, 3, (4, m, n), generator=g).to(F64)
    center = step * torch.randint(-3, 4, (4, n), generator=g).to(F64)
    middle = product(A, center)
    below, above = torch.randint(0, 3, (2, 4, m), generator=g).to(F64)
    lower, upper = (
        torch.where(below == 2, -torch.inf, middle - below),
        torch.where(above == 2, torch.inf, middle + above),
    )
    raw = step * torch.randint(-9, 10, (4, n), generator=g).to(F64)
    y = project_affine(raw, A, lower, upper)
    value = product(A, y)
    assert ((value <= upper + 1e-12) & (value >= lower - 1e-12)).all()
    toward = ((raw - y) * (center - y)).sum(-1)
    assert (toward <= 1e-11).all()
    nudged = project_affine(raw + 1e-3 * torch.randn(4, n, generator=g, dtype=F64), A, lower, upper)
    assert (((raw - y) * (nudged - y)).sum(-1) <= 1e-11).all()


def test_empty_sets_raise_with_the_rows_that_contradict_each_other():
    raw, A, lower, upper = gaussian(4, 5, 8)
    A[2, 6], lower[2, 6], upper[2, 6] = -A[2, 1], -lower[2, 1] + 1, -lower[2, 1] + 2
    with pytest.raises(
        InfeasibleError, match=r"rows 1, 6 contradict each other in sample 2.*on_infeasible='nearest'"
    ) as e:
        project_affine(raw, A, lower, upper)
    assert e.value.samples == [2]
    assert e.value.rows == [[1, 6]]
    good = [0, 1, 3]
    exact = project_affine(raw[good], A[good], lower[good], upper[good])
    y = project_affine(raw, A, lower, upper, on_infeasible="nan")
    assert y[2].isnan().all()
    assert torch.equal(y[good], exact)
    y = project_affine(raw, A, lower, upper, on_infeasible="nearest")
    assert torch.equal(y[good], exact)
    assert y[2].isfinite().all()


def test_the_compromise_is_the_nearest_point_of_least_squared_distance():
    A = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=F64)
    lower = torch.tensor([-torch.inf, 1.0, -1.0], dtype=F64)
    upper = torch.tensor([0.0, torch.inf, 1.0], dtype=F64)
    raw = torch.tensor([[0.3, 5.0], [7.0, 0.25]], dtype=F64)
    y = project_affine(raw, A, lower, upper, on_infeasible="nearest")
    assert torch.allclose(y, torch.tensor([[0.5, 1.0], [0.5, 0.25]], dtype=F64), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda raw, A, lower, upper: raw[1].fill_(torch.nan), NonFiniteError, "raw: expected finite.*sample 1"),
        (lambda raw, A, lower, upper: A[1].fill_(torch.inf), NonFiniteError, "A: expected finite.*sample 1"),
        (lambda raw, A, lower, upper: lower[1].fill_(torch.inf), BoundsError, r"lower: .* \+inf.*sample 1"),
        (lambda raw, A, lower, upper: upper[1].fill_(torch.nan), BoundsError, "upper: .* NaN.*sample 1"),
        (lambda raw, A, lower, upper: upper[1].fill_(-1e9), BoundsError, "lower <= upper in every row.*sample 1"),
    ],
)
def test_invalid_numbers_raise_or_give_nan_for_their_sample_alone(change, error, text):
    arguments = gaussian(3, 4, 6)
    clean = project_affine(*arguments)
    change(*arguments)
    with pytest.raises(error, match=text) as caught:
        project_affine(*arguments)
    assert caught.value.samples == [1]
    y = project_affine(*arguments, on_invalid="nan")
    assert y[1].isnan().all()
    assert torch.equal(y[[0, 2]], clean[[0, 2]])


def test_wrong_shapes_and_dtypes_are_refused():
    raw, A, lower, upper = gaussian(3, 4, 6)
    with pytest.raises(ShapeError, match="A: expected shape"):
        project_affine(raw, A[..., :3], lower, upper)
    with pytest.raises(ShapeError, match="lower: expected shape"):
        project_affine(raw, A, lower[:, :5], upper)
    with pytest.raises(DTypeError, match="A: expected the dtype of raw"):
        project_affine(raw, A.float(), lower, upper)
    with pytest.raises(DTypeError, match="upper: expected a tensor, got list"):
        project_affine(raw, A, lower, [1.0])
    with pytest.raises(
        ValueError, match="on_infeasible: expected 'auto' or 'raise' or 'nearest' or 'nan', got 'closest'"
    ):
        project_affine(raw, A, lower, upper, on_infeasible="closest")
    with pytest.raises(ValueError, match="on_invalid: expected 'raise' or 'nan', got 'nearest'"):
        project_affine(raw, A, lower, upper, on_invalid="nearest")


def test_no_rows_leave_raw_as_it_is():
    raw, A, lower, upper = gaussian(3, 4, 6)
    assert torch.equal(project_affine(raw, A[:, :0], lower[:, :0], upper[:, :0]), raw)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_dtypes_are_right_to_their_own_rounding(dtype):
    raw, A, lower, upper = (part.to(dtype) for part in gaussian(32, 6, 10))
    y = project_affine(raw, A, lower, upper)
    exact = project_affine(raw.double(), A.double(), lower.double(), upper.double())
    assert y.dtype == dtype
    assert torch.equal(y, exact.to(dtype))
    inside = project_affine(raw, A)
    assert torch.equal(inside, raw)


def test_constants_and_numbers_broadcast():
    raw = 3 * draw(2, 5, 3)
    A = torch.cat([torch.eye(3, dtype=F64)] * 2)
    y = project_affine(raw, A, -1.0, torch.ones(6, dtype=F64))
    assert torch.allclose(y, raw.clamp(-1, 1), rtol=0, atol=1e-15)
    assert project_affine(raw[0, 0], A, upper=0.0).shape == (3,)


def rounding_of_routes(y, raw, A, lower, upper):
    """How far two methods may differ: both meet the same rows to 16 eps of their terms, over their singular value."""
    value, worst = (A @ y.unsqueeze(-1)).squeeze(-1), 0.0
    held = ((value - lower).abs() < 1e-9) | ((value - upper).abs() < 1e-9)
    for rows, point, start, active in zip(A, y, raw, held, strict=True):
        if active.any():
            terms = rows[active].abs().sum(-1).max() * (point.abs().max() + start.abs().max())
            worst = max(worst, (terms / torch.linalg.svdvals(rows[active]).min()).item())
    return 2 * 16 * torch.finfo(y.dtype).eps * worst


def test_vmap_and_compile_give_the_same_answer():
    raw, A, lower, upper = gaussian(6, 4, 7)
    whole = project_affine(raw, A, lower, upper)
    near = {"rtol": 0, "atol": rounding_of_routes(whole, raw, A, lower, upper)}
    assert near["atol"] < 1e-11
    torch.testing.assert_close(torch.func.vmap(project_affine)(raw, A, lower, upper), whole, **near)
    compiled = torch.compile(lambda *args: project_affine(*args, on_infeasible="raise") * 2, backend="eager")
    torch.testing.assert_close(compiled(raw, A, lower, upper) / 2, whole, **near)
    shared = torch.func.vmap(project_affine, in_dims=(0, None, None, None))(raw, A[0], lower[0], upper[0])
    whole = project_affine(raw, A[0], lower[0], upper[0])
    near["atol"] = rounding_of_routes(whole, raw, A[0].expand_as(A), lower[0], upper[0])
    torch.testing.assert_close(shared, whole, **near)


def test_integers_stay_exact():
    """A vertex with integer coordinates comes out as integers."""
    raw, A, lower, upper = integers(64)
    y = project_affine(raw, A, lower, upper)
    vertex = (y - y.round()).abs().amax(-1) < 1e-9
    assert vertex.any()
    assert (y - y.round())[vertex].abs().max() <= 1e-12


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_one_row_holds_to_rounding_at_y_however_far_raw_is(n, dtype):
    A, bound = draw(500, 1, n).to(dtype), draw(500, 1, seed=1).to(dtype)
    for size in (1e3, 1e6):
        y = project_affine((size * draw(500, n, seed=2)).to(dtype), A, bound - 1, bound).double()
        product, terms = (A.double() * y.unsqueeze(-2)).sum(-1), (A.double() * y.unsqueeze(-2)).abs().sum(-1)
        violation = torch.maximum(product - bound, bound.double() - 1 - product)
        assert (violation <= 16 * torch.finfo(dtype).eps * (terms + bound.abs() + 1)).all()
