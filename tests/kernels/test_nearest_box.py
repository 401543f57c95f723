"""One row beside a box by compiled code, against the same in plain torch."""

import pytest
import torch

from hardnet.kernels.cpu.launch import BoxRows
from hardnet.solvers.polyhedron.box_rows import solve
from tests.solvers.box_families import KINDS, D, box_family, flat_box

pytest.importorskip("numba")

EPS = torch.finfo(D).eps


@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_plain_torch(kind):
    for n in (1, 2, 7, 300):
        flat = flat_box(*box_family(kind, 60, 1, n, seed=n))
        y, place, _, _, status, _ = BoxRows().forward(flat, EPS)
        plain = solve(*flat, rounding=EPS)
        assert torch.equal(status, plain.status)
        # a coordinate may be on either side of its bound by the rounding of raw - a t
        error = (y - plain.y).abs().amax(-1) / flat[0].abs().amax(-1).clamp_min(1.0)
        assert error.max() <= 1e-10
        assert (place != plain.place).any(-1).sum() <= 3


def test_empty_sets_and_invalid_numbers_have_the_status_of_plain_torch():
    raw, A, lower, upper, low, high = (part.clone() for part in box_family("plain", 8, 1, 5))
    lower[0], upper[0] = 50.0, 60.0
    lower[1], upper[1] = -60.0, -50.0
    raw[2, 1], A[3, 0, 2], low[4, 0], lower[5] = torch.nan, torch.inf, high[4, 0] + 1, torch.nan
    A[6], lower[6], upper[6] = 0.0, 1.0, 2.0
    flat = flat_box(raw, A, lower, upper, low, high)
    y, _, dual, _, status, _ = BoxRows().forward(flat, EPS)
    plain = solve(*flat, rounding=EPS)
    assert torch.equal(status, plain.status)
    assert dual[:2, 0].sign().tolist() == [-1, 1]
    assert torch.equal(y.isnan(), plain.y.isnan())
