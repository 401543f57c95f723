"""Several rows beside a box by compiled code, against the same in plain torch."""

import pytest
import torch

import hardnet as hn
from hardnet.kernels.cpu import launch
from hardnet.kernels.cpu.launch import BoxRows
from hardnet.kernels.cpu.ready import entries
from hardnet.solvers.polyhedron.box_rows import solve
from hardnet.solvers.solution import Found
from tests.draws import draw
from tests.solvers.box_families import KINDS, D, box_family, flat_box

pytest.importorskip("numba")

EPS = torch.finfo(D).eps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [2, 3, 8])
def test_agrees_with_plain_torch(kind, k):
    """They agree to the conditioning of the projection; plain torch solves the samples left open here afterward."""
    for n in (1, 2, 7, 60):
        flat = flat_box(*box_family(kind, 40, k, n, seed=n))
        found, plain = Found(*BoxRows().forward(flat, EPS)), solve(*flat, rounding=EPS)
        both = (found.status == 0) & (plain.status == 0)
        error = (found.y - plain.y).abs().amax(-1) / flat[0].abs().amax(-1).clamp_min(1.0)
        assert (error <= 1e-10)[both].all()
        assert (found.residual <= 1e-12)[both].all()
        assert (found.status == 0)[plain.status == 0].all()


def test_raw_inside_is_returned_bit_for_bit_and_bad_numbers_are_invalid():
    raw, A, lower, upper, low, high = (part.clone() for part in box_family("plain", 8, 3, 5))
    y = solve(*flat_box(raw, A, lower, upper, low, high), rounding=EPS).y
    found = Found(*BoxRows().forward(flat_box(y, A, lower, upper, low, high), EPS))
    assert torch.equal(found.y, y)
    assert (found.dual == 0).all()
    raw[2, 1], A[3, 0, 2], low[4, 0], lower[5, 1] = torch.nan, torch.inf, high[4, 0] + 1, torch.nan
    flat = flat_box(raw, A, lower, upper, low, high)
    bad = Found(*BoxRows().forward(flat, EPS))
    assert bad.status.tolist() == [0, 0, 3, 3, 3, 3, 0, 0]
    mates = flat_box(*(part[6:] for part in (raw, A, lower, upper, low, high)))
    assert torch.equal(bad.y[6:], BoxRows().forward(mates, EPS)[0])


def test_empty_sets_are_proved_empty():
    raw, A, lower, upper, low, high = (part.clone() for part in box_family("plain", 3, 2, 5))
    lower[0, 0], upper[0, 0] = 50.0, 60.0
    flat = flat_box(raw, A, lower, upper, low, high)
    assert BoxRows().forward(flat, EPS)[4].tolist() == [1, 0, 0]
    assert solve(*flat, rounding=EPS).status.tolist() == [1, 0, 0]


@pytest.mark.parametrize("power", [60, 173, 480, -480])
def test_the_unit_of_the_outputs_changes_no_bit(power):
    """Powers of two scale exactly. Once, a row's length computed as a difference of sizes was lost to large bounds."""
    for seed in range(40):
        k, n = 2 + seed % 7, 8 + seed % 20
        A, inside, spread = draw(k, n, seed=seed), draw(n, seed=seed + 100), draw(2, n, seed=seed + 200).abs()
        raw = inside + 30 * draw(16, n, seed=seed + 300)
        numbers = raw, A, None, A @ inside, inside - spread[0], inside + spread[1]
        scaled = [part if part is None or part is A else part * 2.0**power for part in numbers]
        y = hn.functional.project_box_rows(*numbers)
        assert torch.equal(hn.functional.project_box_rows(*scaled) / 2.0**power, y)


def test_a_kernel_that_is_still_being_compiled_leaves_its_rows_to_torch(monkeypatch):
    """Beside bounds of single outputs one general row may be left, which has a kernel of its own."""
    A = torch.cat([torch.eye(5, dtype=D).repeat(2, 1)[:7], torch.ones(1, 5, dtype=D)])
    raw = 3 * draw(4, 5)
    upper = torch.full((8,), 0.3, dtype=D)
    known = hn.functional.project_affine(raw, A, upper=upper)
    monkeypatch.setattr(launch, "ready", lambda kernel, *_: kernel == "polyhedron")
    monkeypatch.setattr(launch, "entries", lambda kernel, *_: entries(kernel) if kernel == "polyhedron" else ())
    assert (hn.functional.project_affine(raw, A, upper=upper) - known).abs().max() <= 16 * EPS
