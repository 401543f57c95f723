"""A set as plain data: its class and where each argument comes from, so that a file can be checked against it."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from hardnet.errors import FileError, OptionError, sentence
from hardnet.sets.base import ConstraintSet
from hardnet.sets.intersection import Intersection
from hardnet.sets.union import Union


def describe(constraint: ConstraintSet) -> dict[str, Any]:
    """The structure of a set as JSON data; the values of its constants are not part of it."""
    if isinstance(constraint, Intersection | Union):
        members = constraint.parts if isinstance(constraint, Intersection) else constraint.pieces
        name = type(constraint).__name__
        return {"type": name, "members": [describe(part) for part in members], "name": constraint.name}
    names = _argument_names(type(constraint))
    arguments = {name: _describe_argument(constraint, stored) for name, stored in names.items()}
    return {"type": type(constraint).__name__, "arguments": arguments}


def same_structure(saved: dict[str, Any], given: dict[str, Any]) -> bool:
    """Whether two descriptions are of one set, as far as its structure tells.

    How a function or a set is called does not matter, nor that an argument was left out which did not exist yet.
    """
    return _essence(saved) == _essence(given)


def function_names(description: Any) -> list[str]:
    """The arguments that are functions, of a set and its members: code, which a file does not hold."""
    if isinstance(description, list):
        return [name for part in description for name in function_names(part)]
    if not isinstance(description, dict):
        return []
    own = [name for name, source in description.items() if isinstance(source, dict) and source.keys() == {"function"}]
    return own + [name for part in description.values() for name in function_names(part)]


def rebuild(description: dict[str, Any], tensors: dict[str, Tensor]) -> ConstraintSet:
    """A constant set from its description and its tensors (named as in its state dict)."""
    joined = {"Intersection": Intersection, "Union": Union}.get(description["type"])
    if joined is not None:
        members = enumerate(description["members"])
        parts = [rebuild(member, _below(tensors, f"members.{i}.")) for i, member in members]
        return joined(parts, name=description.get("name"))
    kind = _kinds().get(description["type"])
    if kind is None:
        raise FileError(f"the file holds a set of type {description['type']!r}; pass it as constraint=")
    stored = _argument_names(kind)
    arguments = {
        name: _rebuild_argument(name, source, stored[name], tensors)
        for name, source in description["arguments"].items()
    }
    return kind(**arguments)


def _essence(description: Any) -> Any:
    """A description without what people call things, and without arguments that were not given."""
    if isinstance(description, list):
        return [_essence(part) for part in description]
    if not isinstance(description, dict):
        return description
    if description.keys() == {"function"}:
        return "function"
    kept = {key: _essence(value) for key, value in description.items() if key != "name"}
    return {key: value for key, value in kept.items() if value != {"value": None}}


def _describe_argument(constraint: ConstraintSet, stored: str | tuple[str, ...]) -> Any:
    """How one argument was given: a constant, a function or module (by name), a plain value, or not at all."""
    if isinstance(stored, tuple):
        return {"tuple": [_describe_argument(constraint, part) for part in stored]}
    if stored in constraint._functions:
        function = constraint._functions[stored]
        return {"function": getattr(function, "__qualname__", type(function).__name__)}
    value = getattr(constraint, stored, None)
    if isinstance(value, ConstraintSet):
        return {"set": describe(value)}
    if isinstance(value, nn.Parameter):
        return {"parameter": list(value.shape)}
    if isinstance(value, Tensor):
        return {"constant": list(value.shape)}
    if isinstance(value, nn.Module):
        return {"module": type(value).__name__}
    return {"function": type(value).__name__} if callable(value) else {"value": value}


def _rebuild_argument(
    name: str, source: dict[str, Any], stored: str | tuple[str, ...], tensors: dict[str, Tensor]
) -> Any:
    """One constructor argument from the file; functions and modules are code, which a file does not hold."""
    if isinstance(stored, tuple):
        parts = zip(source["tuple"], stored, strict=True)
        return tuple(_rebuild_argument(name, part, own, tensors) for part, own in parts)
    if "constant" in source:
        return tensors[stored]
    if "parameter" in source:
        return nn.Parameter(tensors[stored])
    if "set" in source:
        return rebuild(source["set"], _below(tensors, f"{stored}."))
    if "value" in source:
        return source["value"]
    raise FileError(
        f"the saved constraint's '{name}' depends on x; pass the set as constraint=, or the whole HardNet as net"
    )


def _argument_names(kind: type[ConstraintSet]) -> dict[str, str | tuple[str, ...]]:
    """Constructor argument -> attribute, or those of a tuple; a class may rename some in `stored_as`, or split them."""
    names = [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
    return {name: kind.split.get(name, kind.stored_as.get(name, name)) for name in names}


def _kinds() -> dict[str, type[ConstraintSet]]:
    """Every set class that is loaded, by name: hardnet's own and the user's."""
    found: dict[str, type[ConstraintSet]] = {}
    pending = [ConstraintSet]
    while pending:
        for kind in pending.pop().__subclasses__():
            found.setdefault(kind.__name__, kind)
            pending.append(kind)
    return found


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, with the prefix taken off."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


# What a set with functions of x is known by in a file: the numbers of C(x) at an example, and what they allow.


FINGERPRINT_ROUNDINGS = 4096
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
    """Whether two evaluations agree to `FINGERPRINT_ROUNDINGS` of their dtype, infinities and NaN in their places."""
    there, here = (value.detach().cpu().double() for value in (saved, now))
    if there.shape != here.shape:
        return False
    finite = there.isfinite() & here.isfinite()
    rounding = torch.finfo(now.dtype).eps if now.is_floating_point() else 0.0
    size = torch.where(finite, torch.maximum(here.abs(), there.abs()), 0)
    largest = size.amax(-1, keepdim=True) if size.dim() and size.numel() else size
    close = (there - here).abs() <= rounding * torch.maximum(FINGERPRINT_ROUNDINGS * size, LEAST * largest)
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
