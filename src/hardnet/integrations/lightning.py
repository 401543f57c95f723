"""Lightning: log what the enforcement does during training, by the names of the constraints."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from hardnet.certificate import Certificate, check
from hardnet.errors import MissingExtraError, OptionError, sentence
from hardnet.layers.base import Layer

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The two packages of Lightning; a trainer of one requires callbacks of the same package."""


def _callback_class() -> Any:
    """`Callback` of the package that is already imported, else of the one that is installed."""
    for package in sorted(PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return import_module(package).Callback
        except ImportError:
            continue
    raise MissingExtraError("pytorch-lightning", "lightning")


Callback: Any = _callback_class()


class ConstraintMonitor(Callback):
    """Log what every enforcement layer of a module does, every few steps and over each validation.

    ``hardnet/violation/NAME`` is the largest violation of the rows named NAME, as measured by `hn.check`;
    ``hardnet/satisfied`` the share of samples that satisfy every row; ``hardnet/displacement`` the mean ``|y - raw|``;
    ``hardnet/moved`` the share of samples that were moved; ``hardnet/gradient_kept`` the mean over these of
    ``|gradient at raw| / |gradient at y|``, in training only. In a module with several layers, the path of each layer
    follows the prefix.

    Args:
        every_n_steps: Log one of this many training batches.
        prefix: Prefix of every name.
    """

    every_n_steps: int
    prefix: str

    def __init__(self, every_n_steps: int = 50, prefix: str = "hardnet") -> None:
        super().__init__()
        if every_n_steps < 1:
            raise OptionError(sentence("every_n_steps", "a whole number of at least 1", every_n_steps))
        self.every_n_steps, self.prefix = every_n_steps, prefix
        self._watches: dict[str, _Watch] = {}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Register a hook on each layer."""
        self._forget()
        found = [(path, part) for path, part in pl_module.named_modules() if isinstance(part, Layer)]
        for path, layer in found:
            name = self.prefix if len(found) == 1 else f"{self.prefix}/{path.removesuffix('.layer')}"
            self._watches[name] = _Watch(layer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Remove the hooks from the layers."""
        self._forget()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Decide whether to observe this batch."""
        self._arm(batch_idx % self.every_n_steps == 0)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the observations of this step."""
        self._log(pl_module, {"on_step": True, "on_epoch": False})

    def on_validation_batch_start(self, *_: Any, **__: Any) -> None:
        """Observe every batch."""
        self._arm(True)

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Log the observations over the epoch: the largest violations, and the means of the rest."""
        self._log(pl_module, {"on_step": False, "on_epoch": True}, "val_")

    def _arm(self, look: bool) -> None:
        for watch in self._watches.values():
            watch.begin(look)

    def _log(self, pl_module: Any, when: dict[str, bool], stage: str = "") -> None:
        for name, watch in self._watches.items():
            if watch.certificate is None:
                continue
            samples = watch.certificate.satisfied.numel()
            worst = {f"{stage}{name}/violation/{row}": value for row, value in watch.violations().items()}
            means = {f"{stage}{name}/{what}": value for what, value in watch.means().items()}
            pl_module.log_dict(worst, reduce_fx="max", batch_size=samples, **when)
            pl_module.log_dict(means, batch_size=samples, **when)
            watch.begin(False)

    def _forget(self) -> None:
        for watch in self._watches.values():
            watch.handle.remove()
        self._watches = {}


class _Watch:
    """What one layer did with the last observed batch."""

    def __init__(self, layer: Layer) -> None:
        self.layer, self.look = layer, False
        self.certificate: Certificate | None = None
        self.displacement: Tensor | None = None
        self.gradients: dict[str, Tensor] = {}
        self.handle = layer.register_forward_hook(self._see, with_kwargs=True)

    def begin(self, look: bool) -> None:
        """Clear the last batch, and set whether to observe the next one."""
        self.look, self.certificate, self.displacement, self.gradients = look, None, None, {}

    def _see(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], y: Tensor) -> None:
        """Check y, and register hooks for the gradients at y and raw."""
        if not self.look:
            return
        given = dict(zip(("raw", "x"), args, strict=False)) | kwargs
        raw, x = given["raw"], given.get("x")
        self.certificate = check(self.layer.constraint, y.detach(), x)
        if raw.shape != y.shape:  # raw is not in the space of y
            return
        self.displacement = torch.linalg.vector_norm((y - raw).detach(), dim=-1)
        for name, part in (("y", y), ("raw", raw)):
            if part.requires_grad:
                part.register_hook(lambda grad, name=name: self.gradients.__setitem__(name, grad.norm(dim=-1)))

    def violations(self) -> dict[str, float]:
        """The largest violation for each name of a set; rows such as ``limits[3]`` count as ``limits``."""
        worst: dict[str, float] = {}
        rows = {} if self.certificate is None else self.certificate.by_name()
        for name, report in rows.items():
            label = name.partition("[")[0]
            worst[label] = max(worst.get(label, 0.0), report.violation)
        return worst

    def means(self) -> dict[str, Tensor]:
        """Shares and means over the samples of the batch."""
        assert self.certificate is not None
        found = {"satisfied": self.certificate.satisfied.double().mean()}
        if self.displacement is None:
            return found
        moved = self.displacement > 0
        found |= {"displacement": self.displacement.mean(), "moved": moved.double().mean()}
        if self.gradients.keys() == {"y", "raw"}:
            kept = self.gradients["raw"] / self.gradients["y"].clamp_min(torch.finfo(self.gradients["y"].dtype).tiny)
            felt = moved & (self.gradients["y"] > 0)
            if bool(felt.any()):
                found["gradient_kept"] = kept[felt].mean()
        return found
