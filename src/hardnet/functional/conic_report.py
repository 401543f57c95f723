"""What a projection onto curved sets says of samples that have no answer: an error that names them, or a warning.

Called by `hardnet.functional.conic`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from hardnet.errors import INDEFINITE, NOT_FINITE, InfeasibleError, NotConvergedWarning
from hardnet.functional.samples import find_invalid, refuse, reject
from hardnet.solvers.conic.blocks import Block, Intervals, Quadratics, images
from hardnet.solvers.conic.stack import Stack
from hardnet.solvers.solution import Status


def report(
    raw: Tensor,
    blocks: Sequence[Block],
    found: tuple[Tensor, Tensor, Tensor],
    flat: list[Block],
    tolerance: float,
    policies: tuple[str, str],
) -> None:
    """Raise or warn about samples that are not solved, as far as the policies ask."""
    (y, status, residual), (on_infeasible, on_invalid) = found, policies
    if on_invalid == "raise":
        _raise_invalid(raw, blocks, status == int(Status.INVALID))
    if on_infeasible == "raise":
        text = "the set is empty: expected a point that satisfies every constraint, got none within reach of raw"
        refuse(status == int(Status.INFEASIBLE), InfeasibleError, text)
    stopped = status == int(Status.NOT_CONVERGED)
    if bool(stopped.any()):
        violation = _violation(flat, y).reshape(stopped.shape)
        _warn(residual[stopped].max().item(), violation[stopped].max().item(), stopped, tolerance)


def _raise_invalid(raw: Tensor, blocks: Sequence[Block], bad: Tensor) -> None:
    """Say which of the three reasons makes the samples invalid."""
    if not bool(bad.any()):
        return
    reject(bad & ~raw.isfinite().all(-1), NOT_FINITE, "raw")
    for block in blocks:
        if isinstance(block, Intervals):
            for finding in find_invalid(raw, None, block.lower, block.upper):
                reject(bad & finding.bad, finding.defect, finding.name, finding.got)
        if isinstance(block, Quadratics) and bool(block.P.isfinite().all()):
            least = torch.linalg.eigvalsh((block.P + block.P.mT).double() / 2)[..., 0]
            reject(bad & (least < 0).expand(bad.shape), INDEFINITE, "P", f"the eigenvalue {least.min().item():.3g}")
    reject(bad, NOT_FINITE, "the numbers of the set")


@torch.no_grad()
def _violation(blocks: Sequence[Block], y: Tensor) -> Tensor:
    """The largest distance of any row from its cone, in the units of the row: ``(B,)``."""
    y = y.double()
    return Stack(images(blocks), y.shape[-1]).miss(y).amax(-1)


def _warn(residual: float, violation: float, stopped: Tensor, tolerance: float) -> None:
    """One warning for all samples that stopped early."""
    text = (
        f"{int(stopped.sum())} of {stopped.numel()} projections stopped at residual {residual:.2g} "
        f"(tolerance {tolerance:g}) and violate a row by up to {violation:.2g}"
    )
    remedy = "the set may be empty, or have an empty interior"
    warnings.warn(f"{text}; {remedy}", NotConvergedWarning, stacklevel=3)
