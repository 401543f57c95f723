"""A remedy for vanishing gradients: let a share of them pass the enforcement straight through."""

from __future__ import annotations

from torch import Tensor

from hardnet.errors import ShapeError, sentence


def leak_gradient(y: Tensor, raw: Tensor, leak: float) -> Tensor:
    """The value of y, with gradient ``(1 - leak) dy/draw + leak I``: a share passes the enforcement straight through.

    Biased, but never against the true gradient of a projection, since both agree on its range.
    """
    if y.shape != raw.shape:
        expected = f"the shape of y, {tuple(y.shape)}"
        raise ShapeError(sentence("raw", expected, tuple(raw.shape), "use leak=0 with this method"))
    through = y.detach() + (1 - leak) * (y - y.detach())
    return through + leak * (raw - raw.detach())
