"""Checks for the GPU kernels of a box and several rows, run by the interpreter and on a device."""

import torch

from hardnet.kernels.gpu.nearest import BoxRows
from hardnet.nearest.derivative import first
from hardnet.rows import Batch
from hardnet.solvers.polyhedron.box_rows import solve
from hardnet.solvers.solution import Found
from tests.solvers.box_families import KINDS, D, box_family, flat_box

EPS = torch.finfo(D).eps
SHORT = torch.finfo(torch.float32).eps


def outcome(flat, rounding=EPS):
    return Found(*BoxRows().forward(flat, rounding))


def on(device, kind, samples, k, n, seed=0):
    return tuple(part.to(device) for part in flat_box(*box_family(kind, samples, k, n, seed=seed)))


def size_of(flat):
    return flat[0].abs().amax(-1).clamp_min(1.0)


def holds(y, flat, rounding):
    """Y is exactly in the box, and its rows hold to what a certificate allows."""
    y, (_, A, lower, upper, low, high) = y.double(), (part.double() for part in flat)
    product = (A * y[:, None]).sum(-1)
    size = A.abs().sum(-1) * y.abs().amax(-1, keepdim=True) + lower.nan_to_num(0, 0, 0).abs()
    size = size + upper.nan_to_num(0, 0, 0).abs()
    outside = torch.maximum(lower - product, product - upper).clamp_min(0)
    return ((y >= low) & (y <= high)).all(-1) & (outside <= 16 * rounding * size).all(-1)


def agree(flat):
    """Compare status, and y to the conditioning of the projection; every answer is in the set, in float32 too."""
    found, plain = outcome(flat), solve(*flat, rounding=EPS)
    settled = (plain.status != 2) & (plain.status != 4)  # it leaves some open that the kernel solves
    worse = (found.status != plain.status) & settled
    assert not worse.any(), (worse.nonzero().flatten(), found.status[worse], found.residual[worse])
    good = (found.status == 0) & (plain.status == 0)
    assert ((found.y - plain.y).abs().amax(-1)[good] <= 1e-10 * size_of(flat)[good]).all()
    assert holds(found.y, flat, EPS)[found.status == 0].all()
    assert torch.equal(found.y.isnan().any(-1), (found.status != 0) & (found.status != 4))
    assert (found.residual[good] <= 8 * EPS).all()
    torch.testing.assert_close(BoxRows().answer(flat), found.y, rtol=0, atol=0, equal_nan=True)
    short = tuple(part.float() for part in flat)
    wide = tuple(part.double() for part in short)
    y, expected = BoxRows().answer(short), outcome(wide, SHORT)
    assert torch.equal(y, expected.y.float()) or torch.equal(y.isnan(), expected.y.isnan())
    solved = ~y.isnan().any(-1)
    assert holds(y, short, SHORT)[solved].all()
    return found, plain


def compare(device, shapes, samples, kinds=KINDS):
    for kind in kinds:
        for k, n in shapes:
            agree(on(device, kind, samples, k, n, seed=n))


def compare_shared(device, samples, k=3):
    """Shared numbers, absent bounds, one-sided rows, and each of these together with numbers per sample."""
    raw, A, lower, upper, low, high = (part.to(device) for part in box_family("plain", samples, k, 5))
    agree(flat_box(raw, A[0], lower[0], upper[0], low[0], high[0]))
    agree(flat_box(raw, A[0], None, upper[0], low, high[0]))
    agree(flat_box(raw, A, lower, None, low[0], None))
    agree(flat_box(raw, A[0], lower[0], lower[0], None, None))
    agree(flat_box(raw, A, None, None, low, high))


