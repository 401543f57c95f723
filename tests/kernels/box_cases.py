"""Checks for the GPU kernel of a box and one row, run by the interpreter and on a device."""

import torch

from hardnet.kernels.gpu.nearest import BoxRows
from hardnet.solvers.polyhedron.box_rows import solve
from hardnet.solvers.solution import Found
from tests.solvers.box_families import KINDS, D, box_family, flat_box

EPS = torch.finfo(D).eps


def outcome(flat, rounding=EPS):
    return Found(*BoxRows().forward(flat, rounding))


def agree(flat, rounding=EPS):
    """Compare status, and y to the conditioning of the projection, which moves no farther than raw does."""
    found, plain = outcome(flat, rounding), solve(*flat, rounding=rounding)
    assert torch.equal(found.status, plain.status), (found.status, plain.status)
    good = plain.status == 0
    size = flat[0].abs().amax(-1).clamp_min(1.0)[good]
    assert ((found.y - plain.y).abs().amax(-1)[good] <= 1e-10 * size).all()
    assert torch.equal(found.y.isnan(), plain.y.isnan())
    # the rounding of raw - a t may put a coordinate or a row on either side of its bound
    assert (found.place != plain.place)[good].any(-1).sum() <= 3
    assert (found.side != plain.side)[good].any(-1).sum() <= 3
    assert (found.residual[good] <= 8 * EPS).all()
    if rounding == EPS:
        torch.testing.assert_close(BoxRows().answer(flat), found.y, rtol=0, atol=0, equal_nan=True)
    agree_in_short(tuple(part.float() for part in flat))


def agree_in_short(short):
    """Compare the answer for float32 numbers, to rounding.

    A coordinate is rounded twice in the kernel and once in the expected answer; the row misses its bound by at most
    ``eps sum |a_i y_i|`` over the free coordinates, which moves them by ``eps |y|_2`` in all.
    """
    rounding = 2.0**-23
    expected, found = outcome(tuple(part.double() for part in short), rounding).y, BoxRows().answer(short).double()
    assert torch.equal(found.isnan(), expected.isnan())
    allowed = rounding * (3 * expected.abs() + 2 * expected.norm(dim=-1, keepdim=True))
    assert ((found - expected).abs() <= allowed)[~expected.isnan()].all()


def compare(device, sizes, samples, kinds=KINDS):
    for kind in kinds:
        for n in sizes:
            flat = tuple(part.to(device) for part in flat_box(*box_family(kind, samples, 1, n, seed=n)))
            agree(flat, EPS if n % 2 else 2.0**-23)


def compare_shared(device, samples):
    """Shared numbers, absent bounds, one-sided rows, and each of these together with numbers per sample."""
    raw, A, lower, upper, low, high = (part.to(device) for part in box_family("plain", samples, 1, 5))
    agree(flat_box(raw, A[0], lower[0], upper[0], low[0], high[0]))
    agree(flat_box(raw, A[0], lower, None, low, high[0]))
    agree(flat_box(raw, A, None, upper[0], low[0], None))
    agree(flat_box(raw, A[0], lower[0], lower[0], None, None))
    agree(flat_box(raw, A, None, None, low, high))


def compare_one_number(device, samples):
    """One number for all coordinates gives the same bits as n copies of it, with or without 0 in the box."""
    raw, A, *_ = (part.to(device) for part in box_family("plain", samples, 1, 5))
    middle = torch.full((1, 5), 0.75, dtype=D, device=device)
    total = (middle * A[0]).sum(-1, keepdim=True)  # the row passes through a point of each of these boxes
    infinite = torch.full_like(middle, torch.inf)
    for low, high in ((-infinite, middle), (middle, infinite), (-middle, 2 * middle), (0.5 * middle, 2 * middle)):
        for dtype in (torch.float64, torch.float32):
            rows = tuple(part.to(dtype) for part in (raw, A[:1], total, total))
            low, high = low.to(dtype), high.to(dtype)
            one, other = (side[:, :1].expand(1, 5) for side in (low, high))
            expected = BoxRows().answer((*rows, low, high))
            assert expected.isfinite().all()
            for box in ((one, other), (one, high), (low, other)):
                assert torch.equal(BoxRows().answer((*rows, *box)), expected)


