"""Other papers' benchmarks under one command: ``hardnet suite NAME``.

A suite is data: a `Suite` and its `Case`s, one file per suite in this folder. To add one, write its problem
(`hardnet_lab.problems.suites`), its file here, its published numbers (``experiments/data/suites/NAME.json``), and an
entry in `SUITES`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from hardnet.errors import HardNetError, sentence
from hardnet_lab.experiments.suites.base import Case, Suite

PACKAGE = "hardnet_lab.experiments.suites"
SUITES = ("dc3", "pinet", "snarenet", "fsnet", "hardnetpp", "acopf")
"""Every suite; the module of the same name in this folder defines it as `SUITE`."""


def known_suites() -> list[str]:
    """The suites whose modules exist."""
    return [name for name in SUITES if find_spec(f"{PACKAGE}.{name}") is not None]


def find_suite(name: str) -> Suite:
    """The suite with this name; its problems are not built yet."""
    if name not in known_suites():
        raise HardNetError(sentence("suite", f"one of {', '.join(known_suites())}", repr(name)))
    return import_module(f"{PACKAGE}.{name}").SUITE


def find_case(name: str) -> tuple[Suite, Case] | None:
    """The suite and the case whose results have this name; None if no suite has such a case."""
    for suite in map(find_suite, known_suites()):
        for case in suite.cases:
            if case.name == name:
                return suite, case
    return None
