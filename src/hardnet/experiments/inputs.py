"""What the command line takes from files and modules: inputs, networks, and the certificate of a saved model."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from hardnet.certificate import Certificate, check
from hardnet.errors import FileError, HardNetError, MissingExtraError, sentence
from hardnet.storage import load


def read_inputs(path: Path) -> Tensor:
    """Inputs x, one sample a row, from ``.safetensors`` (its tensor ``x``), ``.npy`` or ``.csv`` without a header."""
    readers: dict[str, Callable[[Path], Tensor]] = {".safetensors": _tensors, ".npy": _array, ".csv": _text}
    if path.suffix not in readers:
        raise HardNetError(sentence("data", f"a file of kind {', '.join(readers)}", repr(str(path))))
    try:
        x = readers[path.suffix](path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path}: not readable as inputs; {error}") from error
    if x.is_complex() or x.dtype == torch.bool:
        raise FileError(f"{path}: expected real numbers, got {x.dtype}")
    if x.dim() == 0 or x.numel() == 0:
        raise FileError(f"{path}: holds no samples, its shape is {tuple(x.shape)}")
    return x


def build(name: str) -> nn.Module:
    """The network that ``module:function`` builds; modules of the working directory are found."""
    module, colon, function = name.partition(":")
    if not colon:
        raise HardNetError(sentence("--net", "module:function", repr(name)))
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        network = getattr(import_module(module), function)()
    except Exception as error:  # code of the user, which may fail in any way
        raise HardNetError(f"--net: {name} cannot be called; {error or type(error).__name__}") from error
    if not isinstance(network, nn.Module):
        raise HardNetError(sentence("--net", "a function that returns a module", type(network).__name__))
    return network


def certify(folder: Path, data: Path, net: str, tolerance: float | None = None) -> Certificate:
    """The certificate of a saved model on the inputs of a file; whatever stands in its way is an error of hardnet."""
    model, x = load(folder, build(net)).eval(), read_inputs(data)
    try:
        with torch.no_grad():
            x = x.to(next(model.parameters(), x.double()))
            return check(model.constraint, model(x), x, tolerance=tolerance)
    except HardNetError:
        raise
    except Exception as error:  # the network and the functions of x are code of the user
        raise HardNetError(f"{data}: could not be judged; {type(error).__name__}: {error}") from error


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

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an empty file is refused by its shape
        return torch.from_numpy(np.loadtxt(path, delimiter=",", ndmin=2))
