"""One row beside a box by compiled code, against the same in plain torch."""

import pytest
import torch

from hardnet.solvers.box_rows import flatten, solve
from tests.solvers.box_families import KINDS, D, box_family

pytest.importorskip("numba")

EPS = torch.finfo(D).eps


@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_plain_torch(kind):
    from hardnet.kernels.cpu.nearest_box import nearest_in_box

    for n in (1, 2, 7, 300):
        _, flat = flatten(*box_family(kind, 60, 1, n, seed=n))
        y, place, found = nearest_in_box(*flat, EPS)
        plain = solve(*flat, rounding=EPS)
        assert torch.equal(found[:, 1].to(torch.int8), plain.status)
        # a coordinate may be on either side of its bound by the rounding of raw - a t
        error = (y - plain.y).abs().amax(-1) / flat[0].abs().amax(-1).clamp_min(1.0)
        assert error.max() <= 1e-10
        assert (place.to(torch.int8) != plain.place).any(-1).sum() <= 3


def test_empty_sets_and_invalid_numbers_have_the_status_of_plain_torch():
    from hardnet.kernels.cpu.nearest_box import nearest_in_box

    raw, A, lower, upper, low, high = (part.clone() for part in box_family("plain", 8, 1, 5))
    lower[0], upper[0] = 50.0, 60.0
    lower[1], upper[1] = -60.0, -50.0
    raw[2, 1], A[3, 0, 2], low[4, 0], lower[5] = torch.nan, torch.inf, high[4, 0] + 1, torch.nan
    A[6], lower[6], upper[6] = 0.0, 1.0, 2.0
    _, flat = flatten(raw, A, lower, upper, low, high)
    y, _, found = nearest_in_box(*flat, EPS)
    plain = solve(*flat, rounding=EPS)
    assert torch.equal(found[:, 1].to(torch.int8), plain.status)
    assert found[:2, 0].sign().tolist() == [-1, 1]
    assert torch.equal(y.isnan(), plain.y.isnan())
