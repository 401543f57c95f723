"""The constants of a set and state dicts: a load fills what the meta device left empty, and changes nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from hardnet.errors import FileError, StateError, sentence


class Constants(nn.Module):
    """A module whose persistent buffers that ask for no gradient are constants: what is allowed is code, not weights.

    They stay in the state dict, so that a checkpoint says what it was trained on, and a load compares them with it.
    """

    empty: frozenset[str] = frozenset()
    """Constants that came from the meta device and hold nothing yet; the next load fills them."""

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        meta = [name for name, value in self._buffers.items() if value is not None and value.is_meta]
        super()._apply(fn, recurse)
        self.empty = self.empty | {name for name in meta if not self.get_buffer(name).is_meta}
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any) -> None:
        """Refuse other constants, all of them by name, before anything is loaded; then keep the bits of our own."""
        wrong = [text for module, path in _parts(self, prefix) for text in module.differences(state_dict, path)]
        if wrong:
            remedy = "build the set that it was trained with, or load the weights of the network alone"
            raise StateError(f"the checkpoint belongs to another set: {'; '.join(wrong)}; {remedy}")
        for name, own in self.constants():
            if f"{prefix}{name}" in state_dict:
                state_dict[f"{prefix}{name}"] = own  # a copy would round it to the checkpoint's dtype
        filled = {name for name in self.empty if f"{prefix}{name}" in state_dict}
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)
        self.empty = self.empty - filled

    def constants(self) -> Iterator[tuple[str, Tensor]]:
        """Name and value of every constant that holds numbers."""
        for name, value in self._buffers.items():
            skipped = name in self._non_persistent_buffers_set or name in self.empty
            if value is not None and not (skipped or value.is_meta or value.requires_grad):
                yield name, value

    def differences(self, state_dict: dict[str, Any], prefix: str) -> list[str]:
        """Each constant that a state dict has otherwise, in words."""
        pairs = ((name, own, state_dict.get(f"{prefix}{name}")) for name, own in self.constants())
        return [
            f"its '{name}' {text}" for name, own, saved in pairs if saved is not None and (text := differ(saved, own))
        ]

    def require_filled(self, name: str) -> None:
        """Refuse to read a constant that holds nothing yet."""
        if name in self.empty:
            got = "memory that came from the meta device and was never filled"
            raise FileError(sentence(name, "a constant with numbers in it", got, "load a state dict first"))


def differ(saved: Tensor, own: Tensor) -> str | None:
    """How two constants differ, in words; None where they are the same as far as the shorter dtype tells."""
    if saved.shape != own.shape:
        return f"has shape {tuple(saved.shape)} there and {tuple(own.shape)} here"
    if not saved.is_floating_point():
        return f"is of {saved.dtype} there and of {own.dtype} here"
    dtype = max(saved.dtype, own.dtype, key=lambda dtype: torch.finfo(dtype).eps)
    there, here = (value.detach().to(device="cpu", dtype=dtype) for value in (saved, own))
    if torch.equal(there, here):
        return None
    return f"differs by up to {(there.double() - here.double()).abs().nan_to_num(torch.inf).max():.3g}"


def _parts(module: nn.Module, prefix: str) -> Iterator[tuple[Constants, str]]:
    """The module itself and everything below it that has constants, with their prefixes."""
    for name, part in module.named_modules():
        if isinstance(part, Constants):
            yield part, f"{prefix}{name}." if name else prefix
