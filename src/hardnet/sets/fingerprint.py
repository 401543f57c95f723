"""What a set with functions of x is known by in a file: the numbers of C(x) at an example, and what they allow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.errors import OptionError, sentence
from hardnet.sets.base import ConstraintSet

ROUNDINGS = 4096
"""How many roundings two evaluations of the same functions may differ by, relative to a number itself."""
LEAST = 16
"""The same relative to the largest number of their row, for numbers that are what is left of larger ones."""
PROBES = (0.0, 1.0, -1.0, 30.0)
"""Sizes of the points at which violations are compared: functions of y are in no number of the set."""


def fingerprint(constraint: ConstraintSet, x: Any, like: Tensor) -> dict[str, Tensor]:
    """The numbers of C(x) by place, and the violations of a few fixed points beside them.

    Args:
        constraint: The set.
        x: The example input.
        like: Gives batch, n, dtype and device, ``(*batch, n)``.
    """
    with torch.no_grad():
        numbers = constraint.numbers(x, like)
        wave = torch.cos(torch.arange(like.shape[-1], dtype=torch.float64) + 1).to(like)
        points = [(size * wave).expand_as(like) for size in PROBES]
        violations = torch.stack([constraint.residual(numbers, y) for y in points])
    named = {f"numbers.{place}": number for place, number in enumerate(_leaves(numbers))}
    return {name: value.detach().clone().contiguous() for name, value in {**named, "violations": violations}.items()}


def same(saved: Tensor, now: Tensor) -> bool:
    """Whether two evaluations agree to `ROUNDINGS` of their dtype, infinities and NaN in the same places."""
    there, here = (value.detach().cpu().double() for value in (saved, now))
    if there.shape != here.shape:
        return False
    finite = there.isfinite() & here.isfinite()
    rounding = torch.finfo(now.dtype).eps if now.is_floating_point() else 0.0
    size = torch.where(finite, torch.maximum(here.abs(), there.abs()), 0)
    largest = size.amax(-1, keepdim=True) if size.dim() and size.numel() else size
    close = (there - here).abs() <= rounding * torch.maximum(ROUNDINGS * size, LEAST * largest)
    return bool((close | (~finite & ((there == here) | (there.isnan() & here.isnan())))).all())


def flatten(x: Any, name: str) -> tuple[Any, dict[str, Tensor]]:
    """An input of tensors in tuples, lists and dicts, as its structure in JSON data and its tensors by name."""
    if isinstance(x, Tensor):
        return "tensor", {name: x.detach()}
    if x is None or isinstance(x, (bool, int, float, str)):
        return {"value": x}, {}
    if not isinstance(x, (tuple, list, dict)):
        expected = "a tensor, or tuples, lists and dicts of tensors"
        raise OptionError(sentence("example", expected, type(x).__name__))
    kind = next(kind for kind in (dict, list, tuple) if isinstance(x, kind))
    pairs = x.items() if isinstance(x, dict) else enumerate(x)
    parts = {str(key): flatten(value, f"{name}.{key}") for key, value in pairs}
    leaves = {place: leaf for _, own in parts.values() for place, leaf in own.items()}
    return {kind.__name__: {key: shape for key, (shape, _) in parts.items()}}, leaves


def unflatten(shape: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The input again; files without a structure hold one tensor."""
    if shape is None or shape == "tensor":
        return tensors[name]
    ((kind, parts),) = shape.items()
    if kind == "value":
        return parts
    values = {key: unflatten(part, f"{name}.{key}", tensors) for key, part in parts.items()}
    return values if kind == "dict" else list(values.values()) if kind == "list" else tuple(values.values())


def _leaves(numbers: Any) -> list[Tensor]:
    """The tensors of nested tuples, in order; absent bounds are left out."""
    if isinstance(numbers, Tensor):
        return [numbers]
    return [leaf for part in numbers for leaf in _leaves(part)] if isinstance(numbers, tuple) else []
