"""Vanishing gradients: how much of the loss gradient passes through the enforcement.

A projection removes the component of the gradient that is normal to the active constraints. That is right where the
loss would push y out of C(x), and harmful where it would pull y inside: then the sample is stuck although it could
improve. ``HardNet(..., leak=0.1)`` is one remedy, ``gradient="tangent"`` another; `gradient_flow` measures the effect
of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import DTypeError, OptionError, ShapeError, sentence
from hardnet.functional.derivatives import leak_gradient
from hardnet.model import HardNet


class GradientFlow(NamedTuple):
    """How much of the loss gradient each sample keeps, ``(*batch)`` each.

    Attributes:
        moved: Whether the layer changed the raw output.
        kept: ``|gradient at raw| / |gradient at y|``; 0 where all of it is lost, and 1 where the gradient at y is 0.
        stuck: Whether the gradient is lost although a small step against it would stay in C(x): a harmful zero.
        modes: The values of `kept` with each remedy that the model does not use: ``gradient="tangent"`` or
            ``"exact"`` if its method has that option, and ``leak=0.1``.
    """

    moved: Tensor
    kept: Tensor
    stuck: Tensor
    modes: dict[str, Tensor]

    def __str__(self) -> str:
        """One line for a training log."""
        moved, kept, stuck = (part.double().mean().item() for part in self[:3])
        text = f"{moved:.0%} of the samples moved, {kept:.2f} of the gradient kept on average, {stuck:.0%} stuck"
        would = [f"{name} {share.double().mean().item():.2f}" for name, share in self.modes.items()]
        return f"{text}; kept with {', '.join(would)}" if would else text


def gradient_flow(
    model: HardNet, x: Any, loss: Callable[[Tensor], Tensor], *, lost: float = 1e-6, step: float = 1e-6
) -> GradientFlow:
    """Compare ``d loss / d y`` with ``d loss / d raw``, sample by sample.

    Args:
        model: The model, whose layer must keep the dimension of the raw output.
        x: Inputs.
        loss: From y ``(*batch, n)`` to a scalar.
        lost: A sample that keeps less than this share of its gradient counts as having lost it.
        step: Length of the step against the gradient that decides whether losing it is harmful.
    """
    if not hasattr(model, "layer"):  # not isinstance: a compiled model is no HardNet but has a layer
        raise DTypeError(sentence("model", "a HardNet", type(model).__name__))
    raw = model(x, enforce=False).detach().requires_grad_()
    y = model.layer(raw, x)
    if y.shape != raw.shape:
        expected = "a method whose raw output has the dimension of y"
        raise ShapeError(sentence("model", expected, f"{tuple(raw.shape)} and {tuple(y.shape)}"))
    through = leak_gradient(y, raw, model.leak) if model.leak else y
    (at_y,) = torch.autograd.grad(loss(through), through, retain_graph=True)
    (at_raw,) = torch.autograd.grad(through, raw, at_y)
    with torch.no_grad():
        size = at_y.norm(dim=-1)
        kept = _share(at_raw, size)
        inward = y - step * at_y / size.clamp_min(torch.finfo(y.dtype).tiny).unsqueeze(-1)
        slack = (model.constraint.violation(inward, x) <= model.constraint.violation(y, x)).all(-1)
        moved = (y != raw).any(-1)
        stuck = moved & (size > 0) & (kept < lost) & slack
    return GradientFlow(moved, kept, stuck, {name: _share(g, size) for name, g in _remedies(model, raw, x, at_y)})


LEAKED_SHARE = 0.1
"""The leak for which `modes` is computed."""


def _share(at_raw: Tensor, size: Tensor) -> Tensor:
    """``|gradient at raw| / |gradient at y|``, 1 where the gradient at y is 0."""
    return torch.where(size > 0, at_raw.norm(dim=-1) / size, 1)


def _remedies(model: HardNet, raw: Tensor, x: Any, at_y: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The gradient at raw for each remedy that the model does not use, by the option that selects it."""
    options = model.layer.options
    if not model.leak:
        leaky = leak_gradient(model.layer(raw, x), raw, LEAKED_SHARE)
        yield f"leak={LEAKED_SHARE}", torch.autograd.grad(leaky, raw, at_y)[0]
    mode = getattr(options, "gradient", None)
    if mode is not None:
        other = "exact" if mode == "tangent" else "tangent"
        given = {own.name: getattr(options, own.name) for own in fields(options)} | {"gradient": other}
        try:
            twin = type(model.layer)(model.constraint, **given)
        except OptionError:  # relaxed rows have only one kind of gradient
            return
        yield f"gradient={other!r}", torch.autograd.grad(twin(raw, x), raw, at_y)[0]
