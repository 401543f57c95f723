"""Rows ``lower <= g(y, x) <= upper`` and affine rows ``A_lower <= A y <= A_upper``, with the derivatives of g.

One flat batch of samples in float64. g gets y ``(b, n)`` and x of the same samples, and must treat each sample
independently: its derivatives come from one batched backward pass, and samples that have converged leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from hardnet.errors import DTypeError, ShapeError, sentence
from hardnet.modes import mode
from hardnet.solvers.algebra.small import product
from hardnet.solvers.solution import choose, place, take
from hardnet.structure import bound_size

# The input x of nonlinear rows, and calls of functions ``(y, x) -> values`` for some samples of a batch.
#
# Which tensors of x have an entry for each sample is not known from their shapes alone: a tensor that all samples share
# may happen to begin with the batch size. `Input.apart` says whether samples may be called with their part of x; where
# that gives other values than a call with all of x (`hardnet.solvers.nonlinear.solve` compares them), every call is
# made for the whole batch with x as it was given.


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


# Derivatives, by autograd, of functions ``(y, x) -> values`` whose samples do not depend on each other.


Function = Callable[[Tensor, Any], Tensor]
"""``(y, x) -> values``: y ``(*batch, n)``, values ``(*batch, m)``."""


def gradient(scalar: Tensor, point: Tensor, *, create_graph: bool = False) -> Tensor:
    """The gradient of a sum over samples; zeros if the sum does not depend on the point."""
    if not scalar.requires_grad:
        return torch.zeros_like(point)
    found = torch.autograd.grad(scalar, point, allow_unused=True, retain_graph=True, create_graph=create_graph)[0]
    return torch.zeros_like(point) if found is None else found


def batched_gradient(values: Tensor, point: Tensor, *, create_graph: bool = False) -> Tensor:
    """``d values / d point``, ``(b, m, n)``, of values ``(b, m)`` whose samples do not depend on each other."""
    b, m = values.shape
    if not values.requires_grad or m == 0:
        return point.new_zeros(b, m, point.shape[-1])
    if m == 1:
        return gradient(values.sum(), point, create_graph=create_graph).unsqueeze(1)
    if mode() == "export":  # batched backward passes use vmap, which does not accept symbolic sizes
        each = [gradient(values[:, row].sum(), point, create_graph=create_graph) for row in range(m)]
        return torch.stack(each, dim=1)
    unit = torch.eye(m, dtype=values.dtype, device=values.device).unsqueeze(1).expand(m, b, m)
    found = torch.autograd.grad(
        values, point, unit, allow_unused=True, is_grads_batched=True, retain_graph=True, create_graph=create_graph
    )[0]
    return point.new_zeros(b, m, point.shape[-1]) if found is None else found.transpose(0, 1)


def jacobian(function: Function, y: Tensor, x: Any) -> Tensor:
    """``d function / d y``, ``(*batch, m, n)``, without a graph; y keeps its batch dimensions and its dtype."""
    with torch.enable_grad():
        point = y.detach().requires_grad_()
        values = function(point, x)
        flat = values.reshape(-1, values.shape[-1])
        unit = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
        unit = unit.unsqueeze(1).expand(-1, len(flat), -1).reshape(len(unit), *values.shape)
        if not values.requires_grad:
            return y.new_zeros(*values.shape, y.shape[-1])
        found = torch.autograd.grad(values, point, unit, allow_unused=True, is_grads_batched=True)[0]
    return y.new_zeros(*values.shape, y.shape[-1]) if found is None else found.movedim(0, -2)


def require_differentiable(function: Function, y: Tensor, x: Input) -> Tensor:
    """The values of g at y, which requires a gradient; a g that is not differentiable in y is refused."""
    with torch.enable_grad():
        value = x.call(function, y)
    if not isinstance(value, Tensor) or not (value.requires_grad or value.shape[-1] == 0):
        got = "values without a derivative" if isinstance(value, Tensor) else type(value).__name__
        raise DTypeError(sentence("g", "a function of torch operations that can be differentiated", got))
    return value


class Derivatives(NamedTuple):
    """The rows at a point y of b samples: values ``(b, m)`` and Jacobian ``(b, m, n)``, the nonlinear rows first.

    ``hessian`` is ``sum_i dual_i Hess g_i``, ``(b, n, n)``, where requested, and ``dual`` its multipliers.
    """

    value: Tensor
    jacobian: Tensor
    hessian: Tensor | None = None
    dual: Tensor | None = None


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
        size: The size of the bounds, `hardnet.structure.bound_size`, ``(B, m + k)``; None before `prepared`.
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


# Measures for a sample: the size of its outputs, lengths and scales of its rows, and the relative violation.


SUFFICIENT = 1e-4
"""Fraction of the decrease predicted by the slope that a step of the nonlinear solver must achieve."""
ELASTIC = 1e-4
"""Least elasticity of a row of length one: of a violation v, a step leaves about ``ELASTIC^2 v / sigma^2``.

