"""What the command line takes from files and modules: inputs of a model, and the function that builds a network."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from hardnet.errors import FileError, HardNetError, MissingExtraError, sentence


def read_inputs(path: Path) -> Tensor:
    """Inputs x, one sample a row, from ``.safetensors`` (its tensor ``x``), ``.npy`` or ``.csv`` without a header."""
    readers: dict[str, Callable[[Path], Tensor]] = {".safetensors": _tensors, ".npy": _array, ".csv": _text}
    if path.suffix not in readers:
        raise HardNetError(sentence("data", f"a file of kind {', '.join(readers)}", repr(str(path))))
    try:
        return readers[path.suffix](path)
    except (OSError, ValueError, KeyError) as error:
        raise FileError(f"{path}: not readable as inputs; {error}") from error


def build(name: str) -> nn.Module:
    """The network that ``module:function`` builds; modules of the working directory are found."""
    module, colon, function = name.partition(":")
    if not colon:
        raise HardNetError(sentence("--net", "module:function", repr(name)))
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        network = getattr(import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise HardNetError(f"--net: {name} cannot be called; {error}") from error
    if not isinstance(network, nn.Module):
        raise HardNetError(sentence("--net", "a function that returns a module", type(network).__name__))
    return network


def _tensors(path: Path) -> Tensor:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise MissingExtraError("safetensors", "save") from error
    try:
        return safetensors.torch.load_file(path)["x"]
    except safetensors.SafetensorError as error:
        raise ValueError(error) from error


def _array(path: Path) -> Tensor:
    import numpy as np

    return torch.from_numpy(np.load(path, allow_pickle=False))


def _text(path: Path) -> Tensor:
    import numpy as np

    return torch.from_numpy(np.loadtxt(path, delimiter=",", ndmin=2))
