"""Pinet itself beside us: its own plan and ours, and, where the package is installed, that its layer runs."""

import math

import pytest

from benchmarks import pinet_suite as pinet
from hardnet_lab.experiments.suites.catalog import WIDE
from hardnet_lab.problems.suites import SuitePrograms


def small():
    return SuitePrograms("programs-small", 6, 3, 2, samples=60)


def test_the_wide_plan_is_our_recipe():
    plans = pinet.plans(small(), WIDE)
    assert plans["own"][1:6] == ((200, 200), "relu", 50, 2048, 1e-2)
    wide = plans["wide"]
    assert (wide.sizes, wide.epochs, wide.rate) == (WIDE.hidden.sizes, WIDE.epochs, WIDE.settings["learning_rate"])
    assert wide.skip
    assert wide.cosine


@pytest.mark.peers
def test_its_layer_trains(monkeypatch):
    pytest.importorskip("pinet")
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    monkeypatch.setitem(pinet.SIGMA, 6, 1.0)
    plan = pinet.plans(small(), WIDE)["own"]._replace(batch=25, epochs=20)
    made = pinet.result(small(), "own", plan, [1])
    assert all(math.isfinite(value[0]) for value in made.metrics.values())
    assert made.label.endswith("its own network")
