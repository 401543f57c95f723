"""The numbers published in the paper, as data."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

Published = dict[str, list[float]]
"""Metric to mean and standard deviation; the times are ``test_ms`` and ``train_s``."""


@cache
def _content() -> dict[str, Any]:
    return json.loads((resources.files("hardnet_lab.experiments") / "data" / "paper.json").read_text())


def published(problem: str) -> dict[str, Published]:
    """The rows of the paper's table for a problem, by method; empty where it has none."""
    return _content()["problems"].get(problem, {})


def hardware() -> str:
    """The hardware on which the paper's times were measured."""
    return _content()["device"]
