"""Unions: the nearest of the nearest points of all pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import InfeasibleError, in_samples, sample_indices
from hardnet.layers.base import Guarantee, Layer
from hardnet.layers.hardnet_cvx import HardNetCvx
from hardnet.layers.nearest import refusal, tells_status
from hardnet.layers.nonlinear import NonlinearLayer
from hardnet.layers.options import LayerOptions, choice
from hardnet.layers.projection import Projection
from hardnet.modes import (
    full_precision,
    input_of_set,
    may_look,
    narrow,
    outside_compiler,
    refuse_transforms,
    widen,
)
from hardnet.nearest.policy import Policy, answered, refuse_unsolved, warn_unproved
from hardnet.sets.base import ConstraintSet
from hardnet.solvers.nonlinear.solve import NonlinearStatus
from hardnet.solvers.solution import Solution, Status, solved


class UnionSolution(NamedTuple):
    """The outcome for each sample of a batch: that of the nearest piece, as in `Solution`, and which piece it is.

    Attributes:
        y: ``(*batch, n)``; NaN where no piece has an answer.
        dual: Multipliers of the nearest piece, ``(*batch, m)``, with zeros behind them where others have more rows.
        status: `Status`, ``(*batch)`` int8: INFEASIBLE where all pieces are empty, FEASIBLE where another piece might
            be nearer, since it was not solved, or is nonlinear.
        iterations: Of all pieces together, ``(*batch)``.
        residual: That of the nearest piece, ``(*batch)``.
        piece: Its index, ``(*batch)``; -1 where no piece has an answer.
    """

    y: Tensor
    dual: Tensor
    status: Tensor
    iterations: Tensor
    residual: Tensor
    piece: Tensor


class UnionLayer(Layer):
    """``y = argmin |y - raw|  s.t.  y in C_1(x) or y in C_2(x) or ...``.

    Every piece is solved by `projection`, `cvx` or `nonlinear`, and the nearest answer is taken, the first of equals;
    an empty piece is not taken. The gradient is that of the piece. The map jumps where two pieces are equally near,
    which no gradient tells.

    Args:
        constraint: A union ``a | b`` of up to 16 pieces; another set is its only piece.
        on_infeasible: What to do where all pieces are empty: ``"raise"`` an `InfeasibleError` that names the samples,
            or return ``"nan"`` for these alone; ``"auto"`` raises on a CPU and returns NaN elsewhere.
        on_unsolved: What to do where no piece is solved and some piece is not proved empty: as above, with a
            `ConvergenceError`.
        on_invalid: What to do with NaN, or with numbers that do not describe a set, in any piece.
    """

    name = "union"
    accepts = "unions a | b of sets that projection, cvx or nonlinear takes"
    guarantee = Guarantee.TOLERANCE
    traceable = False

    @dataclass(frozen=True)
    class Options(LayerOptions):
        """The options above."""

        on_infeasible: Literal["auto", "raise", "nan"] = choice("auto", "raise", "nan")
        on_unsolved: Literal["auto", "raise", "nan"] = choice("auto", "raise", "nan")
        on_invalid: Literal["raise", "nan"] = choice("raise", "nan")

    options: Options
    solvers: tuple[Any, ...] = ()
    """The layer of each piece; not part of the state, which the pieces' own numbers are."""

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__(constraint, **options)
        self.refresh()

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Every piece must have a solver that tells the status of a sample."""
        return next((why for why in map(_refused, constraint.pieces) if why is not None), None)

    def refactor(self) -> None:
        """Build the layers of the pieces again, with what each precomputes."""
        self.solvers = tuple(_solver(piece) for piece in self.constraint.pieces)

    @outside_compiler
    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, n)`` to the nearest y ``(*batch, n)`` of the nearest piece."""
        refuse_transforms("the nearest of several pieces")
        look = may_look(raw)
        points = [layer.enforce(raw, x) for layer in self.solvers]
        found = self._find(raw, x, points)
        own = self.options
        policy = Policy(on_infeasible=own.on_infeasible, on_unsolved=own.on_unsolved).resolved(look)
        if own.on_invalid == "raise" and look and bool((found.status == int(Status.INVALID)).any()):  # a piece says why
            for piece in self.constraint.pieces:
                _solver(piece, on_invalid="raise").enforce(raw, x)
        empty = found.status == int(Status.INFEASIBLE)
        if policy.on_infeasible == "raise" and bool(empty.any()):
            samples = sample_indices(empty) if empty.dim() else []
            raise InfeasibleError(f"the set is empty: no piece of the union has a point{in_samples(samples)}", samples)
        kept = Solution(*found[:5])
        if policy.on_unsolved == "raise":
            refuse_unsolved(kept, remedy="pass on_unsolved='nan'; the error's .solution has the other samples")
        if look:
            warn_unproved(kept, self.once)
        return answered(kept, policy)

    @outside_compiler
    @full_precision
    @torch.no_grad()
    def solve(self, raw: Tensor, x: Any = None) -> UnionSolution:
        """The nearest point with its piece, multipliers, status, iterations and residual; nothing is raised."""
        self.settle(raw)
        found = self._find(widen(raw), input_of_set(x, raw), None)
        return found._replace(y=narrow(found.y, raw.dtype, "nan"))

    def _find(self, raw: Tensor, x: Any, points: list[Tensor] | None) -> UnionSolution:
        """The nearest of the pieces' solutions; y are `points` where they are given, which carry gradients."""
        with torch.no_grad():
            found = [_solution(layer, raw, x) for layer in self.solvers]
            status = torch.stack([own.status for own in found], dim=-1)
            moved = [torch.linalg.vector_norm((own.y - raw).double(), dim=-1) for own in found]
            distance = torch.where(solved(status), torch.stack(moved, dim=-1), torch.inf)
            piece = distance.argmin(-1)
            verdict = _verdict(status, distance, piece)
            width = max(own.dual.shape[-1] for own in found)
            pad = lambda dual: torch.nn.functional.pad(dual, (0, width - dual.shape[-1]))
            picked = [
                _pick(parts, piece) for parts in ([pad(own.dual) for own in found], [own.residual for own in found])
            ]
            iterations = torch.stack([own.iterations.long() for own in found]).sum(0)
        y = _pick([own.y for own in found] if points is None else points, piece)
        y = torch.where(solved(verdict).unsqueeze(-1), y, torch.nan)
        piece = torch.where(solved(verdict), piece, -1)
        return UnionSolution(y, picked[0], verdict, iterations, picked[1], piece)


