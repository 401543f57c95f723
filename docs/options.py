"""An extension of griffe: the signatures of layers show their options, as `inspect.signature` does."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import griffe


class OptionsInSignatures(griffe.Extension):
    """Replace ``**options`` in the constructors of layers."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Ask Python for the signature of each class of `hardnet.layers` that has options."""
        rooms = pkg.members.get("layers")
        for module in rooms.modules.values() if pkg.name == "hardnet" and rooms is not None else ():
            for found in module.classes.values():
                init = found.members.get("__init__")
                if "Options" in found.members and isinstance(init, griffe.Function):
                    init.parameters = _parameters(getattr(import_module(module.path), found.name))


def _parameters(layer: type) -> griffe.Parameters:
    """The parameters of its constructor."""
    own = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    return griffe.Parameters(own, *map(_parameter, inspect.signature(layer).parameters.values()))


def _parameter(given: inspect.Parameter) -> griffe.Parameter:
    kind = griffe.ParameterKind.keyword_only
    if given.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
        kind = griffe.ParameterKind.positional_or_keyword
    default = None if given.default is inspect.Parameter.empty else repr(given.default)
    return griffe.Parameter(given.name, annotation=str(given.annotation), kind=kind, default=default)
