"""Sparse rows of any numbers: sizes, angles, cancellation, empty sets, judged by exact arithmetic."""

import warnings
from fractions import Fraction

import pytest
import torch

import hardnet as hn
from tests.draws import draw
from tests.sets.sparse_rows import compressed, differences
from tests.solvers.families import F64
from tests.solvers.oracles import contradict

pytest.importorskip("scipy")


@pytest.mark.parametrize("batch", [(), (7,), (2, 3)])
@pytest.mark.parametrize("seed", range(5))
def test_the_certificate_of_sparse_rows_is_not_fooled_by_cancellation(seed, batch):
    """Terms of 1e17 that cancel but for about 1: the exact violation is within `rounding` of what it says."""
    source = torch.Generator().manual_seed(seed)
    A = torch.randint(-3, 4, (6, 12), generator=source).double() * (torch.rand(6, 12, generator=source) < 0.5)
    A[:, 1::2] = A[:, 0::2]
    A[0], A[5] = 0.0, 1.0  # a row of none, and one of all entries
    y = torch.randn(*batch, 12, generator=source, dtype=torch.float64) * 10.0 ** torch.arange(17, 5, -1)
    y[..., 1:12:2] = -y[..., 0:12:2] + torch.randn(*batch, 6, generator=source, dtype=torch.float64)
    lower, upper = -torch.ones(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    found = hn.check(hn.Affine(A.to_sparse_csr(), lower=lower, upper=upper), y)
    assert (found.rounding <= 1e-9 * (1 + found.violation)).all()
    for point, said, rounding in zip(
        *(t.reshape(-1, t.shape[-1]) for t in (y, found.violation, found.rounding)), strict=True
    ):
        for row in range(6):
            value = sum(
                (Fraction(a) * Fraction(b) for a, b in zip(A[row].tolist(), point.tolist(), strict=True)), Fraction(0)
            )
            exact = max(value - 1, -1 - value, 0)
            assert abs(Fraction(said[row].item()) - exact) <= Fraction(rounding[row].item())


def test_what_is_not_finite_violates_sparse_rows():
    constraint = hn.Affine(torch.eye(3, dtype=torch.float64).to_sparse_csr(), upper=1.0)
    y = torch.tensor([[0.0, torch.inf, 0.0], [torch.nan, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    assert hn.check(constraint, y).satisfied.tolist() == [False, False, True]


@pytest.mark.parametrize("unit", [1e-300, 1e-170, 1e-155, 1.0, 1e155, 1e170, 1e300])
def test_rows_of_any_size_are_those_of_size_one(unit):
    A, upper = differences(4), torch.tensor([0.5, -1.0, 0.25], dtype=F64)
    raw = 3 * draw(5, 4)
    model = hn.HardNet(torch.nn.Identity(), hn.Affine(compressed(A * unit), upper=upper * unit))
    y = model(raw)
    assert hn.check(model.constraint, y).ok
    expected = hn.functional.project_affine(raw, A, upper=upper)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-13 * raw.abs().max().item())  # the length of a row rounds


@pytest.mark.parametrize("angle", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10])
def test_nearly_antiparallel_rows_are_never_called_empty(angle):
    """``y_1 <= 0`` and ``y_1 + angle y_2 >= 1`` meet at (0, 1 / angle), however far away."""
    A = torch.tensor([[1.0, 0.0], [-1.0, -angle]], dtype=F64)
    model = hn.HardNet(torch.nn.Identity(), hn.Affine(compressed(A), upper=torch.tensor([0.0, -1.0], dtype=F64)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = model(torch.zeros(1, 2, dtype=F64))
    # rows hold to a rounding of y_2 times angle
    torch.testing.assert_close(y, torch.tensor([[0.0, 1 / angle]], dtype=F64), rtol=0, atol=1e-14 / angle)


@pytest.mark.parametrize("seed", range(8))
def test_rows_called_empty_contradict_each_other_by_themselves(seed):
    """Rows on some outputs each, the last a sum of two others whose bounds exclude it."""
    A = draw(6, 5, seed=seed) * (draw(6, 5, seed=seed + 50) > -0.2)
    A[5] = A[0] + A[1]
    upper = 1 + draw(6, seed=seed + 100).abs()
    lower = torch.full_like(upper, -torch.inf)
    lower[5], upper[5] = upper[0] + upper[1] + 0.5, torch.inf
    model = hn.HardNet(torch.nn.Identity(), hn.Affine(compressed(A), lower=lower, upper=upper))
    with pytest.raises(hn.errors.InfeasibleError) as caught:
        model(draw(2, 5, seed=seed))
    for rows in caught.value.rows:
        assert set(rows) == {0, 1, 5}
        assert contradict(A[rows], lower[rows], upper[rows])


def test_a_matrix_without_entries_is_judged():
    A = compressed(torch.zeros(2, 3, dtype=F64))
    constraint = hn.Affine(A, upper=torch.zeros(2, dtype=F64))
    assert hn.check(constraint, draw(4, 3)).ok
    broken = hn.check(hn.Affine(A, upper=torch.tensor([0.0, -1e-9], dtype=F64)), draw(4, 3))
    assert broken.violation.tolist() == [[0.0, 1e-9]] * 4


@pytest.mark.parametrize("seed", [0, 20, 280, 650, 1160, 2270])
def test_a_solved_sample_is_raw_less_its_rows_times_their_multipliers(seed):
    """A duplicate of an equality, and bounds that touch: multipliers grow, and must not cost y more than it says.

    What a sample is off, in exact arithmetic: 1e-9 of its size makes it solved, by `SOLVED`.
    """
    n, m = 12, 10
    A = torch.where(draw(m, n, seed=seed).abs() > 1.2, draw(m, n, seed=seed + 1), 0.0)
    A[:, 0] += 0.5
    A[-1] = 3 * A[0]
    point = draw(n, seed=seed + 2)
    value = A @ point
    upper = torch.where(draw(m, seed=seed + 6) > -0.5, value + draw(m, seed=seed + 3).abs(), value)
    lower = torch.where(draw(m, seed=seed + 7) > -0.5, value - draw(m, seed=seed + 4).abs(), value)
    lower[:6] = upper[:6] = value[:6]
    upper[-1] = value[-1]
    raw = point + 10 * draw(4, n, seed=seed + 5)
    constraint = hn.Box(point - 1, point + 1) & hn.Affine(compressed(A), lower=lower, upper=upper)
    found = hn.HardNet(torch.nn.Identity(), constraint).layer.solve(raw)
    rows = torch.cat([torch.eye(n, dtype=F64), A])
    for y, dual, own in zip(found.y, found.dual, raw, strict=True):
        if bool(y.isfinite().all()):
            for j in range(n):
                terms = (Fraction(a) * Fraction(w) for a, w in zip(rows[:, j].tolist(), dual.tolist(), strict=True))
                off = Fraction(own[j].item()) - sum(terms) - Fraction(y[j].item())
                assert abs(off) <= 1e-9 * max(1.0, own.abs().max().item(), y.abs().max().item())
