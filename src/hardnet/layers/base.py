"""A layer defines how a set is enforced: it maps (raw, x) to y. One file per paper."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from enum import StrEnum
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from hardnet.errors import DTypeError, FileWarning, UnsupportedSetError, sentence
from hardnet.layers.identity import UNNAMED, pack, refuse_other
from hardnet.layers.options import LayerOptions, signature_with, take_options
from hardnet.modes import GRAPHS, HALF, full_precision, input_of_set, mode, narrow, widen, working
from hardnet.nearest.policy import Once
from hardnet.products import times
from hardnet.region import Kind
from hardnet.sets.arguments import Constants
from hardnet.sets.base import ConstraintSet
from hardnet.shapes import NO_DOUBLE, require_float
from hardnet.solvers.solution import Solution
from hardnet.structure import BoxedRows
from hardnet.tolerances import ROUNDINGS


class Guarantee(StrEnum):
    """What a layer guarantees about y in C(x)."""

    EXACT = "exact"  # for every finite input, up to rounding of the dtype
    TOLERANCE = "tolerance"  # to a stated tolerance, with a reported residual
    ASYMPTOTIC = "asymptotic"  # in the limit of many iterations
    NONE = "none"


class Layer(nn.Module):
    """Enforcement of one set: ``y = layer(raw, x)``.

    A subclass sets the class attributes below, implements `refusal` and `enforce`, and is otherwise an
    ordinary module. Build it as ``Layer(constraint, **options)``; the constructor refuses a set that it cannot enforce
    and an option that is not in its `Options`.
    """

    Options: ClassVar[type[LayerOptions]] = LayerOptions
    """The options as a frozen dataclass, with fields of the kinds in `hardnet.layers.options`."""

    name: ClassVar[str]
    """The name that ``HardNet(net, constraint, method=name)`` takes."""
    accepts: ClassVar[str]
    """The sets it can enforce, as a readable phrase."""
    guarantee: ClassVar[Guarantee]
    """What is guaranteed about y."""
    identity_inside: bool = True
    """Whether a raw output already in C(x) is returned unchanged, bit for bit."""
    differentiable_numbers: ClassVar[bool] = True
    """Whether gradients flow to the numbers of the set (A, bounds) as well as to raw."""

    traceable: ClassVar[bool] = True
    """Whether torch.jit.trace records, within seconds, a program that can be saved and is correct for other inputs."""

    _place: tuple[torch.dtype, torch.device] | None = None
    """Dtype and device of the raw outputs that the set's constants were last moved to; None where they may differ."""

    once: Once
    """Whether this layer has warned of points that are in the set but not proved to be the nearest."""
    options: Any  # each layer declares its own type
    """The options of this layer, given or default."""

    def __init_subclass__(cls, **named: Any) -> None:
        """Show the options in the signature of the class."""
        super().__init_subclass__(**named)
        cls.__signature__ = signature_with(cls.__init__, cls.Options)

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__()
        self.options = take_options(self.name, self.Options, options)
        reason = self.refusal(constraint)
        if reason is not None:
            raise UnsupportedSetError(f"method '{self.name}' cannot enforce this set: {reason}")
        self.constraint = constraint
        self.once = Once()
        self.register_load_state_dict_post_hook(_refactor_after_load)

    @classmethod
    @abstractmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Why this layer cannot enforce the set, and what would work instead; None where it can."""

    def extra_repr(self) -> str:
        """``method 'aff', guarantee exact, strict=False, ...``."""
        return ", ".join(filter(None, [f"method '{self.name}'", f"guarantee {self.guarantee}", str(self.options)]))

    @property
    def raw_dim(self) -> int | None:
        """How many numbers the network must emit per sample; None where it is only known from the data."""
        return self.constraint.dim

    def prepare(self, net: nn.Module) -> nn.Module:
        """The network to run in front of this layer: `net` itself, unless the method changes hidden layers."""
        return net

    def refactor(self) -> None:
        """Rebuild what is precomputed from a constant set, such as a factor of A; by default nothing.

        A layer that keeps factors calls `refresh` at the end of its `__init__`; after that, `refresh` is called after
        every change of dtype or device and every load of a state dict, so that a factor never goes stale.
        """

    def refresh(self) -> None:
        """Call `refactor`, unless numbers of the set are on the meta device, or not filled yet: a load will do it.

        On a device without float64 nothing is precomputed either: the layer refuses to run there.
        """
        self._place = None
        away = any(number.is_meta or number.device.type in NO_DOUBLE for number in self.constraint.buffers())
        if not away and not any(isinstance(part, Constants) and part.empty for part in self.modules()):
            with torch.device("cpu"):  # regardless of the default device; tables are moved to the device of the set
                self.refactor()

    def code_at(self, raw: Tensor, x: Any) -> dict[str, Tensor]:
        """The values at x of the options that are functions of x, by name: the only part of them a file can store."""
        return {}

    def _follow(self, raw: Tensor) -> None:
        """Move what the layer precomputed from the set to the device of raw and the dtype it is enforced in."""
        for name, value in self._buffers.items():
            if value is not None and value.is_floating_point():
                self._buffers[name] = value.to(raw.device, working(raw.dtype))
        self.refresh()

    def settle(self, raw: Tensor) -> None:
        """Move the constants of the set to the dtype and device of raw, where they are not there yet."""
        if not isinstance(raw, Tensor) or not raw.is_floating_point():
            require_float("raw", raw)
        if not self.traceable and mode() == "trace":
            remedy = "use torch.export, or method='aff'"
            expected = "a method without iterations"
            raise UnsupportedSetError(sentence("torch.jit.trace", expected, f"'{self.name}'", remedy))
        if self._place != (raw.dtype, raw.device) and mode() not in GRAPHS:
            require_float("raw", raw)  # its device too
            if self.constraint.follow(raw):
                self._follow(raw)
            self._place = (raw.dtype, raw.device)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.refresh()
        return self

    def get_extra_state(self) -> Tensor:
        """Method and options as a tensor of JSON bytes for the state dict: every file format can hold tensors."""
        return pack(self.name, self.options)

    def set_extra_state(self, state: Any) -> None:
        """Refuse a state dict of another method or with other options, naming what differs."""
        refuse_other(state, self.name, self.options)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any) -> None:
        """Load as usual; warn if the state dict does not name method and options, as in version 0.1."""
        key = f"{prefix}_extra_state"
        if key not in state_dict:
            warnings.warn(UNNAMED.format(method=self.name), FileWarning, stacklevel=2)
            state_dict[key] = self.get_extra_state()
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)

    def forward(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, raw_dim)`` and the input x to y ``(*batch, n)`` in C(x).

        Half precision is enforced in float32, and y rounded to the dtype of raw; under autocast y stays in float32.
        Constants that were given as lists are moved to the dtype and device of raw, together with their factors.
        """
        self.settle(raw)
        if torch.is_autocast_enabled(raw.device.type):  # products in half precision would leave C(x)
            with torch.autocast(raw.device.type, enabled=False):
                return self.enforce(widen(raw), widen(x))
        if raw.dtype not in HALF:
            return self.enforce(raw, input_of_set(x, raw))
        if getattr(self.options, "strict", False):
            remedy = "rounding to half precision would undo it; use strict=False, or run in float32"
            raise DTypeError(sentence("raw", "float32 or float64 with strict=True", raw.dtype, remedy))
        return narrow(self.enforce(raw.float(), x), raw.dtype, getattr(self.options, "on_invalid", "raise"))

    def active(self, raw: Tensor, x: Any = None) -> dict[str, Tensor]:
        """The rows that hold ``y = layer(raw, x)``, by name: in which samples, ``(*batch)`` bool.

        A row is active where y is on its bound, to the rounding that a certificate allows, or where it gives way. Rows
        that are active in no sample are left out.

        Args:
            raw: ``(*batch, raw_dim)``.
            x: The input.
        """
        with torch.no_grad():
            return active_rows(self.constraint, self(raw, x), x)

    @abstractmethod
    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, raw_dim)``, float32 or float64, and the input x to y ``(*batch, n)`` in C(x)."""


@torch.no_grad()
def solve_layer(layer: Layer, raw: Tensor, x: Any, find: Callable[[Tensor, Any], Solution]) -> Solution:
    """The solution of `find` for a layer, whose constants move to raw; half precision is solved in float32."""
    layer.settle(raw)
    found = _find_precisely(widen(raw), input_of_set(x, raw), find)
    y = narrow(found.y, raw.dtype, "nan") if raw.dtype in HALF else found.y
    return Solution(y, *found[1:])  # torch 2.11 cannot compile returning a record made by `_replace`


@full_precision
def _find_precisely(raw: Tensor, x: Any, find: Callable[[Tensor, Any], Solution]) -> Solution:
    """Call `find` with autocast off; x was converted before, depending on autocast."""
    return find(raw, x)


@torch.no_grad()
def active_rows(constraint: ConstraintSet, y: Tensor, x: Any) -> dict[str, Tensor]:
    """The affine rows of C(x) whose bound y ``(*batch, n)`` reaches or passes, by name; see `Layer.active`."""
    region, exact = constraint.region(input_of_set(x, y), widen(y)), y.double()
    reached: list[Tensor] = []
    for own, part in zip(constraint.parts, region.parts, strict=True):
        if not isinstance(part.data, BoxedRows):
            expected, remedy = "a set of dense affine rows", "layer.solve(raw, x).dual has the multipliers of every row"
            raise UnsupportedSetError(sentence("active", expected, own.label, remedy))
        rows = part.data.stacked()
        value = times(rows.A.double(), exact)
        near = ROUNDINGS * torch.finfo(y.dtype).eps * (part.own or rows).scale(widen(y)).double()
        none = torch.zeros_like(value, dtype=torch.bool)
        above = none if rows.upper is None else value >= rows.upper.double() - near
        below = none if rows.lower is None else value <= rows.lower.double() + near
        reached.append(above | below)
    names, active = region.name_rows(), torch.cat(reached, dim=-1)
    some = active.reshape(-1, len(names)).any(0).nonzero().squeeze(-1).tolist()
    return {names[row]: active[..., row] for row in some}


def not_affine(constraint: ConstraintSet) -> str:
    """Why a method for affine rows refuses a set of another kind."""
    kind = "dense affine rows" if Kind.SPARSE in constraint.kinds else "affine rows"
    return f"{type(constraint).__name__} is not a set of {kind}; use method='auto'"


def _refactor_after_load(layer: Layer, _: object) -> None:
    """Refresh after a load; a named function rather than a lambda, so that layers can be pickled."""
    layer.refresh()
