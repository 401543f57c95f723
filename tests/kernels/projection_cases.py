"""Checks for small projections in one launch, on any device: they agree with the general path, or are left open."""

import sys

import torch

from hardnet.functional import derivatives
from hardnet.kernels.gpu.nearest import AnyRows
from hardnet.kernels.gpu.polyhedron import project_on_chip as project
from hardnet.rows import Batch, step_limit
from hardnet.solvers import Status
from hardnet.solvers.polyhedron import projection
from hardnet.solvers.polyhedron.problem import GENERAL
from hardnet.solvers.solution import Found
from tests.solvers import families
from tests.solvers.near import far_away, just_outside, roundings_outside

EPS = torch.finfo(torch.float64).eps
TOLERANCES = GENERAL._replace(allowed=GENERAL.allowed * EPS)


def answer(raw, A, lower, upper):
    """The result of the fused kernel, and which samples it leaves open."""
    *found, unsolved, _ = project(raw, A, lower, upper, step_limit(A), TOLERANCES)
    y, dual, side, steps, residual = found
    return Found(y, None, dual, side, torch.zeros_like(unsolved, dtype=torch.int8), residual, steps), unsolved


def compare(family, device, most_open=0, steps=True):
    """The same y, multipliers, sides and, if asked, steps as the general path, where the kernel has an answer."""
    raw, A, lower, upper = (part.to(device) for part in family)
    expected = projection.solve_in_steps(Batch(raw, A, lower, upper), "torch")
    found, unsolved = answer(raw, A, lower, upper)
    assert int(unsolved.sum()) <= most_open, int(unsolved.sum())
    good = ~unsolved
    assert (expected.status[good] == Status.SOLVED).all()
    for name in ("y", "dual"):
        got, right = (getattr(part, name)[good] for part in (found, expected))
        assert (got - right).abs().max() <= 1e-11 * right.abs().max().clamp_min(1.0), (A.shape, name)
    assert found.side[good].to(expected.side).equal(expected.side[good])
    assert not steps or found.iterations[good].equal(expected.iterations[good])
    assert (found.residual[good] <= GENERAL.solved).all()


def compare_whole(family, device):
    """With its open samples solved by the general path, every sample has the status and answer of that path alone."""
    raw, A, lower, upper = (part.to(device) for part in family)
    expected = projection.solve_in_steps(Batch(raw, A, lower, upper), "auto")
    found = projection._by_kernel(AnyRows(), Batch(raw, A, lower, upper, look=True), None, None)
    assert found.status.equal(expected.status)
    assert (found.y - expected.y).nan_to_num(0.0).abs().max() <= 1e-10
    assert found.y.isnan().equal(expected.y.isnan())
    assert (found.dual - expected.dual).nan_to_num(0.0).abs().max() <= 1e-9 * expected.dual.nan_to_num(0.0).abs().max()


def compare_promises(device):
    """Samples inside keep their bits, bad ones are open and affect no others, and bits do not depend on the batch."""
    raw, A, lower, upper = (part.to(device) for part in families.gaussian(10, 5, 7))
    lower[0], upper[0], raw[0], A[0] = -1e3, 1e3, -0.0, -A[0].abs()  # products of zeros that are all negative
    raw[1, 0], A[2, 0, 0], lower[3, 0], upper[4, 0] = torch.nan, torch.inf, torch.nan, -torch.inf
    A[5, 1], lower[5, 1], upper[5, 1] = A[5, 0], upper[5, 0] + 1, upper[5, 0] + 2  # empty
    lower[9, 2], upper[9, 2] = upper[9, 2].item(), lower[9, 2].item()
    found, unsolved = answer(raw, A, lower, upper)
    assert unsolved.tolist() == [False, True, True, True, True, True, False, False, False, True]
    assert found.y[0].view(torch.int64).equal(raw[0].view(torch.int64))
    assert not found.dual[0].any()
    assert not found.side[0].any()
    for sample in (0, 6, 8):
        one = slice(sample, sample + 1)
        alone, _ = answer(raw[one], A[one].clone(), lower[one], upper[one])
        parts = [(mine, ours) for mine, ours in zip(alone, found, strict=True) if mine is not None]
        assert all(mine.equal(ours[one]) for mine, ours in parts)


def compare_shared(device):
    """A shared A gives the same bits as that A repeated for every sample."""
    raw, A, lower, upper = (part.to(device) for part in families.gaussian(8, 6, 9, shared=True))
    got, right = answer(raw, A, lower, upper), answer(raw, A.expand(8, 9, 6).contiguous(), lower, upper)
    assert got[1].equal(right[1])
    assert all(mine is None or mine.equal(theirs) for mine, theirs in zip(got[0], right[0], strict=True))


def compare_far(device):
    """A violated row makes the residual infinite, however small the violation is relative to a far raw."""
    for distance in (1.0, 1e12, 1e16, 1e60, 1e150):
        raw, A, lower, upper = far_away(distance, 8, 6, 20)
        *flat, rounding = (*(part.to(device) for part in (raw, A, lower, upper)), EPS)
        found = projection._by_kernel(AnyRows(), Batch(*flat), None, rounding)
        met = roundings_outside(found.y.cpu(), A, lower, upper) <= GENERAL.allowed
        assert (met | found.residual.cpu().isinf()).all(), distance


def compare_near(device):
    """A raw outside by 10 to 10^5 roundings is brought inside, and the status is right."""
    for roundings in (2.0, 40.0, 200.0, 2e3, 2e4, 1e5):
        raw, A, lower, upper = just_outside(roundings, 8, 6, 9)
        *flat, rounding = (*(part.to(device) for part in (raw, A, lower, upper)), EPS)
        found = projection._by_kernel(AnyRows(), Batch(*flat), None, rounding)
        assert (found.status == Status.SOLVED).all(), roundings
        assert (roundings_outside(found.y.cpu(), A, lower, upper) <= GENERAL.allowed).all(), roundings


def by_active_rows(monkeypatch=None):
    """From here on, the checks are of the kernel for rows that stay in memory, whatever their size."""
    from hardnet.kernels.gpu import nearest, polyhedron

    put = setattr if monkeypatch is None else monkeypatch.setattr
    put(sys.modules[__name__], "project", polyhedron.project_from_memory)
    put(nearest, "MOST_ON_CHIP", 0)


def compare_derivative(device, shapes, samples):
    """The derivative on any active rows beside that in plain torch, for A per sample or shared."""
    from hardnet.kernels.gpu.polyhedron import implicit_vjp

    for m, n in shapes:
        raw, A, _, upper = (part.to(device) for part in families.gaussian(samples, n, m))
        active = upper.argsort(-1) < min(m, n) // 2
        active[0] = False
        for rows in (A, A[0]):
            u, w = implicit_vjp(raw, rows, active)
            expected = derivatives.implicit_vjp(raw, rows, active)
            for got, right in zip((u, w), expected, strict=True):
                assert (got - right).abs().max() <= 1e-9 * right.abs().max().clamp_min(1.0), (m, n)
            assert not w[~active].any()
