"""Checkpoints: one safetensors file with a JSON header, replaced atomically, from which a run resumes bit for bit."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardnet.errors import FileError
from hardnet.files import DIGEST, digest, read_tensors, require_keys, write_tensors
from hardnet_lab.train.loop import Training
from hardnet_lab.train.settings import History

FORMAT, FORMAT_1 = "hardnet-checkpoint-2", "hardnet-checkpoint-1"
"""The format that is written, and that of version 0.1, where the digest did not cover the header."""
EXTRA = "_extra_state"
"""Torch's suffix for module state other than parameters and buffers; absent in checkpoints of version 0.1."""
ENTRIES = {"identity": dict, "epoch": int, "seconds": int | float, "history": dict, DIGEST: str}


def save_checkpoint(training: Training, path: Path, identity: dict[str, Any]) -> None:
    """Write everything that the rest of the run depends on.

    Args:
        training: The run, between two epochs.
        path: The file; its old content stays intact until the new content is complete.
        identity: What identifies the run (problem, method, seeds, ...); a resume must pass the same.
    """
    header = {
        "format": FORMAT,
        "identity": identity,
        "epoch": training.epoch,
        "seconds": training.seconds,
        "history": asdict(training.history),
    }
    write_tensors(path, _tensors(training), header)


def load_checkpoint(training: Training, path: Path, identity: dict[str, Any]) -> None:
    """Set a new run to the state in the checkpoint; refuse a file that is corrupt or belongs to another run."""
    header, tensors = _read(path)
    if header["identity"] != identity:
        differing = [key for key in identity if header["identity"].get(key) != identity[key]]
        named = ", ".join(f"{key} (saved {header['identity'].get(key)}, asked {identity[key]})" for key in differing)
        raise FileError(f"{path}: a checkpoint of another run; it differs in {named}; use another output folder")
    try:
        history = History(**header["history"])
    except TypeError as error:
        raise FileError(f"{path}: damaged; its entry 'history' does not fit; {error}") from error
    _restore(training, tensors, path)
    training.epoch, training.seconds, training.history = header["epoch"], header["seconds"], history


def _tensors(training: Training) -> dict[str, Tensor]:
    """Weights and statistics, Adam's state, and the random streams, all on the CPU."""
    tensors = {f"model.{name}": value for name, value in training.model.state_dict().items()}
    for index, parameter in enumerate(training.parameters):
        state = training.optimizer.state[parameter]
        tensors |= {f"adam.{index}.{name}": value for name, value in state.items()}
    if training.clipping is not None:
        tensors["clipping.mean"] = training.clipping.mean
    tensors |= {f"stream.{seed}": stream.get_state() for seed, stream in enumerate(training.streams)}
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


@torch.no_grad()
def _restore(training: Training, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy the numbers in place, so that captured graphs and the optimizer keep their tensors."""
    if _shapes(_tensors(training)) != _shapes(tensors):
        raise FileError(f"{path}: a checkpoint of another network; delete it or use another output folder")
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    try:
        training.model.load_state_dict(weights)
    except FileError as error:
        raise FileError(f"{path}: {error}") from error
    for index, parameter in enumerate(training.parameters):
        for name, value in training.optimizer.state[parameter].items():
            value.copy_(tensors[f"adam.{index}.{name}"])
    if training.clipping is not None:
        training.clipping.mean.copy_(tensors["clipping.mean"])
    for seed, stream in enumerate(training.streams):
        stream.set_state(tensors[f"stream.{seed}"])


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    """The shapes by name, without the layers' extra state, which `load_state_dict` checks."""
    return {name: value.shape for name, value in tensors.items() if not name.endswith(EXTRA)}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a checkpoint file, which must be intact."""
    try:
        header, tensors = read_tensors(path, "corrupt checkpoint")
    except FileError as error:
        raise FileError(f"{error}; delete it to start over") from error
    kind = None if header is None else header.get("format")
    if header is None or kind not in (FORMAT, FORMAT_1):
        raise FileError(f"{path}: expected a checkpoint of format {FORMAT}, got {kind}")
    require_keys(header, ENTRIES, path)
    if header[DIGEST] != digest(tensors, header if kind == FORMAT else None):
        raise FileError(f"{path}: corrupt checkpoint, its numbers do not match their digest; delete it to start over")
    return header, tensors
