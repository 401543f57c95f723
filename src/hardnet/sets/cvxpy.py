"""Any set that CVXPY can express: constraints built from a variable and parameters that depend on x."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hardnet.errors import ShapeError, sentence
from hardnet.functional.program import Program
from hardnet.region import Kind, Own
from hardnet.sets.base import ConstraintSet, Name, Number
from hardnet.tolerances import PROGRAMS


class Cvxpy(ConstraintSet):
    """The points y that satisfy ``build(y, **parameters(x))``, for constraints that follow CVXPY's DPP rules.

    ``Cvxpy(lambda y, b: [cp.norm1(y) <= b], dim=3, parameters={"b": (lambda x: x[..., 0], ())})``. The program is
    compiled once through cvxpylayers and solved on the CPU, sample by sample, in float64: use it for sets that
    hardnet has no projection for. Violations are read off CVXPY's own expressions; no gradient flows through them.

    Args:
        build: Takes the CVXPY variable y ``(dim,)`` and the CVXPY parameters by name; returns a list of constraints.
        dim: n.
        parameters: Name -> a constant tensor, or a pair (function or module of x, shape without batch).
        name: What errors and certificates call it.
    """

    kind = Kind.PROGRAM
    tolerance = PROGRAMS
    stored_as: ClassVar[dict[str, str]] = {"parameters": "names"}

    def __init__(
        self,
        build: Callable[..., Any],
        dim: int,
        parameters: Mapping[str, Number | tuple[Number, tuple[int, ...]]] | None = None,
        *,
        name: Name = None,
    ) -> None:
        super().__init__(name)
        if not callable(build):
            raise ShapeError(sentence("build", "a function of y and the parameters", type(build).__name__))
        if not isinstance(dim, int) or dim < 1:
            raise ShapeError(sentence("dim", "a positive integer", dim))
        self._functions["build"], self._dim = build, dim
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._sizes["n"] = dim
        for parameter, value in (parameters or {}).items():
            self._take_parameter(parameter, value)
        self.names: list[str] = list(self._shapes)
        self._program: Program | None = Program(build, dim, self._shapes)

    def _take_parameter(self, name: str, value: Any) -> None:
        """Keep one parameter and its shape without batch."""
        if isinstance(value, tuple):
            value, shape = value
            self._shapes[name] = tuple(shape)
        elif isinstance(value, nn.Module) or (callable(value) and not isinstance(value, Tensor)):
            remedy = f"pass parameters={{{name!r}: (function, shape)}}"
            raise ShapeError(sentence(f"parameters[{name!r}]", "the shape of a function's values", "none", remedy))
        else:
            self._shapes[name] = tuple(torch.as_tensor(value).shape)
        self.take(_stored(name), value, self._shapes[name])

    def sources(self) -> dict[str, tuple[Number, tuple[int, ...]]]:
        """The parameters as they were given, each with its shape, so that a set like this one can be built."""
        return {name: (self.source(_stored(name)), self._shapes[name]) for name in self.names}

    @property
    def dim(self) -> int:
        """N."""
        return self._dim

    @property
    def constant(self) -> bool:
        """Never: the set is a program, of which nothing can be factorized."""
        return False

    @property
    def program(self) -> Program:
        """The compiled program; compiled again after a copy or a load, since CVXPY objects are not copied."""
        if self._program is None:
            self._program = Program(self._functions["build"], self._dim, self._shapes)
        return self._program

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the compiled program."""
        return {**self.__dict__, "_program": None}

    def numbers(self, x: Any, like: Tensor) -> tuple[Tensor, ...]:
        """The parameters at x in order, each ``(*batch, *shape)``."""
        if like.shape[-1] != self._dim:
            raise ShapeError(sentence("raw", f"shape (*batch, {self._dim})", tuple(like.shape)))
        return tuple(self._parameter(name, x, like) for name in self.names)

    def _parameter(self, name: str, x: Any, like: Tensor) -> Tensor:
        """One parameter, checked and spread over the batch."""
        return self.number(_stored(name), x, like).expand(*like.shape[:-1], *self._shapes[name])

    def _spoken(self, name: str) -> str:
        """A parameter as the user wrote it."""
        return f"parameters[{name.removeprefix(_stored(''))!r}]"

    def data(self, numbers: tuple[Tensor, ...], like: Tensor) -> Own:
        """The program and its parameters."""
        return Own(self, numbers)

    def residual(self, numbers: tuple[Tensor, ...], y: Tensor) -> Tensor:
        """CVXPY's violation of every scalar row, evaluated in float64."""
        batch = y.shape[:-1]
        flat = [number.detach().reshape(batch.numel(), *number.shape[len(batch) :]) for number in numbers]
        rows = self.program.violations(flat, y.detach().reshape(batch.numel(), self._dim))
        return rows.to(y).reshape(batch + rows.shape[-1:])

    def scale(self, numbers: tuple[Tensor, ...], y: Tensor) -> Tensor:
        """``1 + max |y| + max |parameter|`` for every row: CVXPY does not tell which terms a row adds up."""
        size = 1 + y.abs().amax(-1, keepdim=True)
        for number, shape in zip(numbers, self._shapes.values(), strict=True):
            flat = number.abs().reshape(*y.shape[:-1], prod(shape))
            size = size + flat.amax(-1, keepdim=True)
        return size * torch.ones_like(self.residual(numbers, y))


def _stored(name: str) -> str:
    """The attribute of a parameter: its own name may already mean something to a module."""
    return f"parameter_{name}"
