"""What holds for every test: the processes that it starts import the hardnet that it imports; and `blind`."""

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("HARDNET_NUMBA", "wait")  # what is computed must not depend on what is compiled by then

import hardnet
import hardnet_lab

SOURCES = dict.fromkeys(str(Path(package.__file__ or "").parents[1]) for package in (hardnet, hardnet_lab))


def pytest_configure():
    """Put the folders of hardnet and of its laboratory in front of PYTHONPATH, unless they are installed.

    Tests may run from sources (``PYTHONPATH=src``) in a folder of their own, where a relative path leads nowhere.
    """
    given = [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    own = [folder for folder in SOURCES if Path(folder).name != "site-packages"]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*own, *given]))


@pytest.fixture(autouse=True, scope="module")
def fresh_compiler():
    """What other files compiled does not count against the compiler's limit for one function."""
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


@pytest.fixture
def blind(monkeypatch):
    """As on a GPU: no value may be looked at."""
    for name, module in list(sys.modules.items()):
        if name.startswith("hardnet.") and hasattr(module, "may_look"):
            monkeypatch.setattr(module, "may_look", lambda _: False)
