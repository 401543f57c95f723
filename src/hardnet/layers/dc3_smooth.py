"""DC3 (Donti, Rolnick & Kolter, 2021) for smooth constraints: Newton completion, then descent along the equalities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.functional.dc3 import complete_smooth, gradient, jacobian, partition_of, reduce_gradient
from hardnet.layers.base import Guarantee
from hardnet.layers.constant_rows import CompletionLayer, poison, take_raw
from hardnet.layers.options import LayerOptions, choice, count, indices, number
from hardnet.modes import may_look
from hardnet.nearest.policy import Policy, refuse_unsolved
from hardnet.sets.base import ConstraintSet
from hardnet.sets.nonlinear import Smooth
from hardnet.solvers.solution import Solution, Status


class SmoothDC3(CompletionLayer):
    """Solve ``h(z, y_O) = 0`` for y_O, then `steps` of ``z <- z - step d|relu g|^2/dz - momentum (last move)``.

    After every move the equalities are solved again, so that they hold to `newton_tolerance`; the inequalities are
    pushed towards their bounds, without a guarantee. Gradients flow through all steps.

    Args:
        constraint: `Smooth`.
        predicted: The coordinates that the network predicts: n minus the number of equalities.
        step: Step size of the correction.
        steps: Correction steps in training and in evaluation.
        extra_steps: Further steps in evaluation; each sample stops on its own at `tolerance`.
        momentum: Weight of the previous move.
        tolerance: Largest inequality violation at which a sample stops during the extra steps.
        start: The value from which Newton's method starts, for every completed coordinate.
        newton_tolerance: Largest ``|h|`` that counts as solved.
        newton_iterations: The maximum number of Newton steps.
        on_unsolved: For samples whose equalities are not solved: ``"raise"`` a `ConvergenceError`, ``"nan"``, or the
            ``"best"`` point found; ``"auto"`` raises where values may be read, unless ``on_invalid="nan"``.
        on_invalid: ``"raise"`` an error that names samples with bad numbers, or return ``"nan"`` for these alone.
    """

    name = "dc3-smooth"
    accepts = "smooth functions g(y, x) <= 0 and h(y, x) = 0"
    guarantee = Guarantee.ASYMPTOTIC

    @dataclass(frozen=True)
    class Options(LayerOptions):
        """As above."""

        predicted: tuple[int, ...] | None = indices()
        step: float = number(1e-2, above=0)
        steps: int = count(10)
        extra_steps: int = count(0)
        momentum: float = number(0.5)
        tolerance: float = number(1e-4)
        start: float = number(0.0)
        newton_tolerance: float = number(1e-10, above=0)
        newton_iterations: int = count(50, least=1)
        on_unsolved: Literal["auto", "raise", "nan", "best"] = choice("auto", "raise", "nan", "best")
        on_invalid: Literal["raise", "nan"] = choice("raise", "nan")

    options: Options

    def __init__(self, constraint: ConstraintSet, **options: Any) -> None:
        super().__init__(constraint, **options)
        smooth, predicted = cast(Smooth, constraint), self.options.predicted
        if (predicted is None) != (smooth.equality is None):
            got = "none" if predicted is None else "some for a set without any"
            raise ShapeError(sentence("predicted", "the coordinates that equalities leave to the network", got))
        free = list(range(smooth.dim)) if predicted is None else list(predicted)
        if len(set(free)) < len(free) or not all(0 <= column < smooth.dim for column in free):
            raise ShapeError(sentence("predicted", f"distinct coordinates in 0..{smooth.dim - 1}", free))
        self.choose(partition_of(free, smooth.dim, torch.device("cpu")))

    @classmethod
    def refusal(cls, constraint: ConstraintSet) -> str | None:
        """Accept only sets given by smooth functions."""
        if isinstance(constraint, Smooth):
            return None
        return f"{type(constraint).__name__} is not given by smooth functions; use method='dc3' for affine rows"

    def enforce(self, raw: Tensor, x: Any = None) -> Tensor:
        """Map raw ``(*batch, raw_dim)`` to y ``(*batch, n)``."""
        raw, bad = take_raw(raw, self)
        z, move = raw, torch.zeros_like(raw)
        start = raw.new_full((*raw.shape[:-1], self.completed.numel()), self.options.start)
        y, solved = self._complete(z, x, start)
        for done in range(self.options.steps + (0 if self.training else self.options.extra_steps)):
            move = self.options.step * self._descent(y, x) + self.options.momentum * move
            if done >= self.options.steps:
                move = torch.where(self._violated(y, x), move, 0)
            z = z - move
            y, solved = self._complete(z, x, y.detach().index_select(-1, self.completed))
        lost, own = ~solved & ~bad, self.options
        policy = Policy("nan", own.on_unsolved, own.on_invalid).resolved(own.on_invalid == "raise")
        answer = poison(y, bad if policy.on_unsolved == "best" else bad | lost)
        if policy.on_unsolved == "raise" and may_look(y):
            expected = f"equality: expected a solution to {own.newton_tolerance:g}, got no convergence"
            status = torch.where(bad, int(Status.INVALID), torch.where(lost, int(Status.NOT_CONVERGED), 0))
            residual = torch.where(status == 0, 0.0, torch.inf)
            found = Solution(y, y[..., :0], status.to(torch.int8), torch.zeros_like(status), residual)
            refuse_unsolved(found, expected, "predict other coordinates, or change start or step")
        return answer

    @property
    def _smooth(self) -> Smooth:
        return cast(Smooth, self.constraint)

    def _complete(self, z: Tensor, x: Any, start: Tensor) -> tuple[Tensor, Tensor]:
        """All coordinates, and which samples are solved."""
        equality = self._smooth.equality
        if equality is None:
            return z, torch.ones(z.shape[:-1], dtype=torch.bool, device=z.device)
        return complete_smooth(
            z, x, equality, self.columns, start, self.options.newton_tolerance, self.options.newton_iterations
        )

    def _descent(self, y: Tensor, x: Any) -> Tensor:
        """The gradient of ``|relu g|^2`` in the predicted coordinates, along the equalities."""
        inequality, equality = self._smooth.inequality, self._smooth.equality
        if inequality is None:
            return torch.zeros_like(y.index_select(-1, self.predicted))
        full = gradient(lambda point, given: inequality(point, given).clamp_min(0).square().sum(), y, x)
        return full if equality is None else reduce_gradient(full, jacobian(equality, y, x), self.columns)

    def _violated(self, y: Tensor, x: Any) -> Tensor:
        """Whether any inequality of a sample exceeds the tolerance, ``(*batch, 1)``."""
        inequality = self._smooth.inequality
        if inequality is None:
            return torch.zeros_like(y[..., :1], dtype=torch.bool)
        return inequality(y, x).amax(dim=-1, keepdim=True) > self.options.tolerance
