"""The input x of nonlinear rows as a list of tensors, so that the open samples of a batch can be selected."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


class Input(NamedTuple):
    """x as a list of leaves; some have one entry for each sample of the flat batch, the others are shared by all.

    Attributes:
        leaves: The leaves of x.
        own: For each leaf, whether it is a tensor ``(B, ...)`` with an entry for each sample.
        spec: How to rebuild x from the leaves; None where x is a single tensor.
    """

    leaves: tuple[Any, ...]
    own: tuple[bool, ...]
    spec: Any

    @classmethod
    def of(cls, x: Any, batch: torch.Size) -> Input:
        """Flatten the batch dimensions of tensors that begin with them; convert floating-point tensors to float64."""
        leaves, spec = tree_flatten(x)
        own = tuple(isinstance(leaf, Tensor) and leaf.shape[: len(batch)] == batch for leaf in leaves)
        flat = [
            leaf.reshape(prod(batch), *leaf.shape[len(batch) :]) if mine else leaf
            for leaf, mine in zip(leaves, own, strict=True)
        ]
        real = [leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf for leaf in flat]
        return cls(tuple(real), own, None if isinstance(x, Tensor) else spec)

    def take(self, index: Tensor) -> Input:
        """The input of some samples."""
        leaves = tuple(leaf[index] if own else leaf for leaf, own in zip(self.leaves, self.own, strict=True))
        return self._replace(leaves=leaves)

    def value(self) -> Any:
        """The input in the form that g takes."""
        return self.leaves[0] if self.spec is None else tree_unflatten(list(self.leaves), self.spec)
