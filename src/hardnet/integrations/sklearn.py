"""scikit-learn: a regressor whose predictions satisfy their constraint in the units of the data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from hardnet.certificate import Certificate, check
from hardnet.errors import MissingExtraError, OptionError, sentence
from hardnet.layers.auto import build_layer
from hardnet.layers.base import Guarantee, Layer
from hardnet.model import HardNet
from hardnet.sets.base import ConstraintSet
from hardnet.sets.scaled import scaled

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise MissingExtraError("scikit-learn", "sklearn") from error


class HardNetRegressor(RegressorMixin, BaseEstimator):
    """``predict(X)[i] in C(X[i])``: a multilayer perceptron with a constraint, trained by Adam on the squared error.

    Inputs and targets are standardized internally; the constraint is scaled with the targets (`hn.scaled`) for
    training, and enforced again on predictions in the units of y, so that it holds there to rounding. A set that
    depends on x gets X as given: let this class scale inputs and targets, not an earlier step of a pipeline.
    Everything runs in float64.

    Args:
        constraint: The set C(x) in the units of y; functions of x get X as a float64 tensor ``(samples, features)``.
        method: As for `hn.HardNet`.
        options: Options of the method's layer.
        net: ``(inputs, outputs) -> nn.Module``; by default linear layers of the widths `hidden` with SiLU in between.
        hidden: The hidden widths of the default network.
        epochs: Passes over the data.
        batch_size: Samples per step.
        learning_rate: Initial learning rate of Adam; it decreases to zero along a cosine.
        random_state: Seed for weights and batches, or None.

    Attributes:
        model_: The `hn.HardNet` in scaled units.
        constraint_: The constraint in float64.
        loss_: The mean squared error of each epoch, in scaled units.
    """

    mean_: Tensor
    std_: Tensor

    def __init__(
        self,
        constraint: ConstraintSet,
        *,
        method: str = "auto",
        options: dict[str, Any] | None = None,
        net: Callable[[int, int], nn.Module] | None = None,
        hidden: Sequence[int] = (64, 64),
        epochs: int = 300,
        batch_size: int = 256,
        learning_rate: float = 3e-3,
        random_state: Any = None,
    ) -> None:
        self.constraint = constraint
        self.method = method
        self.options = options
        self.net = net
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """Declare support for one or more targets."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> HardNetRegressor:
        """Train on X ``(samples, features)`` and y ``(samples,)`` or ``(samples, outputs)``."""
        if not isinstance(self.constraint, ConstraintSet):
            raise OptionError(sentence("constraint", "a set", type(self.constraint).__name__, "hn.Box(0.0, 1.0), ..."))
        X, y = validate_data(self, X, y, dtype="float64", multi_output=True, y_numeric=True)  # pyright: ignore[reportGeneralTypeIssues]
        inputs, targets = (torch.tensor(part, dtype=torch.float64) for part in (X, y))
        self.single_: bool = targets.dim() == 1
        targets = targets.reshape(len(targets), -1)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._build(inputs, targets)
            self._train(inputs, (targets - self.mean_) / self.std_)
        self.model_.eval()
        return self

    def predict(self, X: Any) -> Any:
        """Outputs in C(x) as an array ``(samples,)`` or ``(samples, outputs)``, like the targets."""
        check_is_fitted(self)
        inputs = torch.tensor(validate_data(self, X, dtype="float64", reset=False))  # a copy: X may be read-only
        y = self._outputs(inputs).numpy()
        return y[:, 0] if self.single_ else y

    def check(self, X: Any) -> Certificate:
        """The certificate of the predictions, in the units of y."""
        check_is_fitted(self)
        inputs = torch.tensor(validate_data(self, X, dtype="float64", reset=False))  # a copy: X may be read-only
        return check(self.constraint_, self._outputs(inputs), inputs)

    def _outputs(self, inputs: Tensor) -> Tensor:
        """``mean + std z``, enforced again in the units of y to remove violations by rounding."""
        with torch.no_grad():
            y = self.mean_ + self.std_ * self.model_(inputs)
            return y if self.layer_ is None else self.layer_(y, inputs)

    def _build(self, inputs: Tensor, targets: Tensor) -> None:
        """Build the scales of the data, the network, and the layers in both units."""
        self.mean_, self.std_ = _moments(targets)
        self.constraint_: ConstraintSet = copy.deepcopy(self.constraint).double()
        options = self.options or {}
        layer = build_layer(scaled(self.constraint_, self.mean_, self.std_), self.method, **options)
        outputs = targets.shape[1] if layer.raw_dim is None else layer.raw_dim
        make = self.net or self._default_net
        net = _Standardized(make(inputs.shape[1], outputs), *_moments(inputs)).double()
        self.model_: HardNet = HardNet(net, layer.constraint, layer)
        self.layer_: Layer | None = _polish(build_layer(self.constraint_, self.method, **options), layer)

    def _default_net(self, inputs: int, outputs: int) -> nn.Module:
        """Linear layers with SiLU in between."""
        widths = [inputs, *self.hidden]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.SiLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))

    def _train(self, inputs: Tensor, targets: Tensor) -> None:
        """Train with Adam and a cosine schedule on shuffled batches."""
        optimizer = torch.optim.Adam(self.model_.parameters(), lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(self.epochs, 1))
        self.loss_: list[float] = []
        for _ in range(self.epochs):
            total = 0.0
            for batch in torch.randperm(len(inputs)).split(self.batch_size):
                loss = (self.model_(inputs[batch]) - targets[batch]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(batch)
            schedule.step()
            self.loss_.append(total / len(inputs))


def _polish(layer: Layer, trained: Layer) -> Layer | None:
    """The layer that enforces final outputs again; None where the method does not take points in the space of y."""
    takes_points = layer.identity_inside and (layer.raw_dim is None or layer.raw_dim == layer.constraint.dim)
    promises = layer.guarantee in (Guarantee.EXACT, Guarantee.TOLERANCE)
    return layer if takes_points and promises and layer.raw_dim == trained.raw_dim else None


def _moments(data: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column; 1 for a column that does not vary."""
    mean, std = data.mean(0), data.std(0, correction=0)
    rounding = 16 * torch.finfo(data.dtype).eps * data.abs().amax(0)
    return mean, torch.where(std > rounding, std, 1.0)


class _Standardized(nn.Module):
    """``net((x - mean) / std)``."""

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        """Raw outputs in scaled units."""
        return self.net((x - self.mean) / self.std)
