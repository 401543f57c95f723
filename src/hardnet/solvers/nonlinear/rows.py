"""Rows ``lower <= g(y, x) <= upper`` and affine rows ``A_lower <= A y <= A_upper``, with the derivatives of g.

One flat batch of samples in float64. g gets y ``(b, n)`` and x of the same samples, and must treat each sample
independently: its derivatives come from one batched backward pass, and samples that have converged leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.rows import bound_size
from hardnet.solvers.algebra.small import product
from hardnet.solvers.nonlinear.derivatives import Function, batched_gradient, gradient
from hardnet.solvers.nonlinear.input import Input


class Derivatives(NamedTuple):
    """The rows at a point y of b samples: values ``(b, m)`` and Jacobian ``(b, m, n)``, the nonlinear rows first.

    ``hessian`` is ``sum_i dual_i Hess g_i``, ``(b, n, n)``, where requested, and ``dual`` its multipliers.
    """

    value: Tensor
    jacobian: Tensor
    hessian: Tensor | None = None
    dual: Tensor | None = None

    def take(self, index: Tensor) -> Derivatives:
        """The derivatives of some samples."""
        hessian = None if self.hessian is None else self.hessian[index]
        dual = None if self.dual is None else self.dual[index]
        return Derivatives(self.value[index], self.jacobian[index], hessian, dual)


Multipliers = Callable[[Tensor, Tensor], Tensor]
"""``(value, jacobian) -> dual``, ``(b, m)``."""


class Traced(NamedTuple):
    """A point ``(b, n)``, the nonlinear rows there ``(b, m)`` with their autograd graph, and the values of all rows."""

    point: Tensor
    own: Tensor
    value: Tensor


class Rows(NamedTuple):
    """The rows of a flat batch.

    Attributes:
        function: g.
        derivative: Its Jacobian ``(y, x) -> (*batch, m, n)``, or None to differentiate g.
        x: The input.
        curved: m, the number of rows of g; the affine rows come after them.
        A: ``(k, n)`` or ``(B, k, n)``; k may be 0.
        lower: ``(B, m + k)``, infinite where absent.
        upper: Like `lower`.
        size: The size of the bounds, `hardnet.rows.bound_size`, ``(B, m + k)``; None before `prepared`.
        tight: Whether all rows are known to be equalities.
    """

    function: Function
    derivative: Function | None
    x: Input
    curved: int
    A: Tensor
    lower: Tensor
    upper: Tensor
    size: Tensor | None = None
    tight: bool = False

    def prepared(self, look: bool) -> Rows:
        """The rows with `size` filled in; with `look`, also check whether all rows are equalities."""
        tight = self.tight or (look and bool(self.equality.all()))
        return self._replace(size=bound_size(self.lower, self.upper, self.lower.new_zeros(())), tight=tight)

    @property
    def equality(self) -> Tensor:
        """``lower == upper``, ``(B, m + k)``."""
        return self.lower == self.upper

    def take(self, index: Tensor) -> Rows:
        """The rows of some samples."""
        A = self.A if self.A.dim() == 2 else self.A[index]
        size = None if self.size is None else self.size[index]
        return self._replace(x=self.x.take(index), A=A, lower=self.lower[index], upper=self.upper[index], size=size)

    def value(self, y: Tensor) -> Tensor:
        """``(g(y, x), A y)``, ``(b, m + k)``."""
        own = self._call(y)
        if not self.A.shape[-2]:
            return own
        return torch.cat([own, product(self.A.expand(y.shape[0], *self.A.shape[-2:]), y)], dim=-1)

    def evaluate(self, y: Tensor, dual: Multipliers | None = None) -> Derivatives:
        """Values and Jacobian of all rows; with a function of these that returns multipliers, also the Hessian."""
        return self.derive(self.trace(y), dual)

    def trace(self, y: Tensor) -> Traced:
        """The rows at y with the autograd graph for their derivatives."""
        with torch.enable_grad():
            point = y.detach().requires_grad_()
            own = self._call(point)
        value = own.detach()
        if self.A.shape[-2]:
            value = torch.cat([value, product(self.A.expand(y.shape[0], *self.A.shape[-2:]), y)], dim=-1)
        return Traced(point, own, value)

    def derive(self, traced: Traced, dual: Multipliers | None = None) -> Derivatives:
        """The derivatives at a point where the rows were traced."""
        point, own, value = traced
        with torch.enable_grad():
            given = None if self.derivative is None else self._given(point)
            jacobian = batched_gradient(own, point) if given is None else given.detach()
        if self.A.shape[-2]:
            jacobian = torch.cat([jacobian, self.A.expand(point.shape[0], *self.A.shape[-2:])], dim=-2)
        if dual is None:
            return Derivatives(value, jacobian)
        weight = dual(value, jacobian)
        hessian = batched_gradient(self._slope(own, given, point, weight), point)
        return Derivatives(value, jacobian, (hessian + hessian.mT) / 2, weight)

    def slope(self, point: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        """``g`` ``(b, m)`` and ``sum_i dual_i grad_y g_i`` ``(b, n)``, differentiable in the point."""
        with torch.enable_grad():
            given = None if self.derivative is None else self._given(point)
            own = self._call(point)
            return own, self._slope(own, given, point, dual)

    def _slope(self, own: Tensor, given: Tensor | None, point: Tensor, dual: Tensor) -> Tensor:
        """``sum_i dual_i grad g_i``, ``(b, n)``, differentiable."""
        weight = dual[:, : self.curved]
        with torch.enable_grad():
            if given is None:
                return gradient((own * weight).sum(), point, create_graph=True)
            return (given * weight.unsqueeze(-1)).sum(-2)

    def violation(self, value: Tensor) -> Tensor:
        """``max(value - upper, lower - value, 0)`` for each row; NaN stays NaN."""
        if self.tight:
            return (value - self.upper).abs()
        return torch.maximum(value - self.upper, self.lower - value).clamp_min(0)

    def scale(self, jacobian: Tensor, size: Tensor) -> Tensor:
        """``|J_i|_1 size + |bounds|`` for outputs of `size` ``(b, 1)``: the rounding of a row is relative to it."""
        own = self.prepared(look=False).size if self.size is None else self.size
        return torch.addcmul(own, jacobian.abs().sum(-1), size)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def lagrangian(self, y: Tensor, dual: Tensor) -> Callable[[Tensor], Tensor]:
        """``v -> sum_i dual_i Hess g_i v``, for vectors ``(b, n)``: one backward pass each."""
        with torch.enable_grad():
            point = y.detach().requires_grad_()
            _, slope = self.slope(point, dual.detach())

        def apply(vector: Tensor) -> Tensor:
            with torch.enable_grad():
                return gradient((slope * vector).sum(), point)

        return apply

    def _call(self, y: Tensor) -> Tensor:
        value = self.x.call(self.function, y)
        if value.shape != (y.shape[0], self.curved):
            expected = f"values of shape ({y.shape[0]}, {self.curved}) for y of shape {tuple(y.shape)}"
            raise ShapeError(sentence("g", expected, tuple(value.shape), "g must treat samples apart"))
        return value

    def _given(self, y: Tensor) -> Tensor:
        value = self.x.call(self.derivative, y)  # pyright: ignore[reportArgumentType]
        if value.shape != (y.shape[0], self.curved, y.shape[-1]):
            expected = f"shape {(y.shape[0], self.curved, y.shape[-1])}"
            raise ShapeError(sentence("jacobian", expected, tuple(value.shape)))
        return value
