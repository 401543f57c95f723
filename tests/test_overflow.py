"""Raws so large that sums of them overflow: what comes back finite and without a warning satisfies its rows."""

import math
import warnings

import pytest
import torch

import hardnet as hn
from hardnet.errors import HardNetError
from hardnet.kernels.cpu import launch
from tests.kernels.interpreter import interpret
from tests.kernels.overflow_cases import compare_answers, raws

D = torch.float64


def families(n, draw):
    """Sets that are solved in different ways, each within a few units of zero."""
    one = torch.ones(n, dtype=D)
    rows = lambda count: draw(count, n)
    return {
        "simplex": hn.Simplex(n),
        "two rows": hn.Affine(rows(2), lower=-one[:2], upper=one[:2]),
        "four rows": hn.Affine(rows(4), upper=torch.ones(4, dtype=D)),
        "equalities": hn.Affine(rows(2), lower=one[:2], upper=one[:2]),
        "eight rows": hn.Affine(rows(8), upper=torch.ones(8, dtype=D)),
        "box and row": hn.Box(-one, one) & hn.Affine(rows(1), lower=0 * one[:1], upper=0 * one[:1]),
        "half space and row": hn.Box(lower=0 * one) & hn.Affine(rows(1).abs(), upper=one[:1]),
        "half space and rows": hn.Box(lower=0 * one) & hn.Affine(rows(2).abs(), upper=one[:2]),
    }


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("method", ["auto", "projection", "aff"])
@pytest.mark.parametrize("compiled", [False, True])
def test_no_layer_is_silently_wrong_where_sums_overflow(monkeypatch, n, method, compiled):
    monkeypatch.setattr(launch, "HAS_NUMBA", compiled and launch.HAS_NUMBA)
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=D)
    for name, constraint in families(n, draw).items():
        for raw in raws(n, D):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                try:
                    y = hn.HardNet(torch.nn.Identity(), constraint, method=method)(raw)
                except HardNetError:  # loud, or a method that does not express the set
                    continue
            silent = y.isfinite().all(-1) if not said else torch.zeros(len(y), dtype=torch.bool)
            holds = hn.check(constraint, y).holds.flatten(1).all(-1)
            assert (holds | ~silent).all(), (name, math.log10(raw.abs().max()), y[~holds & silent][0])


def test_kernels_of_a_gpu_are_not_silently_wrong_where_sums_overflow():
    interpret("overflow_cases", "compare_answers('cpu', 6)")


@pytest.mark.gpu
def test_kernels_on_a_device_are_not_silently_wrong_where_sums_overflow():
    compare_answers("cuda", 60)
