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
        saved = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
        texts = {path: differ(saved[path], own) for path, own in _constants_below(self) if path in saved}
        wrong = [f"its '{path}' {text}" for path, text in texts.items() if text]
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

    def require_filled(self, name: str) -> None:
        """Refuse to read a constant that holds nothing yet."""
        if name in self.empty:
            got = "memory that came from the meta device and was never filled"
            raise FileError(sentence(name, "a constant with numbers in it", got, "load a state dict first"))


def differ(saved: Tensor, own: Tensor) -> str | None:
    """How two constants differ, in words; None where they are the same as far as the shorter dtype tells."""
    if saved.shape != own.shape:
        return f"has shape {tuple(saved.shape)} there and {tuple(own.shape)} here"
    if not own.is_floating_point() and saved.dtype == own.dtype:
        return None if torch.equal(saved.cpu(), own.cpu()) else "has other indices there"
    if not saved.is_floating_point():
        return f"is of {saved.dtype} there and of {own.dtype} here"
    dtype = max(saved.dtype, own.dtype, key=lambda dtype: torch.finfo(dtype).eps)
    there, here = (value.detach().to(device="cpu", dtype=dtype) for value in (saved, own))
    if torch.equal(there, here):
        return None
    return f"differs by up to {(there.double() - here.double()).abs().nan_to_num(torch.inf).max():.3g}"


def _constants_below(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The constants of a module and of everything below it, by their paths."""
    for path, part in module.named_modules():
        for name, own in part.constants() if isinstance(part, Constants) else ():
            yield (f"{path}.{name}" if path else name), own