A gradient so small that its step would be longer than 1e4 times the sample's size gives a shorter step."""
FINE = 3e-15
"""Part of a row's scale to which a violation is reduced as long as steps reduce it; a certificate allows 3.6e-15."""


def row_size(y: Tensor, raw: Tensor) -> Tensor:
    """``max |y|``, at least ``min(1, max |raw|)``: the size of a sample's outputs, ``(b, 1)``."""
    return size_from(y, raw.abs().amax(-1, keepdim=True).clamp_max(1.0))


def size_from(y: Tensor, least: Tensor) -> Tensor:
    """`row_size` from the least size ``(b, 1)``."""
    return torch.maximum(y.abs().amax(-1, keepdim=True), least)


def row_norms(jacobian: Tensor) -> Tensor:
    """``|J_i|``, ``(b, m)``; 1 for a zero row."""
    norm = torch.linalg.vector_norm(jacobian, dim=-1)
    return norm + (norm == 0)


def elastic_rows(rows: Rows, jacobian: Tensor, soft: Tensor | None = None) -> Tensor:
    """The elasticity of each row: `soft` or the least elasticity for the rows of g, 0 for affine rows, ``(b, m)``."""
    whole = ELASTIC * row_norms(jacobian) if soft is None else soft
    if not rows.A.shape[-2]:
        return whole
    return torch.cat([whole[:, : rows.curved], torch.zeros_like(whole[:, rows.curved :])], dim=-1)


def relative_error(rows: Rows, at: Derivatives, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
    """The largest violation relative to its row's scale, ``(b,)``, and these scales ``(b, m)``."""
    return error_of(rows, rows.violation(at.value), at.jacobian, row_size(y, raw))


def error_of(rows: Rows, violation: Tensor, jacobian: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """The same from the violations and the size of the outputs.

    A scale that is zero or not finite is replaced by the smallest normal number, so that any violation of the row
    counts as huge: an infinite slope must not make every violation look small.
    """
    tiny, scale = torch.finfo(size.dtype).tiny, rows.scale(jacobian, size)
    scale = torch.where(scale < torch.inf, scale, tiny).clamp_min(tiny)
    return (violation / scale).amax(-1), scale


def fixed_direction(y: Tensor, number: int = 0) -> Tensor:
    """A fixed direction ``(n,)`` without symmetries, the same for every sample; another one for each `number`."""
    place = torch.arange(1, y.shape[-1] + 1, dtype=y.dtype, device=y.device)
    return ((1.7 + 0.9 * number) * place + 0.3 + number).sin()


# The loop shared by retraction and nearest point: in a pass each sample plans a step and tries it.
#
# Where values may be read, a refused trial is followed by others within the pass, and samples that have ended leave the
# batch. Else a sample whose trial is refused stays where it is, and plans and tries again in the next pass, so that a
# pass is a fixed program. Either way the result of a sample does not depend on the other samples of the batch.


WORTH = 0.75
"""Share of open samples below which the others are taken out of the batch, where reading values is not free."""


class Pace(NamedTuple):
    """How often values may be read.

    Attributes:
        every: Passes between two checks of which samples are open; 0 for no checks, so that passes can be captured.
        free: Whether reading values inside a pass is free, as on a CPU.
    """

    every: int = 1
    free: bool = True


EVERY_PASS = Pace()
"""Read values in every pass, as on a CPU."""


def run(
    rows: Rows,
    state: Any,
    plan: Callable[[Rows, Any], Any],
    attempt: Callable[[Rows, Any, Any], Any],
    passes: int,
    pace: Pace,
) -> Any:
    """The state after up to `passes` passes; it has the field ``going`` ``(b,)``.

    Args:
        rows: The rows of the batch.
        state: A NamedTuple of tensors whose first dimension is the batch.
        plan: The steps of a pass: ``(rows, state) -> record``.
        attempt: One trial of them, or several where reading values is free: ``(rows, state, steps) -> state``. Closed
            samples are left unchanged.
        passes: The maximum number of passes.
        pace: When values may be read.
    """
    whole, index = None, torch.arange(state.going.shape[0], device=state.going.device)
    for count in range(passes):
        if pace.every and count % pace.every == 0:
            going = state.going.nonzero().squeeze(-1)
            if len(going) == 0:
                break
            if len(going) < len(index) and (pace.free or len(going) <= WORTH * len(index)):
                whole = state if whole is None else place(whole, index, state)
                rows, index, state = rows.take(going), index[going], take(state, going)
        state = attempt(rows, state, plan(rows, state))
    return state if whole is None else place(whole, index, state)


def chooser(mask: Tensor, look: bool) -> Callable[[Any, Any], Any]:
    """``(new, old) -> new`` for the samples in the mask ``(b,)``, else old; None stays so."""
    if look and bool(mask.all()):
        return lambda new, old: new
    return lambda new, old: None if old is None else choose(mask, new, old)
