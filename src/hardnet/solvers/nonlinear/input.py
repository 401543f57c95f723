"""The input x of nonlinear rows, and calls of functions ``(y, x) -> values`` for some samples of a batch.

Which tensors of x have an entry for each sample is not known from their shapes alone: a tensor that all samples share
may happen to begin with the batch size. `Input.apart` says whether samples may be called with their part of x; where
that gives other values than a call with all of x (`hardnet.solvers.nonlinear.solve` compares them), every call is made
for the whole batch with x as it was given.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


class Input(NamedTuple):
    """x as a list of leaves, floating-point tensors in float64, and the samples of the flat batch that are meant.

    Attributes:
        given: The leaves of x.
        spec: How to rebuild x from its leaves.
        batch: The batch dimensions of y.
        own: For each leaf, whether it is a tensor that begins with the batch dimensions.
        samples: The samples meant, ``(b,)``; None for all.
        apart: Whether some samples are called with their part of x, rather than all of them with x as given.
        part: Where some samples are called apart, the leaves for these samples.
    """

    given: tuple[Any, ...]
    spec: Any
    batch: torch.Size
    own: tuple[bool, ...]
    samples: Tensor | None = None
    apart: bool = True
    part: tuple[Any, ...] = ()

    @classmethod
    def of(cls, x: Any, batch: torch.Size) -> Input:
        """The input of all samples of a batch."""
        leaves, spec = tree_flatten(x)
        own = tuple(isinstance(leaf, Tensor) and leaf.shape[: len(batch)] == batch for leaf in leaves)
        return cls(tuple(leaf.double() if is_real(leaf) else leaf for leaf in leaves), spec, batch, own)

    @property
    def numbers(self) -> list[Tensor]:
        """The floating-point tensors of x."""
        return [leaf for leaf in self.given if is_real(leaf)]

    def replaced(self, numbers: tuple[Tensor, ...]) -> Input:
        """The input of all samples with other floating-point tensors."""
        found = iter(numbers)
        return self._replace(given=tuple(next(found) if is_real(leaf) else leaf for leaf in self.given))

    def take(self, index: Tensor) -> Input:
        """The input of some samples."""
        chosen = index if self.samples is None else self.samples[index]
        if not self.apart:
            return self._replace(samples=chosen)
        flat = self.part or tuple(
            self._flat(leaf) if own else leaf for leaf, own in zip(self.given, self.own, strict=True)
        )
        part = tuple(leaf[index] if own else leaf for leaf, own in zip(flat, self.own, strict=True))
        return self._replace(samples=chosen, part=part)

    def call(self, function: Callable[[Tensor, Any], Any], y: Tensor) -> Any:
        """``function(y, x)`` of the samples, y ``(b, n)``; values ``(b, ...)``."""
        if self.samples is not None and self.apart:
            return function(y, self._tree(self.part))
        if self.samples is None:
            return self._whole(function, y)
        fill = y[:1].detach() if len(y) else y.new_zeros(1, y.shape[-1])
        everyone = fill.expand(prod(self.batch), -1).index_copy(0, self.samples, y)
        return self._whole(function, everyone)[self.samples]

    def _whole(self, function: Callable[[Tensor, Any], Any], y: Tensor) -> Any:
        """The values of all samples, with x as it was given."""
        x = self._tree(self.given)
        if len(self.batch) == 1 or not any(self.own):
            return function(y, x)
        value = function(y.reshape(*self.batch, y.shape[-1]), x)
        return (
            self._flat(value) if isinstance(value, Tensor) and value.shape[: len(self.batch)] == self.batch else value
        )

    def _flat(self, leaf: Tensor) -> Tensor:
        return leaf.reshape(prod(self.batch), *leaf.shape[len(self.batch) :])

    def _tree(self, leaves: tuple[Any, ...]) -> Any:
        return tree_unflatten(list(leaves), self.spec)


def is_real(leaf: Any) -> bool:
    """Whether a leaf of x is a tensor of floating-point numbers."""
    return isinstance(leaf, Tensor) and leaf.is_floating_point()