def _refused(piece: ConstraintSet) -> str | None:
    """Why no solver takes a piece; None where one does."""
    if refusal(piece) is not None:
        return NonlinearLayer.refusal(piece)
    if not tells_status(piece):
        return f"{type(piece).__name__} has no solver that tells the status of a sample; use method='auto' on it alone"
    return None


def _solver(piece: ConstraintSet, on_invalid: str = "nan") -> Layer:
    """The layer of a piece, with NaN for samples without an answer."""
    kind = Projection if piece.polyhedral else HardNetCvx if refusal(piece) is None else NonlinearLayer
    return kind(piece, on_infeasible="nan", on_unsolved="nan", on_invalid=on_invalid)


def _solution(layer: Any, raw: Tensor, x: Any) -> Solution:
    """That of a piece; what a nonlinear solver finds is in the set, and nobody knows of a nearer point."""
    if not isinstance(layer, NonlinearLayer):
        return layer._find(raw, x)
    found = layer.solve(raw, x)
    invalid = found.status == int(NonlinearStatus.INVALID)
    missed = (found.status == int(NonlinearStatus.NOT_CONVERGED)) | (
        found.status == int(NonlinearStatus.INFEASIBLE_LOCAL)
    )
    status = torch.where(invalid, int(Status.INVALID), torch.where(missed, int(Status.NOT_CONVERGED), Status.FEASIBLE))
    return Solution(found.y, found.dual, status.to(torch.int8), found.iterations, found.residual)


def _verdict(status: Tensor, distance: Tensor, piece: Tensor) -> Tensor:
    """The status of a union from those of its pieces ``(*batch, k)``: FEASIBLE where another piece might be nearer."""
    own = status.gather(-1, piece.unsqueeze(-1)).squeeze(-1)
    proved = (status == int(Status.SOLVED)) | (status == int(Status.INFEASIBLE))
    nearest = proved.all(-1) | (distance.amin(-1) == 0)
    none = torch.where((status == int(Status.INFEASIBLE)).all(-1), int(Status.INFEASIBLE), int(Status.NOT_CONVERGED))
    verdict = torch.where(nearest, int(Status.SOLVED), int(Status.FEASIBLE))
    verdict = torch.where(solved(own), verdict, none)
    invalid = (status == int(Status.INVALID)).any(-1)
    return torch.where(invalid, int(Status.INVALID), verdict).to(torch.int8)


def _pick(parts: list[Tensor], piece: Tensor) -> Tensor:
    """The part of each sample's piece; `where` keeps NaN of the others out of the gradient."""
    y = parts[0]
    for index, part in enumerate(parts[1:], 1):
        own = piece == index
        y = torch.where(own.unsqueeze(-1) if part.dim() > own.dim() else own, part, y)
    return y