def compare_bad_samples(device):
    raw, A, lower, upper, low, high = (part.clone() for part in box_family("plain", 11, 1, 5))
    lower[0], upper[0] = 50.0, 60.0
    lower[1], upper[1] = -60.0, -50.0
    raw[2, 1], A[3, 0, 2], low[4, 0], lower[5] = torch.nan, torch.inf, high[4, 0] + 1, torch.nan
    A[6], lower[6], upper[6] = 0.0, 1.0, 2.0
    low[7, 1], high[7, 1], A[8, 0, 1], low[8, 1], high[8, 1] = torch.inf, torch.inf, 0.0, -torch.inf, -torch.inf
    flat = flat_box(*(part.to(device) for part in (raw, A, lower, upper, low, high)))
    agree(flat)
    assert outcome(flat).dual[:2, 0].sign().tolist() == [-1, 1]
    sound = flat_box(*(part[9:].to(device) for part in (raw, A, lower, upper, low, high)))
    assert torch.equal(outcome(flat).y[9:], outcome(sound).y)


def compare_units(device):
    """Scaling by powers of two changes no bit, up to the largest numbers."""
    flat = tuple(part.to(device) for part in flat_box(*box_family("plain", 6, 1, 6)))
    raw, A, lower, upper, low, high = flat
    y = outcome(flat).y
    for unit in (2.0**-600, 2.0**900):
        assert torch.equal(outcome((raw, A * unit, lower * unit, upper * unit, low, high)).y, y)
        inside = unit if unit < 1 else 2.0**400
        scaled = outcome((raw * inside, A, lower * inside, upper * inside, low * inside, high * inside))
        assert torch.equal(scaled.y, y * inside)


def compare_inside(device):
    raw, A, lower, upper, low, high = (part.to(device) for part in box_family("plain", 6, 1, 6))
    y = outcome(flat_box(raw, A, lower, upper, low, high)).y
    again = outcome(flat_box(y, A, lower, upper, low, high))
    assert torch.equal(again.y, y)
    assert (again.dual == 0).all()
    short = tuple(part.float() for part in flat_box(raw, A, lower, upper, low, high))
    y = BoxRows().answer(short)
    assert torch.equal(BoxRows().answer((y, *short[1:])), y)


def compare_short_numbers(device, samples):
    """Float32 numbers that float32 alone would get wrong: units, far raws, small entries at free coordinates."""
    raw, A, lower, upper, low, high = (
        part.to(device).float() for part in flat_box(*box_family("plain", samples, 1, 6))
    )
    for unit in (2.0**-80, 2.0**-40, 1.0, 2.0**60):
        agree_in_short((raw, A * unit, lower * unit, upper * unit, low, high))
        agree_in_short((raw * unit, A, lower * unit, upper * unit, low * unit, high * unit))
    for unit in (2.0**-80, 2.0**-60):  # terms of the row below the smallest float32 number
        tiny = (raw * unit, A * unit, low * unit, high * unit)
        agree_in_short((*tiny[:2], lower * unit**2, upper * unit**2, *tiny[2:]))
        agree_in_short((*tiny[:2], 0 * lower, 0 * upper, -tiny[3].abs(), tiny[3].abs()))
    for far in (1e3, 1e8, 1e20):
        agree_in_short((raw * far, A, lower, upper, low, high))
        agree_in_short((raw + far, A, lower, upper, low, high))
    small = A * torch.tensor([1.0, 1e-3, 1e-6, 1.0, 1e-6, 1e-4], device=device)
    middle = 0.5 * (low.clamp_min(-9.0) + high.clamp_max(9.0))
    value = (small[:, 0] * middle).sum(-1, keepdim=True)
    agree_in_short((raw, small, value, value, low, high))
    agree_in_short((raw, small, value - 1e-4, value + 1e-4, low, high))


def compare_one_sided(device):
    """A row above its bound at raw, but below it after clamping to the box: the multiplier has the other sign."""
    raw, A, lower, _, low, high = (part.to(device) for part in box_family("plain", 60, 1, 5))
    flat = flat_box(raw[20:26], A[0], lower[20:26], None, low[20:26], high[0])
    agree_in_short(tuple(part.float() for part in flat))
    raw, A, lower, low, high = flat[0], flat[1], flat[2], flat[4], flat[5]
    mirrored = (-raw, A, torch.full_like(lower, -torch.inf), -lower, -high, -low)
    agree_in_short(tuple(part.float() for part in mirrored))
