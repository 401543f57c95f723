"""The metric of a nearest point as an option of a layer: W of ``min (y - raw)'W(y - raw)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hardnet.errors import DTypeError, OptionError, ShapeError, sentence
from hardnet.modes import HALF


class Metric(nn.Module):
    """W at x, in the dtype and on the device of raw: a diagonal ``(n,)`` or ``(*batch, 1, n)``, or a matrix.

    A module given as the metric becomes a submodule, so that it is trained, moved and saved with the layer. A constant
    is kept in float64 and is not a buffer of the state dict: it is one of the options, which are stored separately.

    Args:
        value: Rows of numbers, n numbers, or a function or module of x.
        dim: n, or None where it is only known from the data.
    """

    constant: Tensor | None

    def __init__(self, value: Any, dim: int | None) -> None:
        super().__init__()
        self.code: bool = callable(value)
        self.function: Callable[[Any], Tensor] | None = value if self.code else None
        constant = None if self.code else torch.tensor(value, dtype=torch.float64, device="cpu")
        if constant is not None:
            _require_metric(constant, dim)
        self.register_buffer("constant", constant, persistent=False)

    def forward(self, raw: Tensor, x: Any) -> Tensor:
        """W for raw ``(*batch, n)``; a function returns raw's batch too, so the rank tells a diagonal from a matrix."""
        if self.constant is not None:
            return self.constant.to(raw)
        assert self.function is not None
        W = self.function(x)
        if not isinstance(W, Tensor):
            raise DTypeError(sentence("metric", "a function that returns a tensor", type(W).__name__))
        W = W.to(raw.dtype) if W.dtype in HALF else W
        n, diagonal = raw.shape[-1], W.dim() == raw.dim()
        if W.shape[-1:] != (n,) or not (diagonal or (W.dim() == raw.dim() + 1 and W.shape[-2] == n)):
            batch = ", ".join(map(str, raw.shape[:-1]))
            expected = f"shape ({batch}, {n}) or ({batch}, {n}, {n}) from a function of x"
            raise ShapeError(sentence("metric", expected, tuple(W.shape)))
        return W.unsqueeze(-2) if diagonal else W  # diagonals (n, n) for n samples would look like a matrix

    def extra_repr(self) -> str:
        """Its shape, or where it comes from."""
        return "function of x" if self.constant is None else str(tuple(self.constant.shape))


def _require_metric(W: Tensor, dim: int | None) -> None:
    """Refuse a constant that is not a metric on n outputs."""
    if dim is not None and W.shape[-1] != dim:
        raise ShapeError(sentence("metric", f"({dim},) or ({dim}, {dim}) numbers", tuple(W.shape)))
    got = _defect(W)
    if got is not None:
        raise OptionError(sentence("metric", "positive numbers, or a symmetric positive definite matrix", got))


def _defect(W: Tensor) -> str | None:
    """Why a vector or a matrix is not a metric; None where it is one."""
    if W.dim() == 1:
        return f"{W.min().item():g} among them" if bool((W <= 0).any()) else None
    across = (W - W.mT).abs().amax().item()
    if across > 1e-6 * W.abs().amax().item():  # a matrix computed in float32 is symmetric to about this precision
        return f"a matrix with |W - W'| up to {across:.3g}"
    if int(torch.linalg.cholesky_ex(W)[1]) == 0:
        return None
    return f"a matrix with the eigenvalue {torch.linalg.eigvalsh(W)[0].item():.3g}"
