"""HardNet(net, constraint): a network followed by an enforcement layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor, nn

from hardnet.errors import DTypeError, OptionError, ShapeError, sentence
from hardnet.functional.derivatives import leak_gradient
from hardnet.layers.auto import build_layer
from hardnet.layers.base import Guarantee, Layer, active_rows
from hardnet.region import Kind
from hardnet.sets.base import ConstraintSet
from hardnet.shapes import require_float
from hardnet.solvers.solution import Status


class Answer(NamedTuple):
    """What ``model(x, return_solution=True)`` returns.

    Attributes:
        y: The enforced output ``(*batch, n)``, with its gradient.
        raw: The output of the network.
        status: `hardnet.solvers.Status` of each sample, ``(*batch)``. Where the method has no solver to tell, a sample
            is SOLVED if rows may give way, else FEASIBLE; one that is NaN is INVALID.
        active: The rows that hold y, by name, and in which samples: `hardnet.layers.Layer.active`.
    """

    y: Tensor
    raw: Tensor
    status: Tensor
    active: dict[str, Tensor]


class HardNet(nn.Module):
    """``y = layer(net(x), x)``, so that ``model(x)`` is in C(x).

    An ordinary module: it can be moved, copied, pickled, compiled and saved like any other, and it enforces unless
    called with ``enforce=False``. Under autocast the network runs in half precision; the enforcement runs in float32,
    and y is float32.

    Args:
        net: Any module that maps x to raw outputs ``(*batch, raw_dim)``.
        constraint: The set C(x).
        method: ``"auto"``, the name of a method, or a layer built on this constraint.
        leak: Share of the loss gradient that bypasses the enforcement, in [0, 1]. 0 is the exact gradient; a small
            share frees samples that are stuck on the boundary (see `hardnet.gradients`).
        options: The options of the method's layer, such as ``strict=True`` or ``on_infeasible="nearest"``.

    Example:
        >>> import torch, hardnet as hn
        >>> net = torch.nn.Linear(3, 2)
        >>> model = hn.HardNet(net, hn.Affine(torch.tensor([[1.0, 1.0]]), upper=lambda x: x[..., :1]))
        >>> y = model(torch.randn(5, 3))
    """

    def __init__(
        self,
        net: nn.Module,
        constraint: ConstraintSet,
        method: str | Layer = "auto",
        *,
        leak: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__()
        if not (isinstance(leak, (int, float)) and 0 <= leak <= 1):
            raise OptionError(sentence("leak", "a share between 0 and 1", repr(leak)))
        if not isinstance(net, nn.Module):
            raise DTypeError(sentence("net", "an nn.Module", type(net).__name__))
        if not isinstance(constraint, ConstraintSet):
            remedy = "build one with hn.Affine, hn.Box, ... or subclass hn.sets.ConstraintSet"
            raise DTypeError(sentence("constraint", "a set", type(constraint).__name__, remedy))
        like = next((value for value in net.parameters() if value.is_floating_point()), None)
        if like is not None:
            constraint.follow(like)  # already here, so that a compiled model has its factors in the right dtype
        self.layer: Layer = build_layer(constraint, method, **options)
        self.net: nn.Module = self.layer.prepare(net)
        self._width = self.layer.raw_dim  # None if it is only known from the data
        self.leak = leak

    @property
    def constraint(self) -> ConstraintSet:
        """The set that the layer enforces."""
        return self.layer.constraint

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.layer.name

    @overload
    def forward(self, x: Any, enforce: bool = True, return_raw: Literal[False] = False) -> Tensor: ...

    @overload
    def forward(self, x: Any, enforce: bool = True, *, return_raw: Literal[True]) -> tuple[Tensor, Tensor]: ...

    @overload
    def forward(self, x: Any, *, return_solution: Literal[True]) -> Answer: ...

    def forward(
        self, x: Any, enforce: bool = True, return_raw: bool = False, return_solution: bool = False
    ) -> Tensor | tuple[Tensor, Tensor] | Answer:
        """Return the enforced output y.

        Args:
            x: The input of the network and of the constraint, of any structure. Every function of x, of every set, sees
                all of it, whatever parts of it are per sample or shared; what it returns has the batch of raw in front.
            enforce: Whether to enforce; with False (the paper's warm start) y is the raw output.
            return_raw: Whether to return ``(y, raw)``, for a loss that also penalizes how far raw was moved.
            return_solution: Whether to return an `Answer`: y, raw, the status of each sample, and the active rows by
                name. What would raise an error still does: ``on_infeasible="nan"`` and ``on_unsolved="nan"`` keep such
                samples, with their status.
        """
        if not (isinstance(enforce, bool) and isinstance(return_raw, bool) and isinstance(return_solution, bool)):
            _refuse_flags(enforce=enforce, return_raw=return_raw, return_solution=return_solution)
        raw = self.net(x)
        self._check(raw)
        y = self.layer(raw, x) if enforce else raw
        if enforce and self.leak:
            y = leak_gradient(y, raw, self.leak)
        if return_solution:
            if not enforce or self.layer.guarantee is Guarantee.NONE:
                raise OptionError(sentence("return_solution", "an enforced output with a guarantee", "none"))
            return Answer(y, raw, self._status(raw, x, y), active_rows(self.constraint, y, x))
        return (y, raw) if return_raw else y

    @torch.no_grad()
    def _status(self, raw: Tensor, x: Any, y: Tensor) -> Tensor:
        """What became of each sample."""
        solve = getattr(self.layer, "solve", None)
        soft = Kind.SOFT in self.constraint.kinds
        if solve is not None and not soft:
            return solve(raw, x).status
        found = Status.SOLVED if soft else Status.FEASIBLE
        return torch.where(y.isfinite().all(-1), int(found), int(Status.INVALID)).to(torch.int8)

    def extra_repr(self) -> str:
        """The constraint, the number of outputs, the method and its guarantee."""
        n = "n" if self.constraint.dim is None else self.constraint.dim
        leak = f", leak={self.leak}" if self.leak else ""
        enforced = " & ".join(part.label for part in self.constraint.parts)
        return f"{enforced} on {n} outputs, method '{self.method}', guarantee {self.layer.guarantee}{leak}"

    def _check(self, raw: Tensor) -> None:
        """Refuse a network output that is not a float tensor with the number of outputs that the method needs."""
        if not isinstance(raw, Tensor) or not raw.is_floating_point() or raw.layout != torch.strided:
            require_float("net", raw)
        if self._width is not None and raw.shape[-1:] != (self._width,):
            outputs = "1 output" if self._width == 1 else f"{self._width} outputs"
            expected = f"{outputs} per sample for method '{self.method}'"
            remedy = "change the network's last layer, or the set (A has a row for each constraint, (m, n))"
            raise ShapeError(sentence("net", expected, tuple(raw.shape), remedy))


@torch.no_grad()
def best_of(
    model: HardNet, x: Any, objective: Callable[[Tensor, Any], Tensor], k: int, *, spread: float = 0.1
) -> Tensor:
    """``argmin_j objective(layer(raw + spread e_j, x), x)`` over ``e_0 = 0`` and k - 1 Gaussian draws, per sample.

    Every candidate is enforced, so y is in C(x) whatever is drawn, and never worse than ``model(x)``. It pays where a
    program of few free outputs is answered at test time.

    Args:
        model: A network with its layer.
        x: The input.
        objective: From y ``(*batch, n)`` and x to a value per sample ``(*batch,)``; the least is kept.
        k: How many candidates are tried, in turn.
        spread: Standard deviation of the draws, in the units of raw.
    """
    if k < 1:
        raise OptionError(sentence("k", "at least 1 candidate", k))
    best, raw = model(x, return_raw=True)
    least = objective(best, x)
    if least.shape != best.shape[:-1]:
        raise ShapeError(sentence("objective", f"a value per sample, {tuple(best.shape[:-1])}", tuple(least.shape)))
    for _ in range(k - 1):
        y = model.layer(raw + spread * torch.randn_like(raw), x)
        value = objective(y, x)
        better = value < least
        best, least = torch.where(better.unsqueeze(-1), y, best), torch.where(better, value, least)
    return best


def _refuse_flags(**flags: object) -> None:
    """Refuse flags that are not bool: a second input, or None, would silently switch enforcement on or off."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            remedy = "a network with several inputs takes them as one x: a tuple or a dict"
            raise OptionError(sentence(name, "True or False", type(value).__name__, remedy))
