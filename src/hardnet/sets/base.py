"""A set says what is allowed: it maps the input x to the numbers of C(x)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from hardnet.errors import BoundsError, DTypeError, ShapeError, UnsupportedSetError, sentence
from hardnet.functional.half import HALF
from hardnet.rows import BoxedRows

if TYPE_CHECKING:
    from hardnet.sets.intersection import Intersection

Number = Tensor | float | Sequence[Any] | Callable[[Any], Tensor] | nn.Module
"""What every argument of a set may be: a constant, a function of x, or a module (learned) of x."""


class AffineRows(NamedTuple):
    """The polyhedron ``lower <= A y <= upper`` as numbers; an absent bound is infinite.

    Attributes:
        A: ``(m, n)`` or ``(*batch, m, n)``.
        lower: ``(m,)`` or ``(*batch, m)`` or None.
        upper: ``(m,)`` or ``(*batch, m)`` or None.
    """

    A: Tensor
    lower: Tensor | None
    upper: Tensor | None


class ConstraintSet(nn.Module):
    """C(x), a subset of R^n whose numbers may depend on the input x.

    A set implements `numbers` (evaluate at x), `residual` (how far each row of these numbers is violated)
    and `scale` (the size of the terms of each row, which rounding is relative to). A polyhedral set adds
    `rows`; a set with a projection of its own adds `project`. Numbers and points are plain tensors, so that
    a certificate can evaluate the same formulas in float64 whatever the model's dtype.
    """

    polyhedral: bool = False
    """Whether `rows` describes the whole set."""
    stored_as: ClassVar[dict[str, str]] = {}
    """Constructor arguments that are stored under another attribute (for `hn.save`)."""
    projectable: bool = False
    """Whether `project` is available: the set's own exact Euclidean projection."""

    def __init__(self) -> None:
        super().__init__()
        self._functions: dict[str, Callable[[Any], Tensor]] = {}
        self._constants: list[str] = []

    @property
    def dim(self) -> int | None:
        """The output dimension n, or None where only a function of x knows it."""
        return None

    def origin(self) -> Tensor | None:
        """The zero point ``(n,)`` in the dtype and device of the set's constants; None where n is not known."""
        like = next((value for value in self.buffers() if value.dim() > 0), None)
        if self.dim is None:
            return None
        return torch.zeros(self.dim, dtype=torch.float64) if like is None else like.new_zeros(self.dim)

    @property
    def constant(self) -> bool:
        """Whether no number of the set depends on x and none is learned, so that factors may be kept."""
        learned = self._functions or list(self.parameters(recurse=False)) or list(self.children())
        return not learned and all(self._fixed(name) is not None for name in self._constants)

    @abstractmethod
    def numbers(self, x: Any, like: Tensor) -> Any:
        """The numbers of C(x) as a NamedTuple of tensors; `like` ``(*batch, n)`` gives n, dtype and device."""

    @abstractmethod
    def residual(self, numbers: Any, y: Tensor) -> Tensor:
        """How far y violates each row of `numbers`: ``(*batch, rows)``, zero where the row holds."""

    @abstractmethod
    def scale(self, numbers: Any, y: Tensor) -> Tensor:
        """The size of the terms that each row adds up at y: ``(*batch, rows)``; rounding is relative to it."""

    def rows(self, numbers: Any, like: Tensor) -> AffineRows:
        """The set as affine rows; only where `polyhedral` is True."""
        raise UnsupportedSetError(f"{type(self).__name__} has no description by affine rows")

    def structure(self, numbers: Any, like: Tensor) -> BoxedRows:
        """The set as general rows beside a box, which is never written as a matrix; only where `polyhedral` is True."""
        return BoxedRows(*self.rows(numbers, like))

    def fixed_matrix(self, like: Tensor) -> Tensor | None:
        """The A of `rows` where it is constant, so that its factor can be kept (bounds may depend on x); else None."""
        return None

    def project(self, numbers: Any, raw: Tensor) -> Tensor:
        """The Euclidean projection of raw ``(*batch, n)``, differentiable; only where `projectable` is True."""
        raise UnsupportedSetError(f"{type(self).__name__} has no projection of its own")

    def affine(self, x: Any, like: Tensor) -> AffineRows:
        """`numbers` and `rows` in one step: the affine rows of C(x)."""
        return self.rows(self.numbers(x, like), like)

    def violation(self, y: Tensor, x: Any = None) -> Tensor:
        """How far y violates each row of C(x): ``(*batch, rows)``, in the dtype of y."""
        return self.residual(self.numbers(x, y), y)

    def forward(self, y: Tensor, x: Any = None) -> Tensor:
        """The same as `violation`, so that a set can be called like any module."""
        return self.violation(y, x)

    def __and__(self, other: ConstraintSet) -> Intersection:
        """The intersection of two sets."""
        from hardnet.sets.intersection import Intersection

        if not isinstance(other, ConstraintSet):
            raise DTypeError(sentence("other", "a set after &", type(other).__name__))
        return Intersection([self, other])

    def _take(self, name: str, value: Number | None) -> None:
        """Keep one argument under `name`: a buffer (constant), a parameter or module (learned), or a function."""
        if isinstance(value, nn.Module | nn.Parameter) or value is None:
            setattr(self, name, value)
        elif callable(value):
            self._functions[name] = value
        else:
            self._constants.append(name)
            self.register_buffer(name, _as_constant(name, value))

    def _fixed(self, name: str) -> Tensor | None:
        """The argument where it is a constant that asks for no gradient, else None."""
        value = self._buffers.get(name) if name in self._constants else None
        return None if value is None or value.requires_grad else value

    def _check_bounds(self, rows: int | None) -> None:
        """Refuse constant bounds with another number of entries than rows (None: not known), or lower > upper."""
        lower, upper = self._fixed("lower"), self._fixed("upper")
        for name, bound in (("lower", lower), ("upper", upper)):
            if bound is not None and bound.dim() and bound.shape[-1] != (rows or bound.shape[-1]):
                remedy = "a bound needs one entry per row"
                raise ShapeError(sentence(name, f"shape ({rows},) or (*batch, {rows})", tuple(bound.shape), remedy))
        if lower is None or upper is None or lower.is_meta or upper.is_meta:
            return
        excess = (lower.double() - upper.double()).max().item() if lower.numel() and upper.numel() else 0.0
        if excess > 0:
            got = f"lower > upper by up to {excess:.3g}"
            raise BoundsError(sentence("lower, upper", "lower <= upper in every row", got, "swap or relax them"))

    def _given(self, name: str) -> bool:
        """Whether the argument was given at all."""
        return name in self._functions or getattr(self, name, None) is not None

    def _shape(self, name: str) -> torch.Size | None:
        """The shape of an argument known at construction, else None."""
        value = None if name in self._functions else getattr(self, name, None)
        return value.shape if isinstance(value, Tensor) else None

    def _number(self, name: str, x: Any, like: Tensor) -> Tensor:
        """The argument evaluated at x; a 0-dim constant follows the dtype and device of `like`."""
        function = self._functions.get(name)
        value = function if function is not None else getattr(self, name)
        if isinstance(value, Tensor):
            return value.to(like) if value.dim() == 0 else _as_wide(value, like)
        if x is None:
            owner = type(self).__name__
            raise ShapeError(sentence("x", f"an input, since '{name}' of {owner} is a function of it", None))
        value = value(x)
        if not isinstance(value, Tensor):
            raise DTypeError(sentence(name, "a function that returns a tensor", type(value).__name__))
        return _as_wide(value, like)


def _as_wide(value: Tensor, like: Tensor) -> Tensor:
    """A number in half precision in the wider dtype of `like`, which holds it exactly; any other number as it is."""
    return value.to(like.dtype) if value.dtype in HALF else value


def _as_constant(name: str, value: Any) -> Tensor:
    """A constant as a float tensor: tensors keep their dtype; Python numbers become float64."""
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    if not tensor.is_floating_point():
        raise DTypeError(sentence(name, "a floating-point tensor", tensor.dtype, "call .double() or .float()"))
    return tensor
