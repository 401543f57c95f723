"""What vmap needs: a mapped dimension joins the batch, so that functions on flat batches serve mapped ones."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def join_batches(
    mapped: int, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...], cores: tuple[int, ...], share: bool = True
) -> tuple[tuple[int, int], list[Any]]:
    """The mapped size and batch of the first argument, and all arguments with these two dimensions joined.

    Args:
        mapped: Size of the mapped dimension.
        in_dims: Where each argument has it, or None.
        inputs: Tensors with one batch dimension or none (shared), or None.
        cores: How many dimensions each has behind the batch.
        share: Whether an argument that is neither mapped nor batched may stay shared.
    """
    samples = inputs[0].shape[0] if in_dims[0] != 0 else inputs[0].shape[1]
    sizes = (mapped, samples)
    return sizes, [_join(*item, sizes, share) for item in zip(inputs, in_dims, cores, strict=True)]


def _join(tensor: Tensor | None, at: int | None, core: int, sizes: tuple[int, int], share: bool) -> Tensor | None:
    """A tensor with `core` trailing dimensions, its mapped and batch dimension made one; shared ones may stay so."""
    if tensor is None or (at is None and tensor.dim() == core and share):
        return tensor
    tensor = tensor.unsqueeze(0) if at is None else tensor.movedim(at, 0)
    if tensor.dim() == core + 1:  # shared by the batch of each mapped call
        tensor = tensor.unsqueeze(1)
    return tensor.expand(*sizes, *tensor.shape[2:]).flatten(0, 1)
