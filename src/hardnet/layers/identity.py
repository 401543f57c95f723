"""The method and options that a state dict or a file belongs to, as JSON data to compare a layer with."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import StateError
from hardnet.layers.options import LayerOptions

UNNAMED = (
    "the state dict does not say which method and options it was made with, as those of hardnet 0.1; it is taken to be "
    "method '{method}' with the options of this layer"
)


def plain(options: LayerOptions) -> dict[str, Any]:
    """The options as JSON returns them: tuples and tensors become lists, and code is represented by its type alone."""
    return _as_json({own.name: getattr(options, own.name) for own in fields(options)})


def _as_json(content: Any) -> Any:
    """Anything as plain JSON data."""
    return json.loads(json.dumps(content, default=_stand_in))


def _stand_in(value: Any) -> Any:
    """The JSON replacement for a value that is not plain data."""
    return value.tolist() if isinstance(value, Tensor) else f"<{type(value).__name__}>"


def pack(method: str, options: LayerOptions) -> Tensor:
    """Method and options as bytes ``(length,)`` uint8, on the CPU regardless of the default device."""
    text = json.dumps({"method": method, "options": plain(options)}, sort_keys=True)
    return torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")


def refuse_other(state: Any, method: str, options: LayerOptions) -> None:
    """Refuse bytes from `pack` of another method or other options, naming what differs."""
    try:
        saved = json.loads(bytes(state.cpu().tolist()))
        wrong = differences(saved["method"], saved["options"], method, options)
    except (AttributeError, ValueError, TypeError, KeyError) as error:
        raise StateError(f"the state dict names method and options in a way that cannot be read; {error}") from error
    if wrong:
        raise StateError(f"the state dict belongs to another layer: {'; '.join(wrong)}; build the model that was saved")


def differences(saved_method: str, saved_options: dict[str, Any], method: str, options: LayerOptions) -> list[str]:
    """What differs between the saved and the present method and options, in words.

    An option missing from a file did not exist when the file was written; it is taken to have its default value.
    """
    if saved_method != method:
        return [f"method saved {saved_method!r}, given {method!r}"]
    default = {own.name: own.default for own in fields(options) if own.default is not MISSING}
    then, now = _as_json(default) | options.renamed(dict(saved_options)), plain(options)
    names = dict.fromkeys([*now, *then])
    pairs = ((name, then.get(name), now.get(name)) for name in names)
    return [f"option '{name}' saved {old!r}, given {new!r}" for name, old, new in pairs if old != new]
