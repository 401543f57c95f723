"""A bound that stands for "none", such as 1e20, takes nothing from the one beside it, in layers and in `check`."""

import pytest
import torch

import hardnet as hn
from tests.draws import draw


def in_box(raw, A, lower, upper):
    low, high = torch.full_like(raw, -2.0), torch.full_like(raw, 3.0)
    return hn.functional.project_box_rows(raw, A, lower, upper, low, high)


def in_far_box(raw, A, lower, upper):
    high = upper[..., :1].expand_as(raw)
    return hn.functional.project_box_rows(raw, A, lower, lower + 2, torch.full_like(raw, -2.0), high)


PROJECTIONS = {
    "aff": hn.functional.enforce_affine,
    "nearest": hn.functional.project_affine,
    "box": in_box,
    "far box": in_far_box,
}
FAR = [1e3, 1e6, 1e12, 1e20, 1e30]
F64, F32 = torch.float64, torch.float32


def rows_and_far_bounds(m, n, far, near, dtype, seed=0):
    """``near <= A y`` beside an upper bound that no output comes close to."""
    A = draw(64, m, n, seed=seed).to(dtype)
    lower = -near * draw(64, m, seed=seed + 1).abs().to(dtype)
    return A, lower, torch.full((64, m), far, dtype=dtype)


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("far", FAR)
def test_a_certificate_is_not_loosened_by_a_far_bound(far, dtype):
    A = torch.ones(1, 2, dtype=dtype)
    lower, upper = torch.zeros(1, dtype=dtype), torch.full((1,), far, dtype=dtype)
    row, box = hn.Affine(A, lower=lower, upper=upper), hn.Box(0.0, far)
    bent = hn.Nonlinear(lambda y, x: y.sum(-1, keepdim=True).exp() - 1, dim=2, lower=0.0, upper=far)
    y = torch.full((1, 2), -1e-3, dtype=dtype)
    sets = [row, box, row & box, hn.Affine(A, lower=-upper, upper=lower - 1), bent]
    scaled = hn.scaled(row, torch.zeros(2, dtype=dtype), torch.ones(2, dtype=dtype))
    sets += [scaled, hn.Relaxed(row) & hn.Box(-1.0, far)]
    for constraint in sets:
        assert not hn.check(constraint, y).ok, constraint
        rounding = 16 * torch.finfo(dtype).eps
        promised = max(rounding, 1e-10) if constraint is bent else rounding
        assert hn.check(constraint, y).tolerance.max() <= promised * 5


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("route", ["eager", "vmap"])
@pytest.mark.parametrize(
    ("name", "m", "n"),
    [
        ("aff", 2, 4),
        *(("nearest", m, 4) for m in (1, 2, 4, 7)),
        *((box, m, 6) for m in (1, 2, 5) for box in ("box", "far box")),
    ],
)
def test_a_far_bound_takes_nothing_from_the_other(name, m, n, route, dtype):
    """Rows hold to rounding of their own terms; where no value is looked at, a few samples may be NaN."""
    project = PROJECTIONS[name]
    mapped = torch.func.vmap(project) if route == "vmap" else project
    for seed, far in enumerate(FAR):
        for near, size in ((0.0, 1.0), (1e-6, 10.0), (1.0, 1.0)):
            A, lower, upper = rows_and_far_bounds(m, n, far, near, dtype, seed)
            y = mapped(size * draw(64, n, seed=seed + 2).to(dtype), A, lower, upper)
            answered = ~y.isnan().any(-1)
            assert answered.double().mean() >= (0.95 if route == "vmap" else 1), (far, near, size)
            bare = hn.Affine(A[answered], lower=lower[answered])
            weight = A[answered].double().abs().sum(-1)
            off = hn.check(bare, y[answered]).violation
            allowed = weight * (1 + y[answered].double().abs().amax(-1, keepdim=True)) + 2 * lower[answered].abs()
            assert (off <= 16 * torch.finfo(dtype).eps * allowed).all(), (far, near, size)
