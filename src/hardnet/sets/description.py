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
        members = [describe(part) for part in constraint.parts]
        return {"type": "Intersection", "members": members, "name": constraint.name}
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
    if description["type"] == "Intersection":
        members = enumerate(description["members"])
        parts = [rebuild(member, _below(tensors, f"members.{i}.")) for i, member in members]
        return Intersection(parts, name=description.get("name"))
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
