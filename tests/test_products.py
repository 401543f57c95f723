"""Products of a matrix and a vector: each is ``A v``, and those that promise it have the same bits in any batch."""

import pytest
import torch

from hardnet.products import (
    ALIGNMENT,
    LARGE,
    align,
    power_above,
    power_near,
    times,
    times_aligned,
    times_columnwise,
    times_each,
    times_rowwise,
    times_tiled,
)

D = torch.float64
SHAPES = [(1, 1), (3, 5), (8, 16), (70, 80)]


def aligned(A, v):
    return times_aligned(align(A, 2), align(v))[:, : A.shape[-2]]


def columnwise(A, v):
    return times_columnwise(A.mT.contiguous(), v)


EVERY = {
    "times": times,
    "each": times_each,
    "rowwise": times_rowwise,
    "columnwise": columnwise,
    "aligned": aligned,
    "tiled": times_tiled,
}
ALIKE = [
    (name, m, n, shared)
    for name in EVERY
    for m, n in SHAPES
    for shared in (True, False)
    if name not in ("times", "each", "tiled") or (name == "tiled" and shared and m * n >= LARGE)
]
"""What promises the same bits, and where: tiles serve a large matrix that all samples share."""


def draw(batch, m, n, shared):
    random = torch.Generator().manual_seed(m + n)
    A = torch.randn(1 if shared else batch, m, n, generator=random, dtype=D)
    return A, torch.randn(batch, n, generator=random, dtype=D)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("name", EVERY)
def test_each_variant_is_the_product(name, m, n, shared):
    A, v = draw(7, m, n, shared)
    own = A[0] if shared and name in ("times", "aligned") else A
    found = EVERY[name](own, v)
    terms = (A.abs() * v.abs().unsqueeze(-2)).sum(-1)
    expected = torch.stack([A[0 if shared else b] @ v[b] for b in range(7)])
    # n products and n sums, in either order: the bound of a computed inner product, twice
    assert ((found - expected).abs() <= 2 * n * torch.finfo(D).eps * terms).all()


@pytest.mark.parametrize(("name", "m", "n", "shared"), ALIKE)
def test_a_sample_has_the_same_bits_in_any_batch(name, m, n, shared):
    A, v = draw(13, m, n, shared)
    whole = EVERY[name](A, v)
    for part in (slice(0, 1), slice(12, 13), slice(3, 9)):
        assert torch.equal(EVERY[name](A if shared else A[part], v[part]), whole[part])


def test_align_fills_up_with_what_is_asked():
    filled = align(torch.ones(2, 3, 9, dtype=D), 2, absent=-1.0)
    assert filled.shape == (2, ALIGNMENT, 2 * ALIGNMENT)
    assert filled.sum() == 2 * (3 * 9 - (8 * 16 - 3 * 9))
    ready = torch.ones(2, 8, dtype=D)
    assert align(ready) is ready


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("power", [power_above, power_near])
def test_a_unit_is_a_finite_power_of_two_near_its_size(power, dtype):
    exponents = torch.arange(-100, 128, dtype=dtype)
    for mantissa in (1.0, 1.25, 1.75, 2 - 2 * torch.finfo(dtype).eps):
        size = mantissa * torch.exp2(exponents)
        size[-1] = torch.finfo(dtype).max * (mantissa / 2)
        unit = power(size)
        assert unit.isfinite().all()
        assert (torch.frexp(unit).mantissa == 0.5).all()
        assert ((size / unit >= 0.5) & (size / unit < 2)).all()
    assert power(torch.zeros(1, dtype=dtype)).item() == 1
