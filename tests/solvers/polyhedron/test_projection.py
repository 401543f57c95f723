"""The exact projection: optimal to rounding on every family, by every algorithm, for every sample alone."""

import pytest
import torch

import hardnet as hn
from hardnet.errors import MissingExtraError
from hardnet.solvers import Status, project_affine
from hardnet.solvers.polyhedron import projection
from tests.draws import draw
from tests.solvers.families import F64, FAMILIES, cone_apex, duplicated, gaussian, integers, product

BACKENDS = [
    "auto",
    "torch",
    pytest.param("daqp", marks=pytest.mark.skipif(not projection.has_daqp(), reason="no daqp")),
]


def violation(A, lower, upper, y):
    value = product(A, y)
    return (value - upper).clamp_min(0) + (lower - value).clamp_min(0)


def scale(A, lower, upper, raw):
    bound = torch.maximum(*(torch.where(side.isfinite(), side.abs(), 0.0) for side in (lower, upper)))
    return A.norm(dim=-1) * raw.norm(dim=-1, keepdim=True) + bound


def natural_residual(raw, A, lower, upper, y, dual):
    """Stationarity and complementarity for unit rows, computed here and not by the solver."""
    norm = A.norm(dim=-1).clamp_min(1e-300)
    stationarity = (y - raw + product(A.mT, dual)).abs().amax(-1)
    value = product(A, y) / norm
    moved = (value + dual * norm).clamp(lower / norm, upper / norm)
    return torch.maximum(stationarity, (value - moved).abs().amax(-1)) / (1 + raw.abs().amax(-1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_sample_is_optimal_to_rounding(family, backend):
    if family == "300 rows" and backend == "torch":
        pytest.skip("seconds; the same code runs at 100 rows")
    raw, A, lower, upper = FAMILIES[family]()
    found = project_affine(raw, A, lower, upper, backend=backend)
    assert (found.status == Status.SOLVED).all()
    assert found.residual.max() <= 1e-12
    assert natural_residual(raw, A, lower, upper, found.y, found.dual).max() <= 1e-11
    assert (violation(A, lower, upper, found.y) <= 1e-12 * scale(A, lower, upper, raw)).all()


@pytest.mark.parametrize("family", ["few rows", "many rows", "square", "half open", "nearly parallel", "integers"])
def test_agrees_with_an_independent_solver(family):
    clarabel = pytest.importorskip("clarabel")
    sparse = pytest.importorskip("scipy.sparse")
    raw, A, lower, upper = (part[:5] for part in FAMILIES[family]())
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-13
    y = project_affine(raw, A, lower, upper).y
    for sample in range(len(raw)):
        rows, right = torch.cat([A[sample], -A[sample]]), torch.cat([upper[sample], -lower[sample]])
        kept = right.isfinite()
        cone = [clarabel.NonnegativeConeT(int(kept.sum()))]
        size = sparse.identity(raw.shape[-1], format="csc")
        matrix = sparse.csc_matrix(rows[kept].numpy())
        solver = clarabel.DefaultSolver(size, -raw[sample].numpy(), matrix, right[kept].numpy(), cone, settings)
        assert (y[sample] - torch.tensor(solver.solve().x, dtype=F64)).abs().max() <= 1e-6


@pytest.mark.parametrize("family", ["many rows", "square", "half open", "duplicated rows"])
def test_backends_agree(family):
    if not projection.has_daqp():
        pytest.skip("no daqp")
    arguments = FAMILIES[family]()
    first, second = (project_affine(*arguments, backend=backend) for backend in ("torch", "daqp"))
    assert (first.y - second.y).abs().max() <= 1e-11


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sample_has_the_same_bits_in_any_batch(backend):
    shapes = (gaussian(16, 10, 20), gaussian(16, 10, 5), duplicated(16), gaussian(16, 20, 8, shared=True))
    for arguments in (*shapes, gaussian(16, 50, 50)):
        whole = project_affine(*arguments, backend=backend)
        for index in (slice(5, 6), slice(7, 9), slice(10, 16)):
            part = project_affine(*(x[index] if len(x) == 16 else x for x in arguments), backend=backend)
            assert torch.equal(part.y, whole.y[index])
            assert torch.equal(part.dual, whole.dual[index])


def test_feasible_samples_come_back_bit_for_bit():
    raw, A, lower, upper = gaussian(64, 6, 9)
    y = project_affine(raw, A, lower, upper).y
    again = project_affine(y, A, lower, upper)
    assert torch.equal(again.y, y)
    assert (again.iterations == 0).all()


def test_known_answers():
    A = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=F64)
    raw = torch.tensor([[2.0, -2.0], [2.0, 0.5], [0.6, 1.4], [0.25, 0.5]], dtype=F64)
    found = project_affine(raw, A, upper=torch.ones(2, dtype=F64))
    expected = torch.tensor([[1.0, -2.0], [1.0, 0.0], [0.1, 0.9], [0.25, 0.5]], dtype=F64)
    assert torch.allclose(found.y, expected, atol=1e-15, rtol=0)
    assert torch.allclose(found.dual[1], torch.tensor([0.5, 0.5], dtype=F64), rtol=0, atol=1e-15)


def test_box_rows_are_a_clamp_and_one_row_is_a_half_space():
    raw = 3 * draw(20, 7)
    lower, upper = -draw(7, seed=1).abs(), draw(7, seed=2).abs()
    box = project_affine(raw, torch.eye(7, dtype=F64), lower, upper).y
    assert torch.allclose(box, raw.clamp(lower, upper), atol=1e-14, rtol=0)
    a = draw(20, 1, 7, seed=3)
    found = project_affine(raw, a, upper=torch.zeros(1, dtype=F64)).y
    excess = product(a, raw).clamp_min(0) / a.square().sum(-1)
    assert torch.allclose(found, raw - excess * a.squeeze(-2), atol=1e-14, rtol=0)


def test_simplex_rows_give_the_simplex():
    raw = 2 * draw(50, 6)
    A = torch.cat([torch.eye(6, dtype=F64), torch.ones(1, 6, dtype=F64)])
    lower = torch.tensor([0.0] * 6 + [1.0], dtype=F64)
    upper = torch.tensor([torch.inf] * 6 + [1.0], dtype=F64)
    found = project_affine(raw, A, lower, upper).y
    ordered = raw.sort(dim=-1, descending=True).values
    theta = (ordered.cumsum(-1) - 1) / torch.arange(1, 7, dtype=F64)
    count = (ordered > theta).sum(-1, keepdim=True)
    assert torch.allclose(found, (raw - theta.gather(-1, count - 1)).clamp_min(0), atol=1e-14, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_sets_are_proved_empty_and_answered_by_the_compromise(backend):
    A = torch.tensor([[1.0], [1.0]], dtype=F64)
    lower, upper = torch.tensor([-torch.inf, 1.0], dtype=F64), torch.tensor([0.0, torch.inf], dtype=F64)
    found = project_affine(torch.tensor([0.3], dtype=F64), A, lower, upper, backend=backend)
    assert found.status == Status.INFEASIBLE
    assert torch.allclose(found.y, torch.tensor([0.5], dtype=F64), rtol=0, atol=1e-12)
    assert torch.allclose(found.dual, torch.tensor([1.0, -1.0], dtype=F64), rtol=0, atol=1e-9)


def test_certificates_of_random_empty_sets_hold():
    A, middle = draw(64, 12, 4), 2 * draw(64, 12, seed=1)
    found = project_affine(draw(64, 4, seed=2), A, middle, middle + 0.1)
    assert (found.status == Status.INFEASIBLE).all()
    bound = torch.where(found.dual > 0, middle + 0.1, middle)
    assert product(A.mT, found.dual).abs().max() <= 1e-7
    assert ((bound * found.dual).sum(-1) < 0).all()


def test_contradictory_parallel_rows_are_named():
    raw, A, lower, upper = gaussian(4, 5, 8)
    A[2, 6], lower[2, 6], upper[2, 6] = -2 * A[2, 1], -2 * lower[2, 1] + 1, -2 * lower[2, 1] + 2
    found = project_affine(raw, A, lower, upper)
    assert (found.status == Status.INFEASIBLE).tolist() == [False, False, True, False]
    assert product(A[2].mT, found.dual[2]).abs().max() <= 1e-14
    assert found.dual[2].nonzero().squeeze(-1).tolist() == [1, 6]


def test_a_far_bound_does_not_blur_the_near_one():
    """A bound of 1e15 that nobody breaks must not turn the other bound of its row into a suggestion."""
    raw, A = torch.tensor([[-5.0, 1.0]], dtype=F64), torch.eye(2, dtype=F64)
    for far in (1e15, 1e100, 1e308):
        y = project_affine(raw, A, torch.zeros(2, dtype=F64), torch.full((2,), far, dtype=F64)).y
        assert y.tolist() == [[0.0, 1.0]]
    y = project_affine(raw[:, :1], A[:1, :1], torch.zeros(1, dtype=F64), torch.full((1,), 1e15, dtype=F64)).y
    assert y.tolist() == [[0.0]]


def test_empty_sets_leave_their_batch_mates_alone():
    raw, A, lower, upper = gaussian(12, 5, 8)
    alone = project_affine(raw[1:], A[1:], lower[1:], upper[1:])
    A, lower, upper = A.clone(), lower.clone(), upper.clone()
    A[0, 1], lower[0, 1], upper[0, 1] = A[0, 0], upper[0, 0] + 1, upper[0, 0] + 2
    found = project_affine(raw, A, lower, upper)
    assert found.status.tolist() == [Status.INFEASIBLE] + [Status.SOLVED] * 11
    assert torch.equal(found.y[1:], alone.y)
    assert (found.dual[0] != 0).nonzero().squeeze(-1).tolist() == [0, 1]


def test_invalid_samples_are_named_and_leave_their_batch_mates_alone():
    raw, A, lower, upper = gaussian(6, 4, 5)
    whole = project_affine(raw, A, lower, upper)
    raw, A, lower, upper = raw.clone(), A.clone(), lower.clone(), upper.clone()
    raw[0, 1], A[1, 0, 0], lower[2, 0], upper[3, 1], lower[4, 2] = torch.nan, torch.inf, 1e9, torch.nan, torch.inf
    found = project_affine(raw, A, lower, upper)
    assert found.status.tolist() == [Status.INVALID] * 5 + [Status.SOLVED]
    assert found.y[:5].isnan().all()
    assert torch.equal(found.y[5], whole.y[5])


@pytest.mark.parametrize("bounds", [(0.0, 0.0), (-torch.inf, 0.0), (0.0, torch.inf), (-1.0, 1.0)])
@pytest.mark.parametrize(("m", "n"), [(2, 3), (3, 5), (5, 8), (9, 4)])
def test_a_zero_row_has_multiplier_zero_and_hides_no_other(m, n, bounds):
    """Its bound of 0 touches every y; the other multipliers are those without it, and the derivative as well."""
    raw, A = (5 * draw(8, n, seed=m)).requires_grad_(), draw(8, m, n, seed=m + 1)
    low, high = -draw(8, m, seed=m + 2).abs(), draw(8, m, seed=m + 3).abs()
    alone = project_affine(raw, A, low, high)
    place, own = m // 2, torch.full((8, 1), 1.0, dtype=F64)
    beside = lambda part, row: torch.cat([part[:, :place], row, part[:, place:]], dim=1)
    rows = beside(A, torch.zeros(8, 1, n, dtype=F64)), *map(beside, (low, high), (own * bounds[0], own * bounds[1]))
    found = project_affine(raw, *rows)
    assert not found.dual[:, place].any()
    assert torch.allclose(found.dual[:, torch.arange(m + 1) != place], alone.dual, rtol=1e-9, atol=1e-9)
    weight = draw(8, n, seed=m + 4)
    gradients = [
        torch.autograd.grad((weight * hn.functional.project_affine(raw, *given)).sum(), raw)[0]
        for given in ((A, low, high), rows)
    ]
    assert torch.allclose(*gradients, rtol=1e-9, atol=1e-9)


def test_zero_rows_hold_or_make_the_set_empty():
    A = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64)
    raw = torch.tensor([3.0, 1.0], dtype=F64)
    fine = project_affine(raw, A, torch.tensor([-1.0, -torch.inf], dtype=F64), torch.tensor([1.0, 2.0], dtype=F64))
    assert fine.status == Status.SOLVED
    assert torch.allclose(fine.y, torch.tensor([2.0, 0.0], dtype=F64), rtol=0, atol=1e-12)
    empty = project_affine(raw, A, torch.tensor([1.0, -torch.inf], dtype=F64), torch.tensor([2.0, 2.0], dtype=F64))
    assert empty.status == Status.INFEASIBLE


@pytest.mark.parametrize("factor", [1e-150, 1e-9, 1e9])
def test_the_answer_scales_with_the_units(factor):
    raw, A, lower, upper = gaussian(32, 10, 20)
    y = project_affine(raw, A, lower, upper).y
    scaled = project_affine(factor * raw, A, factor * lower, factor * upper)
    assert (scaled.status == Status.SOLVED).all()
    assert torch.allclose(scaled.y / factor, y, atol=1e-12, rtol=0)


def test_duplicates_share_their_multiplier_evenly():
    raw, A, lower, upper = duplicated(16)
    dual = project_affine(raw, A, lower, upper).dual
    assert torch.allclose(dual[:, :10], dual[:, 20:], rtol=0, atol=1e-9)
    assert (dual[:, :10] != 0).any()


def test_batch_dimensions_constants_and_dtypes():
    raw, A, lower, upper = gaussian(6, 4, 7)
    whole = project_affine(raw, A, lower, upper)
    split = project_affine(raw.view(2, 3, 4), A.view(2, 3, 7, 4), lower.view(2, 3, 7), upper.view(2, 3, 7))
    assert split.y.shape == (2, 3, 4)
    assert split.status.shape == split.residual.shape == split.iterations.shape == (2, 3)
    assert torch.equal(split.y.view(6, 4), whole.y)
    one = project_affine(raw[0], A[0], lower[0], upper[0])
    assert torch.allclose(one.y, whole.y[0], rtol=0, atol=1e-14)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        small = [part.to(dtype) for part in (raw, A, lower, upper)]
        found = project_affine(*small)
        exact = project_affine(*(part.double() for part in small))
        assert found.y.dtype == found.dual.dtype == dtype
        assert torch.equal(found.y, exact.y.to(dtype))


def test_many_samples_run_in_bounded_memory():
    raw, A, lower, upper = gaussian(20000, 10, 20)
    found = project_affine(raw, A, lower, upper, backend="torch" if not projection.has_daqp() else "auto")
    assert (found.status == Status.SOLVED).all()


def test_daqp_asked_for_by_name_must_be_there(monkeypatch):
    monkeypatch.setattr(projection, "has_daqp", lambda: False)
    with pytest.raises(MissingExtraError, match=r"hardnet\[qp\]"):
        project_affine(*cone_apex(2), backend="daqp")
    assert (project_affine(*integers(8)).status == Status.SOLVED).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_outputs_bounded_by_a_row_of_their_own_are_exactly_inside(seed, dtype):
    """Non-negative outputs of a given total, capped, with rows of the identity among others: no bit outside."""
    n = 5 + 7 * seed
    upper = draw(64, n, seed=seed).abs() + 2.0 / n
    A = torch.cat([torch.eye(n, dtype=F64), -4 * torch.eye(n, dtype=F64), torch.ones(1, n, dtype=F64)]).to(dtype)
    total = torch.ones(64, 1, dtype=F64)
    free = torch.full_like(upper, -torch.inf)
    lower = torch.cat([torch.zeros_like(upper), free, total], -1).to(dtype)
    above = torch.cat([upper, torch.zeros_like(upper), total], -1).to(dtype)
    y = project_affine((10.0 ** draw(64, 1, seed=seed) * draw(64, n, seed=seed + 1)).to(dtype), A, lower, above).y
    assert (y >= 0).all()
    assert (y <= above[:, :n]).all()
    assert (y.double().sum(-1) - 1).abs().max() <= 64 * n * torch.finfo(dtype).eps


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("angle", [1e-5, 1e-7, 1e-9, 1e-11])
@pytest.mark.parametrize("n", [3, 4])
def test_multipliers_that_cancel_excuse_no_violated_row(n, angle, backend):
    """Around one point: an equality twice, another beside a row at a small angle, and rows that touch the point.

    Such sets are thin or empty to rounding, and the multipliers of the two rows are as large as 1 / angle. What is
    called solved must hold to the solver's own 1e-12; what does not is said to have not converged.
    """
    m, count = 8, 200
    A, point = draw(count, m, n, seed=1), draw(count, n, seed=2)
    A[:, 1], A[:, 3] = A[:, 0], A[:, 2] + angle * A[:, 3]
    value, room = product(A, point), 0.1 * draw(count, m, seed=3).abs()
    lower, upper = value - room * (torch.arange(m) % 3 == 1), value + room
    lower[:, 1:3], upper[:, 1:3] = value[:, 1:3], value[:, 1:3]
    found = project_affine(point + 0.1 * draw(count, n, seed=4), A, lower, upper, backend=backend)
    solved = found.status == Status.SOLVED
    assert solved.double().mean() > 0.8
    size = A.norm(dim=-1) * (1 + found.y.norm(dim=-1, keepdim=True))
    assert bool((violation(A, lower, upper, found.y) <= 2e-12 * size)[solved].all())
