"""A user-defined problem: data arrays, a constraint and a loss, on which every method of the library can be trained."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hardnet.cli.inputs import FAILS, object_of_file
from hardnet.errors import DTypeError, HardNetError, NonFiniteError, ShapeError, sentence
from hardnet.metrics import penalty
from hardnet.sets.base import ConstraintSet
from hardnet_lab.problems.base import Hidden, Policy, Problem, both_outputs, moved, violation_metrics

Loss = Callable[..., Tensor]
"""From y ``(*batch, n)``, x and, where there are targets, the targets, to one number per sample ``(*batch,)``."""
Network = Callable[[int, int], nn.Module]
"""From the number of inputs and of outputs to a module that maps ``(batch, inputs)`` to ``(batch, outputs)``."""
FLOAT64 = " (problems are trained in float64: write tensors of your own as T.to(x))"
"""Hint for errors in which a user's float32 tensor meets float64 data."""


class OwnProblem(Problem):
    """``min mean loss(y(x), x, target)`` with y(x) in C(x), on given data, all in float64.

    Args:
        name: Names the problem's folder and table.
        x: Inputs ``(samples, inputs)``: a tensor, an array or a list.
        constraint: The set C(x).
        loss: ``loss(y, x)`` or, with targets, ``loss(y, x, target)``; one number per sample.
        target: ``(samples, targets)``, if the loss compares y with something.
        output_dim: Length of y; by default the constraint's, if it has one.
        validation: Share of the samples used for validation during training.
        test: Share of the samples used for the tables. Both shares are taken from the end of the data.
        network: Makes the network; a ReLU network with two hidden layers of 200 by default.
        hidden: The hidden blocks of the default network.
        batch_size: Samples per step.
        soft_weight: Weight of the squared violations in the loss of methods that need one.
        capture: Whether steps may be captured on a GPU; loss, constraint and network must then not read values.
    """

    name: str
    output_dim: int
    has_target: bool
    hidden: Hidden
    batch_size: int
    soft_weight: float
    train: Tensor
    validation: Tensor
    test: Tensor
    input_dim: int
    encoded_dim: int

    objective = "objective"
    dc3 = None

    def __init__(
        self,
        name: str,
        x: Any,
        constraint: ConstraintSet,
        loss: Loss,
        *,
        target: Any = None,
        output_dim: int | None = None,
        validation: float = 0.1,
        test: float = 0.1,
        network: Network | None = None,
        hidden: Hidden | None = None,
        batch_size: int = 200,
        soft_weight: float = 10.0,
        capture: bool = False,
    ) -> None:
        inputs = _samples("x", x)
        targets = inputs[:, :0] if target is None else _samples("target", target)
        if len(targets) != len(inputs):
            raise ShapeError(sentence("target", f"{len(inputs)} samples, as x has", len(targets)))
        dim = output_dim or constraint.dim
        if dim is None:
            raise ShapeError(sentence("output_dim", "the number of outputs", None, "this constraint does not know it"))
        self.name, self.output_dim, self.network = name, dim, network
        self.constraint: ConstraintSet = copy.deepcopy(constraint).double()
        self.input_dim = self.encoded_dim = inputs.shape[1]
        self.has_target, self.of_sample = target is not None, loss
        self.hidden, self.batch_size, self.soft_weight = hidden or Hidden(), batch_size, soft_weight
        rows = torch.cat([inputs, targets], 1)
        self.train, self.validation, self.test = _parts(rows, validation, test)
        self.capturable = capture

    def inputs(self, x: Tensor) -> Tensor:
        """The inputs of a row of data, without its targets."""
        return x[..., : self.input_dim]

    def verify(self) -> None:
        """Try loss and constraint on a few samples, so that errors in them are reported before anything runs."""
        x = self.train[:8]
        random = torch.Generator().manual_seed(0)
        y = torch.randn(len(x), self.output_dim, dtype=x.dtype, generator=random).to(x.device)
        try:
            loss, violation = self.loss(lambda _: y, x), self.constraint.violation(y, self.inputs(x))
        except HardNetError as error:
            raise HardNetError(f"{self.name}: {error}") from error
        except Exception as error:  # the loss and the constraint are user code
            said = f"{self.name}: its loss or constraint fails; {type(error).__name__}: {error}"
            raise HardNetError(f"{said}{FLOAT64 if 'dtype' in str(error) else ''}") from error
        for what, value in (("loss", loss), ("constraint", violation)):
            if not value.isfinite().all():
                raise HardNetError(f"{self.name}: its {what} is not finite at the first samples with random outputs")

    def loss(self, policy: Policy, x: Tensor, soft_weight: float = 0.0, displacement: float = 0.0) -> Tensor:
        """``loss(y, x, target) + soft_weight * sum residual^2 + displacement * |y - raw|^2`` per sample."""
        given = self.inputs(x)
        y, raw = both_outputs(policy(given))
        loss = self._value(y, x)
        if soft_weight:
            loss = loss + soft_weight * penalty(self.constraint, y, given)
        return loss + displacement * moved(y, raw) if displacement else loss

    def evaluate(self, policy: Policy, x: Tensor) -> dict[str, Tensor]:
        """The mean loss, and the largest, mean and number of violations per sample, averaged."""
        given = self.inputs(x)
        y = policy(given)
        return {"objective": self._value(y, x).mean(-1)} | violation_metrics(self.constraint.violation(y, given))

    def _value(self, y: Tensor, x: Tensor) -> Tensor:
        """The user's loss; an error where it is not one number per sample."""
        parts = (self.inputs(x), x[..., self.input_dim :]) if self.has_target else (self.inputs(x),)
        value = self.of_sample(y, *parts)
        if not isinstance(value, Tensor) or value.shape != y.shape[:-1]:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            remedy = "sum over the last dimension only"
            raise ShapeError(sentence("loss", f"one number per sample, {tuple(y.shape[:-1])}", got, remedy))
        return value


def _samples(name: str, given: Any) -> Tensor:
    """Data as float64 ``(samples, numbers)``, checked to be finite."""
    try:
        data = torch.as_tensor(given).detach().to(torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DTypeError(sentence(name, "an array of numbers", type(given).__name__)) from error
    if data.dim() != 2 or not data.numel():
        raise ShapeError(sentence(name, "(samples, numbers)", tuple(data.shape)))
    if not data.isfinite().all():
        raise NonFiniteError(sentence(name, "finite numbers", "NaN or infinity"))
    return data


def _parts(rows: Tensor, validation: float, test: float) -> tuple[Tensor, Tensor, Tensor]:
    """Training, validation and test rows, in order."""
    held, tested = (round(len(rows) * share) for share in (validation, test))
    kept = len(rows) - held - tested
    if min(kept, held, tested) < 1:
        raise ShapeError(sentence("x", "samples for training, validation and test", f"{kept}, {held} and {tested}"))
    return rows[:kept], rows[kept : kept + held], rows[kept + held :]


def own_problem(given: str) -> Problem:
    """The problem that ``path/to/file.py:NAME`` names: a problem, or a class or function that makes one."""
    found = object_of_file(given)
    try:
        problem = found() if callable(found) and not isinstance(found, Problem) else found
    except HardNetError as error:
        raise HardNetError(f"{given}: {error}") from error
    except FAILS as error:
        raise HardNetError(f"{given}: cannot be built; {type(error).__name__}: {error}") from error
    if not isinstance(problem, Problem):
        raise HardNetError(sentence(given, "a Problem, or what makes one", type(problem).__name__))
    return problem
