"""One test of all routes: whatever stands around a call and whoever computes, y and every gradient are the same.

The reference is plain torch in an eager call. Samples of a family have rows whose activity is decided by more than the
tolerance: see `tests.routes`. A difference that is known stands in `KNOWN` with its reason.
"""

import os
from contextlib import nullcontext
from importlib.util import find_spec

import pytest
import torch

from hardnet.errors import UnsupportedSetError
from tests.routes import FAMILIES, ROUTES, call, differences, outcome, patched

LONG = ("box and 3 rows", "nonlinear", "relaxed", "metric", "quadratic")
"""What a compiler takes 2 to 20 s for, where another family has the same code for it."""
QUICK = ("eager", "alone", "blind", "checkpointed", "vmap")
GRAPHS = ("vmap", "compiled", "exported")


@pytest.fixture(scope="module")
def expected():
    """y and gradients by plain torch, family by family."""
    known = {}

    def of(name):
        if name not in known:
            with patched("HAS_NUMBA", False):
                known[name] = outcome(FAMILIES[name], call)
        return known[name]

    return of


@pytest.fixture(params=["numba", "torch"])
def computed(request):
    """With kernels of numba, where it is installed and not switched off, or without."""
    if request.param == "numba" and not NUMBA:
        pytest.skip("numba is not there, or switched off")
    with nullcontext() if request.param == "numba" else patched("HAS_NUMBA", False):
        yield request.param


NUMBA = find_spec("numba") is not None and os.environ.get("HARDNET_NUMBA") != "0"


def marked(route, name):
    """Quick routes belong to the core; a few of the others take long."""
    marks = [pytest.mark.core] * (route in QUICK) + [pytest.mark.slow] * (
        route in ("compiled", "exported") and name in LONG
    )
    return pytest.param(route, name, marks=marks)


@pytest.mark.parametrize(("route", "name"), [marked(route, name) for route in ROUTES for name in FAMILIES])
def test_every_route_gives_the_same_y_and_the_same_gradients(route, name, computed, expected):
    family = FAMILIES[name]
    if route in family.refuses:
        with pytest.raises(UnsupportedSetError):
            outcome(family, ROUTES[route])
        return
    if computed == ("torch" if NUMBA and route == "compiled" else "numba") and route in GRAPHS:
        pytest.skip("kernels take part in a compiled call alone, where few families have them: once is enough")
    assert differences(family, outcome(family, ROUTES[route]), expected(name)) == []


@pytest.mark.core
@pytest.mark.parametrize("name", FAMILIES)
def test_samples_without_a_point_are_nan_and_have_no_gradient(name, expected):
    y, gradients = expected(name)
    empty = torch.zeros(len(y), dtype=torch.bool)
    empty[list(FAMILIES[name].empty)] = True
    torch.testing.assert_close(y.isnan().any(-1), empty, rtol=0, atol=0)
    for gradient in gradients.values():
        if len(gradient) == len(y):
            assert not gradient[empty].any()
    assert gradients["raw"][~empty].any()


@pytest.mark.core
@pytest.mark.parametrize("planted", ["y", "gradient", "nan"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_planted_difference_is_seen(name, planted, expected):
    """A route that is off in one number of one sample."""

    def off(layer, raw, x):
        y = layer(raw, x)
        one = torch.zeros_like(y)
        one[0, 0] = {
            "y": 10 * FAMILIES[name].tolerance * (1 + y.nan_to_num().abs().max().item()),
            "nan": torch.nan,
        }.get(planted, 0)
        return y + one if planted != "gradient" else y + (y - y.detach()) * 1e-3

    assert differences(FAMILIES[name], outcome(FAMILIES[name], off), expected(name))


def captured(layer, raw, x):
    """Forward and backward as one CUDA graph, replayed once; a Function hands its gradients on."""
    return torch.cuda.make_graphed_callables(_Flat(layer, list(x)), (raw, *x.values()))(raw, *x.values())


class _Flat(torch.nn.Module):
    """A layer whose input is a list of tensors."""

    def __init__(self, layer, names):
        super().__init__()
        self.layer, self.names = layer, names

    def forward(self, raw, *numbers):
        return self.layer(raw, dict(zip(self.names, numbers, strict=True)))


@pytest.mark.gpu
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("route", ["eager", "captured"])
def test_a_gpu_gives_the_same(route, name, expected):
    if name == "sparse rows" or (route, name) == ("captured", "nonlinear"):
        pytest.skip("on a CPU alone, or in passes whose number the values decide")
    found = outcome(FAMILIES[name], captured if route == "captured" else call, "cuda")
    assert differences(FAMILIES[name], found, expected(name)) == []
