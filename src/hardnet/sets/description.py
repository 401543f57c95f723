"""A set as plain data: its class and where each argument comes from, so that a file can be checked against it."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from hardnet.errors import FileError
from hardnet.sets.base import ConstraintSet
from hardnet.sets.intersection import Intersection


def describe(constraint: ConstraintSet) -> dict[str, Any]:
    """The structure of a set as JSON data; the values of its constants are not part of it."""
    if isinstance(constraint, Intersection):
        return {"type": "Intersection", "members": [describe(part) for part in constraint.parts]}
    arguments = {name: _describe_argument(constraint, stored) for name, stored in _stored_names(constraint).items()}
    if constraint.name is None:  # files written before sets had names say nothing of them
        arguments.pop("name", None)
    return {"type": type(constraint).__name__, "arguments": arguments}


def rebuild(description: dict[str, Any], tensors: dict[str, Tensor]) -> ConstraintSet:
    """A constant set from its description and its tensors (named as in its state dict)."""
    if description["type"] == "Intersection":
        members = enumerate(description["members"])
        return Intersection([rebuild(member, _below(tensors, f"members.{i}.")) for i, member in members])
    kind = _kinds().get(description["type"])
    if kind is None:
        raise FileError(f"the file holds a set of type {description['type']!r}; pass it as constraint=")
    stored = _argument_names(kind)
    arguments = {
        name: _rebuild_argument(name, source, tensors.get(stored[name]))
        for name, source in description["arguments"].items()
    }
    return kind(**arguments)


def _describe_argument(constraint: ConstraintSet, stored: str) -> Any:
    """How one argument was given: a constant, a function or module (by name), a plain value, or not at all."""
    if stored in constraint._functions:
        function = constraint._functions[stored]
        return {"function": getattr(function, "__qualname__", type(function).__name__)}
    value = getattr(constraint, stored, None)
    if isinstance(value, nn.Parameter):
        return {"parameter": list(value.shape)}
    if isinstance(value, Tensor):
        return {"constant": list(value.shape)}
    return {"module": type(value).__name__} if isinstance(value, nn.Module) else {"value": value}


def _rebuild_argument(name: str, source: dict[str, Any], tensor: Tensor | None) -> Any:
    """One constructor argument from the file; functions and modules are code, which a file does not hold."""
    if "constant" in source:
        return tensor
    if "parameter" in source and tensor is not None:
        return nn.Parameter(tensor)
    if "value" in source:
        return source["value"]
    raise FileError(f"the saved constraint's '{name}' depends on x; pass the set as constraint= when loading")


def _stored_names(constraint: ConstraintSet) -> dict[str, str]:
    """Constructor argument -> attribute that stores it."""
    return _argument_names(type(constraint))


def _argument_names(kind: type[ConstraintSet]) -> dict[str, str]:
    """Constructor argument -> attribute, from the signature; a class may rename some in `stored_as`."""
    names = [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
    return {name: kind.stored_as.get(name, name) for name in names}


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
