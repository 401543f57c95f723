"""save / load: a folder with the weights (safetensors) and what they belong to (JSON); never a pickle."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hardnet.errors import FileError, MissingExtraError
from hardnet.layers.base import Layer
from hardnet.layers.registry import LAYERS
from hardnet.model import HardNet
from hardnet.sets.base import ConstraintSet
from hardnet.sets.description import describe, rebuild

FORMAT = 1
WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
EXAMPLE = "example."
"""Prefix of the tensors that hold the example input and the set's numbers there."""


def save(model: HardNet, path: str | Path, *, example: Tensor | None = None) -> None:
    """Save a model to the folder `path`: weights, method, and a description of its constraint.

    Args:
        model: The model.
        path: The folder to write; an existing one is replaced as a whole, so it is never half written.
        example: An input for a set that depends on x: the numbers of C(example) are saved too, and a load with a
            constraint that gives other numbers there is refused.
    """
    tensors = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
    if example is not None:
        tensors |= _example_tensors(model, example)
    description = {
        "format": FORMAT,
        "method": model.method,
        "options": _options(model.layer),
        "leak": model.leak,
        "dtype": str(next((p.dtype for p in model.parameters()), torch.float32)),
        "constraint": describe(model.constraint),
    }
    _replace_folder(Path(path), tensors, description)


def load(path: str | Path, net: nn.Module, constraint: ConstraintSet | None = None) -> HardNet:
    """Load a model that enforces, from the folder that `save` wrote.

    Args:
        path: The folder.
        net: A network of the saved architecture, or a whole `HardNet`; its weights are overwritten.
        constraint: The set. A constant set is rebuilt from the file; one with functions of x or learned numbers must
            be given again, and is refused where it is not the one saved.
    """
    description = _read_description(Path(path))
    tensors = _read_tensors(Path(path) / WEIGHTS)
    model = net if isinstance(net, HardNet) else _assemble(net, constraint, description, tensors)
    _require_same(model.constraint, description["constraint"], path)
    weights = {name: value for name, value in tensors.items() if not name.startswith(EXAMPLE)}
    _require_same_constants(model, weights, path)
    _load_weights(model, weights, path)
    _require_same_numbers(model, tensors, path)
    return model


def _assemble(
    net: nn.Module, constraint: ConstraintSet | None, description: dict[str, Any], tensors: dict[str, Tensor]
) -> HardNet:
    """Join the network with the given set, or with the one that the file describes."""
    if constraint is None:
        prefix = "layer.constraint."
        own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        constraint = rebuild(description["constraint"], own)
    layer = LAYERS.get(description["method"])
    if layer is None:
        raise FileError(f"the file was saved with method {description['method']!r}, which this installation lacks")
    return HardNet(net, constraint, layer(constraint, **description["options"]), leak=description["leak"])


def _options(layer: Layer) -> dict[str, Any]:
    """The layer's own options as JSON data."""
    return asdict(layer.options)


def _require_same(constraint: ConstraintSet, saved: dict[str, Any], path: str | Path) -> None:
    """Refuse a set of another structure than the saved one."""
    given = describe(constraint)
    if given != saved:
        raise FileError(f"{path}: the constraint is not the one saved; saved {saved}, given {given}")


def _require_same_constants(model: HardNet, weights: dict[str, Tensor], path: str | Path) -> None:
    """Refuse a set whose constants differ from the saved ones."""
    for name, constant in model.constraint.named_buffers():
        saved = weights.get(f"layer.constraint.{name}")
        if saved is None or saved.shape != constant.shape or not torch.equal(saved.to(constant), constant):
            raise FileError(f"{path}: the constraint is not the one saved; its constant '{name}' differs")


def _require_same_numbers(model: HardNet, tensors: dict[str, Tensor], path: str | Path) -> None:
    """Refuse a set whose functions of x give other numbers at the saved example."""
    saved = {name: value for name, value in tensors.items() if name.startswith(EXAMPLE)}
    if not saved:
        return
    for name, value in _example_tensors(model, saved[f"{EXAMPLE}x"]).items():
        if not torch.allclose(value, saved[name].to(value), equal_nan=True):
            raise FileError(f"{path}: the constraint is not the one saved; it gives other numbers at the saved example")


def _example_tensors(model: HardNet, example: Tensor) -> dict[str, Tensor]:
    """The example input and the numbers of C(example), flattened to named tensors."""
    with torch.no_grad():
        raw = model(example, enforce=False)
        like = raw.new_zeros(*raw.shape[:-1], model.constraint.dim or model.layer(raw, example).shape[-1])
        flat = _flatten(model.constraint.numbers(example, like))
    named = {f"{EXAMPLE}numbers.{i}": value.detach().clone().contiguous() for i, value in enumerate(flat)}
    return {f"{EXAMPLE}x": example.detach().clone().contiguous(), **named}


def _flatten(numbers: Any) -> list[Tensor]:
    """The tensors of nested tuples, in order; absent bounds are left out."""
    if isinstance(numbers, Tensor):
        return [numbers]
    return [leaf for part in numbers for leaf in _flatten(part)] if isinstance(numbers, tuple) else []


def _load_weights(model: HardNet, weights: dict[str, Tensor], path: str | Path) -> None:
    """Load the state dict, with torch's own account of what does not fit."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise FileError(f"{path}: the network is not the one saved; {error}") from error


def _replace_folder(path: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write a fresh folder beside `path` and put it in its place, so that a crash leaves the old one whole."""
    safetensors = _safetensors()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        safetensors.torch.save_file(tensors, fresh / WEIGHTS)
        (fresh / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")
        if path.exists():
            _require_model_folder(path)
            shutil.rmtree(path)
        os.replace(fresh, path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _require_model_folder(path: Path) -> None:
    """Never delete a folder that is not a saved model."""
    if not (path / DESCRIPTION).is_file():
        raise FileError(f"{path}: exists and is not a saved model; choose another path")


def _read_description(path: Path) -> dict[str, Any]:
    """The JSON half, checked for its format."""
    try:
        description = json.loads((path / DESCRIPTION).read_text())
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: not a saved model; {error}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise FileError(f"{path}: expected format {FORMAT} of a saved model, got {description.get('format')!r}")
    return description


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """The safetensors half."""
    safetensors = _safetensors()
    try:
        return safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise FileError(f"{path}: not a safetensors file; {error}") from error


def _safetensors() -> Any:
    """The safetensors package, which only saving and loading need."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise MissingExtraError("safetensors", "save") from error
    return safetensors
