"""Checkpoints: one safetensors file with a JSON header, replaced atomically, from which a run goes on bit for bit."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import FileError, MissingExtraError
from hardnet.train.loop import History, Training

FORMAT = "hardnet-checkpoint-1"


def save_checkpoint(training: Training, path: Path, identity: dict[str, Any]) -> None:
    """Write everything that the rest of the run depends on.

    Args:
        training: The run, between two epochs.
        path: The file; its old content stays whole until the new one is.
        identity: What the run is (problem, method, seeds, ...); a resume must state the same.
    """
    tensors = _tensors(training)
    header = {
        "format": FORMAT,
        "identity": identity,
        "epoch": training.epoch,
        "seconds": training.seconds,
        "history": asdict(training.history),
        "digest": _digest(tensors),
    }
    packed = _safetensors().torch.save(tensors, metadata={"hardnet": json.dumps(header)})
    write_atomically(path, packed)


def load_checkpoint(training: Training, path: Path, identity: dict[str, Any]) -> None:
    """Bring a fresh run to where the checkpoint was written; refuse a file that is corrupt or of another run."""
    header, tensors = _read(path)
    if header["identity"] != identity:
        differing = [key for key in identity if header["identity"].get(key) != identity[key]]
        named = ", ".join(f"{key} (saved {header['identity'].get(key)}, asked {identity[key]})" for key in differing)
        raise FileError(f"{path}: a checkpoint of another run; it differs in {named}; use another output folder")
    if header["digest"] != _digest(tensors):
        raise FileError(f"{path}: corrupt checkpoint, its numbers do not match their digest; delete it to start over")
    _restore(training, tensors, path)
    training.epoch, training.seconds = header["epoch"], header["seconds"]
    training.history = History(**header["history"])


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that at every moment either the old or the new content is there, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.part")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _tensors(training: Training) -> dict[str, Tensor]:
    """Weights and statistics, Adam's state, and the streams of random numbers, all on the CPU."""
    tensors = {f"model.{name}": value for name, value in training.model.state_dict().items()}
    for index, parameter in enumerate(training.parameters):
        state = training.optimizer.state[parameter]
        tensors |= {f"adam.{index}.{name}": value for name, value in state.items()}
    tensors |= {f"stream.{seed}": stream.get_state() for seed, stream in enumerate(training.streams)}
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


@torch.no_grad()
def _restore(training: Training, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy the numbers into place; in place, so that captured graphs and the optimizer keep their tensors."""
    present = _tensors(training)
    if {name: value.shape for name, value in present.items()} != {name: t.shape for name, t in tensors.items()}:
        raise FileError(f"{path}: a checkpoint of another network; delete it or use another output folder")
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    training.model.load_state_dict(weights)
    for index, parameter in enumerate(training.parameters):
        for name, value in training.optimizer.state[parameter].items():
            value.copy_(tensors[f"adam.{index}.{name}"])
    for seed, stream in enumerate(training.streams):
        stream.set_state(tensors[f"stream.{seed}"])


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a checkpoint file."""
    package = _safetensors()
    try:
        with package.safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("hardnet", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict
    except (OSError, ValueError, package.SafetensorError) as error:
        raise FileError(f"{path}: corrupt checkpoint; {error}; delete it to start over") from error
    if header.get("format") != FORMAT:
        raise FileError(f"{path}: expected a checkpoint of format {FORMAT}, got {header.get('format')}")
    return header, tensors


def _digest(tensors: dict[str, Tensor]) -> str:
    """A fingerprint of all numbers, so that a flipped bit is noticed."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _safetensors() -> Any:
    """The safetensors package, which only checkpoints need here."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise MissingExtraError("safetensors", "save") from error
    return safetensors
