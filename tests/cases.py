"""Every layer x set, once: what `test_contract.py` runs the contract over. A new layer adds one line here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import hardnet as hn

BATCH = 6


@dataclass(frozen=True)
class Case:
    """A layer on a set, with an input and raw outputs that lie inside and outside."""

    name: str
    layer: Callable[[], hn.layers.Layer]
    raw_dim: int
    input_dim: int | None = None
    gradients: bool = True
    compiled: bool = False
    spread: float = 2.0

    def data(self) -> tuple[Any, Tensor]:
        generator = torch.Generator().manual_seed(5)
        raw = self.spread * torch.randn(BATCH, self.raw_dim, generator=generator, dtype=torch.float64)
        if self.input_dim is None:
            return None, raw
        return torch.randn(BATCH, self.input_dim, generator=generator, dtype=torch.float64), raw


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


BASE = draw(2, 4, seed=1)

# functions of x stand at module level so that layers can be pickled


def matrix_of(x: Tensor) -> Tensor:
    """(*batch, 2, 4), rows independent for every x."""
    return BASE.to(x) + 0.1 * torch.sin(x).unsqueeze(-2)


def bound_of(x: Tensor) -> Tensor:
    """(*batch, 2)."""
    return x[..., :2].abs() - 0.5


def constant_rows() -> hn.Affine:
    return hn.Affine(draw(2, 4, seed=2), -torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))


def moving_rows() -> hn.Affine:
    return hn.Affine(matrix_of, upper=bound_of)


def balance() -> hn.sets.ConstraintSet:
    return hn.Equality(draw(1, 4, seed=3), 1.0) & hn.Affine(draw(2, 4, seed=4), upper=0.5)


CASES = [
    Case("aff-constant", lambda: hn.layers.HardNetAff(constant_rows()), 4, compiled=True),
    Case("aff-moving", lambda: hn.layers.HardNetAff(moving_rows()), 4, 4, compiled=True),
    Case("aff-equality", lambda: hn.layers.HardNetAff(balance()), 4),
    Case("aff-box", lambda: hn.layers.HardNetAff(hn.Box(-torch.ones(3, dtype=torch.float64), 1.0)), 3),
    Case("aff-strict", lambda: hn.layers.HardNetAff(constant_rows(), strict=True), 4),
    Case("aff-eq", lambda: hn.layers.HardNetEq(balance()), 3),
]
