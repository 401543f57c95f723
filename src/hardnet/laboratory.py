"""The one door to the laboratory, a distribution of its own (`hardnet_lab`), which the library never needs."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from hardnet.errors import MissingExtraError


def laboratory(module: str) -> ModuleType:
    """A module of `hardnet_lab`; where it is not installed, an error that says what to install."""
    try:
        return import_module(f"hardnet_lab.{module}")
    except ModuleNotFoundError as error:
        if error.name != "hardnet_lab":
            raise
        raise MissingExtraError("hardnet-lab") from None
