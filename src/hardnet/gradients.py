"""Vanishing gradients: how much of the loss gradient passes the enforcement.

A projection loses the component of the gradient that is normal to the active constraints. That is right where the loss
would push y out of C(x), and harmful where it would pull y inside: then the sample is stuck although it could improve.
``HardNet(..., leak=0.1)`` is one remedy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import ShapeError, sentence
from hardnet.model import HardNet


class GradientFlow(NamedTuple):
    """What becomes of the loss gradient at each sample, ``(*batch)`` each.

    Attributes:
        moved: Whether the layer changed the raw output.
        kept: ``|gradient at raw| / |gradient at y|``; 0 where all of it is lost, and 1 where y has none.
        stuck: Whether the gradient is lost although a small step against it would stay in C(x): a harmful zero.
    """

    moved: Tensor
    kept: Tensor
    stuck: Tensor

    def __str__(self) -> str:
        """One line for a training log."""
        moved, kept, stuck = (part.double().mean().item() for part in self)
        return f"{moved:.0%} of the samples moved, {kept:.2f} of the gradient kept on average, {stuck:.0%} stuck"


def gradient_flow(
    model: HardNet, x: Any, loss: Callable[[Tensor], Tensor], *, lost: float = 1e-6, step: float = 1e-6
) -> GradientFlow:
    """Compare ``d loss / d y`` with ``d loss / d raw``, sample by sample.

    Args:
        model: The model, whose layer must keep the dimension of the raw output.
        x: Inputs.
        loss: From y ``(*batch, n)`` to a scalar.
        lost: Below this share of the gradient a sample counts as having lost it.
        step: Length of the step against the gradient that decides whether the loss is harmful.
    """
    raw = model(x, enforce=False).detach().requires_grad_()
    y = model.layer(raw, x)
    if y.shape != raw.shape:
        expected = "a method whose raw output has the dimension of y"
        raise ShapeError(sentence("model", expected, f"{tuple(raw.shape)} and {tuple(y.shape)}"))
    at_y, at_raw = torch.autograd.grad(loss(y), (y, raw))
    with torch.no_grad():
        size = at_y.norm(dim=-1)
        kept = torch.where(size > 0, at_raw.norm(dim=-1) / size, 1)
        inward = y - step * at_y / size.clamp_min(torch.finfo(y.dtype).tiny).unsqueeze(-1)
        slack = (model.constraint.violation(inward, x) <= model.constraint.violation(y, x)).all(-1)
        moved = (y != raw).any(-1)
        return GradientFlow(moved, kept, moved & (size > 0) & (kept < lost) & slack)