def compare_bad_samples(device, k=3):
    """Empty sets are proved empty, bad numbers are invalid, and neither changes a bit of their mates."""
    raw, A, lower, upper, low, high = (part.clone() for part in box_family("plain", 11, k, 5))
    lower[0, 1], upper[0, 1] = 50.0, 60.0
    A[1, 1], lower[1, :2], upper[1, :2] = -A[1, 0], 1.0, 2.0  # contradicts row 0 wherever the box is
    low[1], high[1] = -100.0, 100.0
    raw[2, 1], A[3, 0, 2], low[4, 0], lower[5, 1] = torch.nan, torch.inf, high[4, 0] + 1, torch.nan
    A[6, 2], lower[6, 2], upper[6, 2] = 0.0, 1.0, 2.0
    low[7, 1], high[7, 1], A[8, 0, 1] = torch.inf, torch.inf, torch.nan
    flat = flat_box(*(part.to(device) for part in (raw, A, lower, upper, low, high)))
    found = outcome(flat)
    assert found.status.tolist() == [1, 1, 3, 3, 3, 3, 1, 3, 3, 0, 0]
    for sample in (0, 1, 6):
        proves_empty(found.dual[sample], *(part[sample] for part in flat[1:]))
    sound = flat_box(*(part[9:].to(device) for part in (raw, A, lower, upper, low, high)))
    assert torch.equal(found.y[9:], outcome(sound).y)


def proves_empty(dual, A, lower, upper, low, high):
    """The least of ``dual'A y`` over the box is above the most that the rows allow."""
    slope = dual @ A
    slope = torch.where(slope.abs() > 64 * EPS * (dual.abs() @ A.abs()), slope, 0.0)
    least = torch.where(slope > 0, slope * low, torch.where(slope < 0, slope * high, 0.0)).sum()
    most = torch.where(dual > 0, dual * upper, torch.where(dual < 0, dual * lower, 0.0)).sum()
    assert least > most


def compare_inside(device, k=3):
    """A raw in the set is returned bit for bit, in both precisions."""
    flat = on(device, "plain", 6, k, 6)
    y = outcome(flat).y
    again = outcome((y, *flat[1:]))
    assert torch.equal(again.y, y)
    assert (again.dual == 0).all()
    short = tuple(part.float() for part in flat)
    y = BoxRows().answer(short)
    assert torch.equal(BoxRows().answer((y, *short[1:])), y)


def compare_units(device, k=3):
    """Scaling by powers of two changes no bit, up to the largest numbers."""
    raw, A, lower, upper, low, high = flat = on(device, "plain", 4, k, 6)
    y = outcome(flat).y
    for unit in (2.0**-600, 2.0**800):
        assert torch.equal(outcome((raw, A * unit, lower * unit, upper * unit, low, high)).y, y)
        scaled = outcome((raw * unit, A, lower * unit, upper * unit, low * unit, high * unit))
        assert torch.equal(scaled.y, y * unit)


def compare_gradients(device, shapes, samples, kinds=KINDS):
    """The gradients of all six inputs beside those in plain torch, per sample and shared."""
    for kind in kinds:
        for k, n in shapes:
            flat = on(device, kind, samples, k, n, seed=n)
            compare_gradient(flat)
            compare_gradient((flat[0], *(part[:1] for part in flat[1:])))


def compare_gradient(flat):
    grad = torch.linspace(-1, 2, flat[0].numel(), dtype=D, device=flat[0].device).reshape(flat[0].shape).contiguous()
    found = outcome(flat)
    needed = (True,) * 6
    numbers = [part[0] if len(part) == 1 < len(flat[0]) else part for part in flat]
    rows = Batch(*numbers[:4], None, *numbers[4:], look=True)
    plain = first(grad, rows, found, needed)
    plain = [part.reshape(like.shape) for part, like in zip(plain, flat, strict=True)]
    passed = BoxRows().backward(grad, flat, found[:5], needed)
    for number, (ours, theirs) in enumerate(zip(passed, plain, strict=True)):
        size = 1 + theirs.abs().amax()
        assert ours.shape == theirs.shape
        assert ((ours - theirs).abs() <= 1e-9 * size).all(), (number, (ours - theirs).abs().max())
    some = BoxRows().backward(grad, flat, found, (True, False, True, True, False, False))
    assert some[1] is some[4] is some[5] is None
    assert torch.equal(some[0], passed[0])
