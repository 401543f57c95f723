"""The public surface is the promise of the design."""

import pytest

import hardnet as hn

pytestmark = pytest.mark.core

PROMISED = (
    "Affine Equality Box Simplex Transport DoublyStochastic Ball L1Ball Quadratic SecondOrderCone LMI Cvxpy Nonlinear "
    "Monotone Horizon HardNet explain methods check "
    "save load functional solvers testing errors layers sets metrics"
).split()


@pytest.mark.parametrize("name", PROMISED)
def test_promised_name(name):
    assert hasattr(hn, name)
    assert name in hn.__all__


@pytest.mark.parametrize("name", ["enforce_affine", "project_affine"])
def test_promised_function(name):
    assert hasattr(hn.functional, name)


def test_promised_methods():
    promised = "aff aff-eq projection cvx nonlinear union dc3 soft none rayen linsat cdgm cone police kkt-hpinn acnet"
    assert set(hn.layers.LAYERS) == set(promised.split())


def test_error_family():
    for name in ("ShapeError", "DTypeError", "NonFiniteError", "BoundsError", "RankError", "InfeasibleError"):
        assert issubclass(getattr(hn.errors, name), hn.errors.HardNetError)
    assert issubclass(hn.errors.UnsupportedSetError, ValueError)
