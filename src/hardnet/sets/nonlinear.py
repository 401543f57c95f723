"""Nonlinear rows: ``lower(x) <= g(y, x) <= upper(x)``, convex or not."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hardnet.errors import DTypeError, ShapeError, sentence
from hardnet.functional.nonlinear import call, jacobian_of
from hardnet.region import Kind, Own
from hardnet.sets.base import ConstraintSet, Name, Number
from hardnet.shapes import fit
from hardnet.solvers.nonlinear.solve import Existence, prove_existence
from hardnet.structure import interval_residual
from hardnet.tolerances import NONLINEAR, row_size

NonlinearFunction = Callable[[Tensor, Any], Tensor] | nn.Module
"""``(y, x) -> values``: y ``(*batch, n)``, values ``(*batch, m)``, for any batch dimensions, also none."""


def fit_rows(name: str, value: Any, y: Tensor) -> Tensor:
    """The values of a function as ``(*batch, rows)`` for the batch of y ``(*batch, n)``, or an error."""
    if not isinstance(value, Tensor):
        raise DTypeError(sentence(name, "a function that returns a tensor", type(value).__name__))
    return fit(name, value, y, ("rows",), moving=True).expand(*y.shape[:-1], -1)


class NonlinearNumbers(NamedTuple):
    """The input x itself, and the bounds, ``(m,)`` or ``(*batch, m)`` or None."""

    x: Any
    lower: Tensor | None
    upper: Tensor | None


class Nonlinear(ConstraintSet):
    """``lower(x) <= g(y, x) <= upper(x)``; an absent bound is infinite, ``lower == upper`` is an equality.

    g is written for y ``(*batch, n)`` with any batch dimensions in front, and treats samples apart: it works on the
    last dimension alone (``y.square().sum(-1, keepdim=True)``). It is called in float64 whatever the dtype of the
    model, beside x in float64; the parameters of a module follow, tensors of a function are written ``A.to(y)``. Every
    other set with affine rows may stand beside it: ``hn.Nonlinear(...) & hn.Box(...) & hn.Equality(...)``.

    x is of any structure, and g is what says which of its tensors are per sample: what holds is judged by g at all
    samples with x as it was given. Samples that have ended leave the iteration with their entries of the tensors that
    begin with the batch dimensions, unless g then gives other values, as where a tensor that all samples share
    happens to begin with the batch size: then g is called for all samples each time.

    Args:
        g: ``(y, x) -> (*batch, m)``, of torch operations; a function or a module, which may be learned.
        dim: n.
        lower: ``(m,)`` or a number for all rows, or a function of x that returns ``(*batch, m)``.
        upper: Like `lower`.
        jacobian: ``(y, x) -> (*batch, m, n)``, the derivative of g in y, itself differentiable; by default g is
            differentiated by torch.
        name: What errors and certificates call these rows, or a list of names, one for each row.
    """

    kind = Kind.FUNCTIONS
    tolerance = NONLINEAR
    g: NonlinearFunction
    jacobian: NonlinearFunction | None

    def __init__(
        self,
        g: NonlinearFunction,
        *,
        dim: int,
        lower: Number | None = None,
        upper: Number | None = None,
        jacobian: NonlinearFunction | None = None,
        name: Name = None,
    ) -> None:
        super().__init__(name)
        for argument, function in (("g", g), ("jacobian", jacobian)):
            if not callable(function) and (argument == "g" or function is not None):
                raise DTypeError(sentence(argument, "a function (y, x) -> values", type(function).__name__))
            if function is not None:
                _require_two_arguments(argument, function)
        if lower is None and upper is None:
            raise ShapeError(sentence("lower, upper", "at least one bound", "none", "pass lower=, upper= or both"))
        if not (isinstance(dim, int) and dim >= 1):
            raise ShapeError(sentence("dim", "the number of outputs, at least 1", repr(dim)))
        self.g, self.jacobian = g, jacobian
        self._rows: int | None = None
        self._sizes["n"] = dim
        self.take("lower", lower, ("m",), "lower")
        self.take("upper", upper, ("m",), "upper")
        self._check_bounds()
        self._tight: bool = self._all_equal()

    @property
    def dim(self) -> int:
        """The number of outputs n."""
        return self._sizes["n"]

    def extra_repr(self) -> str:
        """N, the name, and the bounds on g."""
        return f"dim={self.dim}, {super().extra_repr()}"

    @property
    def constant(self) -> bool:
        """Never: a function may depend on x."""
        return False

    @property
    def tight(self) -> bool:
        """Whether all rows are equalities by the constants of the set."""
        return self._tight

    def _all_equal(self) -> bool:
        """The same, asked once: a graph that is recorded later may not look at values."""
        lower, upper = self.fixed("lower"), self.fixed("upper")
        return lower is not None and upper is not None and bool((lower == upper).all())

    def values(self, y: Tensor, x: Any) -> Tensor:
        """``g(y, x)``, ``(*batch, m)``, with the parameters of a module in the dtype of y."""
        return fit_rows("g", call(self.g, y, x), y)

    def derivative(self, y: Tensor, x: Any) -> Tensor:
        """The Jacobian that was given, ``(*batch, m, n)``."""
        return call(self.jacobian, y, x)  # pyright: ignore[reportArgumentType]

    def row_count(self, numbers: Any, like: Tensor) -> int:
        """M, as g says it."""
        return self._count(numbers.x, like)

    def numbers(self, x: Any, like: Tensor) -> NonlinearNumbers:
        """X, ``lower(x), upper(x)``."""
        m = self._count(x, like)
        bounds = (self.number(side, x, like, m=m) if self.has(side) else None for side in ("lower", "upper"))
        return NonlinearNumbers(x, *bounds)

    def data(self, numbers: NonlinearNumbers, like: Tensor) -> Own:
        """The functions and their bounds."""
        return Own(self, numbers)

    def residual(self, numbers: NonlinearNumbers, y: Tensor) -> Tensor:
        """``relu(g - upper) + relu(lower - g)``; a value that is not finite meets nothing."""
        value = self.values(y, numbers.x)
        residual = interval_residual(value, numbers.lower, numbers.upper)
        return torch.where(value.isfinite(), residual, value.abs())

    def scale(self, numbers: NonlinearNumbers, y: Tensor) -> Tensor:
        """``|dg_i/dy|_1 |y|_inf + |bounds|``: what a change of y by one rounding amounts to, row by row."""
        return row_size(self._slopes(numbers, y), y, numbers.lower, numbers.upper, 0.0)

    def scale_in(self, numbers: NonlinearNumbers, y: Tensor, units: Tensor) -> Tensor:
        """``sum_j |dg_i/dy_j| max(|y_j|, units_j) + |bounds|``."""
        return row_size(self._slopes(numbers, y), y, numbers.lower, numbers.upper, 0.0, units)

    def _slopes(self, numbers: NonlinearNumbers, y: Tensor) -> Tensor:
        """The Jacobian of g at y, ``(*batch, m, n)``, without a graph."""
        given = None if self.jacobian is None else self.derivative
        return jacobian_of(self.values, given, y, numbers.x)

    def existence(self, y: Tensor, x: Any = None, *, second_derivative: Number) -> Existence:
        """Whether an exact solution exists within a known radius of y, by the theorem of Newton and Kantorovich.

        Violation to rounding says nothing of a solution where the gradient vanishes; this does. It is as good as the
        bound it is given: nobody checks `second_derivative`. g itself is trusted to 16 roundings of its scale.

        Args:
            y: ``(*batch, n)``.
            x: The input.
            second_derivative: At least the largest absolute eigenvalue of the Hessian of each row, in the ball that is
                found: a number for all rows, or ``(m,)``.
        """
        with torch.no_grad():
            point = y.double()
            numbers = self.numbers(x, point)
            value = self.values(point, x)
            J = self._slopes(numbers, point)
            absent = value.new_full((), torch.inf)
            lower = (-absent if numbers.lower is None else numbers.lower).expand_as(value)
            upper = (absent if numbers.upper is None else numbers.upper).expand_as(value)
            bound = torch.as_tensor(second_derivative, dtype=value.dtype, device=value.device)
            if bound.shape not in ((), value.shape[-1:], value.shape) or not bool((bound >= 0).all()):
                expected = f"a number >= 0, or one for each of {value.shape[-1]} rows"
                raise ShapeError(sentence("second_derivative", expected, second_derivative))
            scale = self.scale_in(numbers, point, point.abs().amax(-1, keepdim=True))
            return prove_existence(value, J, lower, upper, scale, bound.expand_as(value))

    def _count(self, x: Any, like: Tensor) -> int:
        """The number of rows, from one call of g; kept, since it is the same at every x."""
        if self._rows is None:
            with torch.no_grad():
                exact = lambda leaf: leaf.double() if leaf.is_floating_point() else leaf
                inputs = pytree.tree_map_only(Tensor, exact, x)  # as the solver calls g
                self._rows = self.values(torch.zeros_like(like, dtype=torch.float64), inputs).shape[-1]
        return self._rows


def _require_two_arguments(name: str, function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called as ``g(y, x)``, where Python can tell."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        taken = signature(called)
    except (TypeError, ValueError):  # a builtin
        return
    try:
        taken.bind(None, None)
    except TypeError:
        raise DTypeError(sentence(name, "a function of two arguments, (y, x)", f"one of {taken}")) from None


class Smooth(Nonlinear):
    """`Nonlinear` with the rows of ``inequality(y, x) <= 0`` above those of ``equality(y, x) = 0``.

    Args:
        dim: n.
        inequality: ``(y, x) -> (*batch, q)``, differentiable; None for none.
        equality: ``(y, x) -> (*batch, e)``, differentiable; None for none.
        name: What errors and certificates call these rows.
    """

    inequality: NonlinearFunction | None
    equality: NonlinearFunction | None

    def __init__(
        self,
        dim: int,
        inequality: NonlinearFunction | None = None,
        equality: NonlinearFunction | None = None,
        *,
        name: Name = None,
    ) -> None:
        if inequality is None and equality is None:
            raise ShapeError(sentence("inequality, equality", "at least one function", "none"))
        super().__init__(inequality or equality, dim=dim, upper=0.0, name=name)  # pyright: ignore[reportArgumentType]
        self.inequality, self.equality = inequality, equality

    @property
    def tight(self) -> bool:
        """Whether there are equalities alone."""
        return self.inequality is None

    def values(self, y: Tensor, x: Any) -> Tensor:
        """Both functions, one beside the other."""
        named = (("inequality", self.inequality), ("equality", self.equality))
        return torch.cat([fit_rows(name, call(own, y, x), y) for name, own in named if own is not None], dim=-1)

    def numbers(self, x: Any, like: Tensor) -> NonlinearNumbers:
        """Upper bounds of 0, and lower bounds of 0 for the equalities alone."""
        m = self._count(x, like)
        if "q" not in self._sizes:
            with torch.no_grad():
                own = None if self.inequality is None else call(self.inequality, torch.zeros_like(like), x)
            self._sizes["q"] = 0 if own is None else own.shape[-1]
        lower = like.new_zeros(m)
        lower[: self._sizes["q"]] = -torch.inf
        return NonlinearNumbers(x, lower, like.new_zeros(m))
