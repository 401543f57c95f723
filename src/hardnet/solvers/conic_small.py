"""Small curved sets on a CPU go to compiled code: the numbers of their images as it reads them, and the calls.

Called by `hardnet.solvers.conic_distance` and `hardnet.functional.conic_gradient`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from hardnet.kernels.cpu.launch import HAS_NUMBA
from hardnet.kernels.limits import MOST_CONIC_NUMBERS, MOST_CONIC_ORDER
from hardnet.modes import plain
from hardnet.solvers.cones import order
from hardnet.solvers.conic_iterate import State, Task, merge, start
from hardnet.solvers.images import ConeImage, Image, IntervalImage, SemiDefiniteImage
from hardnet.solvers.quadratic_image import QuadraticImage
from hardnet.solvers.stack import Stack

if TYPE_CHECKING:
    from hardnet.kernels.cpu.conic import Numbers

INTERVALS, CONE, MATRIX = 0, 1, 2
"""Kinds of blocks, as `hardnet.kernels.cpu.conic_blocks` numbers them."""
FIRST_PENALTY = 10.0
LOOSE = 1e-9
"""A sample above this residual is given back as it came."""


class Part(NamedTuple):
    """One image: Jacobian ``(b, r, n)``, value at zero and bounds ``(b, r)``, kind; rows and order of each block."""

    J: Tensor
    k: Tensor
    lower: Tensor
    upper: Tensor
    kind: int
    rows: int
    order: int


def takes(stack: Stack, like: Tensor) -> bool:
    """Whether compiled code takes this set: small, on a CPU, in plain memory."""
    if not (HAS_NUMBA and like.is_cpu and like.dtype == torch.float64 and plain(like)):
        return False
    if not 0 < like.numel() * sum(stack.sizes) <= MOST_CONIC_NUMBERS * like.shape[0]:
        return False
    return all(map(_small, stack.images))


def _small(image: Image) -> bool:
    """Whether the blocks of an image are such as the compiled code knows."""
    if isinstance(image, SemiDefiniteImage):
        return order(image.K.shape[-2]) <= MOST_CONIC_ORDER
    return not isinstance(image, ConeImage) or image.K.shape[-2] > 1


def project_small(task: Task, y: Tensor, dual: Tensor) -> tuple[State, Tensor]:
    """The projection from y and multipliers, and the steps ``(B,)``; a sample that is not solved starts anew."""
    from hardnet.kernels.cpu.conic import project

    found_y, found_dual, (residual, steps) = project(task.raw, task.weight, y, dual, _numbers(task.stack))
    state = State(found_y, found_dual, torch.full_like(task.weight, FIRST_PENALTY), residual)
    failed = (~(residual <= LOOSE)).nonzero().squeeze(-1)
    if failed.numel() > 0:
        state = merge(state, failed, start(task.select(failed), y[failed], dual[failed]))
    return state, steps.long()


def derive_small(
    grad: Tensor, weight: Tensor, tolerance: Tensor, y: Tensor, dual: Tensor, stack: Stack
) -> tuple[Tensor, Tensor]:
    """The cotangents of raw ``(B, n)`` and of G ``(B, r)``, up to the weight and the sign."""
    from hardnet.kernels.cpu.conic import project_back

    return project_back(grad, weight, tolerance, y, dual, _numbers(stack))


def _numbers(stack: Stack) -> Numbers:
    """The numbers of all images, one after the other."""
    from hardnet.kernels.cpu.conic import Numbers

    parts = [_part(image) for image in stack.images]
    J, k, lower, upper = (_join(list(fields)) for fields in zip(*(part[:4] for part in parts), strict=True))
    blocks, curved, row = [], [], 0
    for image, part in zip(stack.images, parts, strict=True):
        for first in range(row, row + image.rows, max(part.rows, 1)):
            blocks.append((part.kind, first, part.rows, part.order))
        curved += range(row, row + image.rows) if isinstance(image, QuadraticImage) else ()
        row += image.rows
    P, bend, q = _curves([image for image in stack.images if isinstance(image, QuadraticImage)], J)
    table = lambda rows, width: torch.tensor(rows, dtype=J.dtype).reshape(-1, width)
    return Numbers(
        J.mT.flatten(1), k, lower, upper, P.flatten(1), bend, q.flatten(1), table(curved, 1), table(blocks, 4)
    )


def _part(image: Image) -> Part:
    """An image as rows; those of quadratics stand below zero, and compiled code bends them."""
    if isinstance(image, IntervalImage):
        return Part(image.A, torch.zeros_like(image.upper), image.lower, image.upper, INTERVALS, image.rows, 0)
    if isinstance(image, QuadraticImage):
        free = torch.full_like(image.r, -torch.inf)
        return Part(image.q, image.r, free, torch.zeros_like(image.r), INTERVALS, image.rows, 0)
    assert isinstance(image, ConeImage)
    k, rows = image.k.flatten(-2), image.K.shape[-2]
    matrix = isinstance(image, SemiDefiniteImage)
    return Part(image.jacobian(k), k, k, k, MATRIX if matrix else CONE, rows, order(rows) if matrix else 0)


def _curves(images: list[QuadraticImage], like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Second derivatives ``(b, C, n, n)``, their factors ``(b, C)`` and gradients at zero ``(b, C, n)``."""
    if not images:
        n = like.shape[-1]
        return like.new_empty(1, 0, n, n), like.new_empty(1, 0), like.new_empty(1, 0, n)
    return _join([one.P for one in images]), _join([one.bend for one in images]), _join([one.q for one in images])


def _join(fields: list[Tensor]) -> Tensor:
    """Fields ``(b, r, ...)`` along r, constants spread over the batch where others are not constant."""
    if len(fields) == 1:
        return fields[0]
    batch = max(field.shape[0] for field in fields)
    return torch.cat([field.expand(batch, *field.shape[1:]) for field in fields], 1)
