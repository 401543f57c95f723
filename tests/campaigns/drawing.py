"""Rounds of the campaign, and the random numbers they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import hardnet as hn


class Round(NamedTuple):
    """One call: a layer, its raw outputs, the oracle that asks for the nearest point, and the numbers of each sample.

    The oracle is one of `tests.campaigns.oracles` by its name: "rows", "points", "slack"; "" asks for none.
    """

    layer: hn.layers.Layer
    raw: Tensor
    nearest: str
    text: str
    x: dict[str, Tensor] | None = None


class Draw:
    """Random sizes, units and matrices from one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def whole(self, least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=self.generator))

    def choose(self, options: list[Any]) -> Any:
        return options[self.whole(0, len(options) - 1)]

    def dtype(self) -> torch.dtype:
        return self.choose([torch.float64, torch.float64, torch.float32])

    def unit(self, dtype: torch.dtype) -> float:
        """A power of ten that leaves room for products: up to 1e150, or 1e15 in float32."""
        most = 150 if dtype == torch.float64 else 15
        return 10.0 ** self.choose([0, 0, 0, self.whole(-most, most), self.whole(-8, 8)])

    def matrix(self, *shape: int) -> Tensor:
        """Rows ``(*batch, m, n)`` of a chosen condition: random, nearly dependent, or of mixed sizes."""
        A, (m, n) = self.normal(*shape), shape[-2:]
        kind = self.choose(["random", "random", "dependent", "columns", "integers"])
        if kind == "dependent" and m > 1:
            A[..., 1, :] = A[..., 0, :] + 10.0 ** -self.whole(1, 12) * A[..., 1, :]
        if kind == "columns":
            A = A * 10.0 ** (self.normal(n).clamp(-2, 2))
        return A.round() + torch.eye(m, n, dtype=A.dtype) if kind == "integers" else A


class Numbers:
    """The numbers of a set, as constants or as functions of an x that brings those of each sample."""

    def __init__(self, dtype: torch.dtype, shared: bool) -> None:
        self.dtype, self.shared = dtype, shared
        self.x: dict[str, Tensor] = {}

    def __call__(self, number: Tensor) -> Tensor | Callable[[dict[str, Tensor]], Tensor]:
        if self.shared:
            return number.to(self.dtype)
        name = str(len(self.x))
        self.x[name] = number.to(self.dtype)
        return lambda x: x[name]


def of_samples(numbers: dict[str, Tensor]) -> hn.Affine:
    """Rows whose numbers are those that each sample brings as its x."""
    read = {name: (lambda x, name=name: x[name]) for name in numbers}
    return hn.Affine(read.pop("A"), **read)
