"""The kernels of the nearest point for few rows against the plain formulas, on any device."""

import math

import torch

from hardnet.functional.nearest import by_kernel
from hardnet.nearest import few_rows
from hardnet.rows import Batch
from hardnet.testing import check_kernel
from tests.functional.nearest_cases import random_problem, small_integers, tensors

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
"""Roundings of the answer for rows with a condition number of 1e5, with all sums in float64."""


def outputs(function):
    """y, dual, status and residual, shaped as the formulas return them."""

    def run(*numbers):
        found = function(*numbers)
        y, dual, status, residual = (found.y, found.dual, found.status, found.residual) if len(found) > 4 else found
        return y, dual, status.reshape(-1).to(torch.int8), residual.reshape(-1)

    return run


def on_batch(backend):
    """The forward of a backend as a function of four tensors."""
    return lambda *numbers: backend.forward(Batch(*numbers))


def degenerate(seed, m, n, dtype, random=30, integers=99):
    """Random problems, one of each kind of invalid numbers, and small integers with vertices where many rows meet."""
    numbers = random_problem(seed, random, m, n, dtype=dtype)
    whole = tensors(list(small_integers(seed, integers, m, n)), dtype)
    raw, A, lower, upper = (torch.cat(pair) for pair in zip(numbers, whole, strict=True))
    raw[0, 0], A[1, 0, 0], lower[2, 0], upper[3, 0] = math.nan, math.inf, math.inf, math.nan
    lower[4], upper[4], raw[5] = 1.0, 0.0, -0.0
    return raw, A, lower, upper


def gradients(backend, numbers, tangent):
    """Gradients of all numbers for fixed cotangents; by the formulas if the backend is None."""
    leaves = [part.clone().requires_grad_() for part in numbers]
    if backend is None:
        y = few_rows.nearest(*leaves, tangent).y
    else:
        y = by_kernel(Batch(*leaves), tangent, backend).y
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return torch.autograd.grad((y * weights.to(y)).nansum(), leaves)


def compare_gradients(backend, m, n, dtype, *, shared=False, tangent=False, device="cpu", samples=30):
    """Kernel and formulas agree on all four gradients, to rounding relative to the largest entry."""
    raw, A, lower, upper = (part.to(device) for part in degenerate(m, m, n, dtype, 9, samples))
    numbers = (raw, A[9], lower[9], upper) if shared else (raw, A, lower, upper)
    for one, other in zip(gradients(backend, numbers, tangent), gradients(None, numbers, tangent), strict=True):
        close = TOLERANCE[dtype] * (1 + other.abs().max().item())
        torch.testing.assert_close(one, other, rtol=0, atol=close)


def compare(backend, shapes, dtypes, *, device="cpu", samples=20, seeds=(0,)):
    """Kernel and formulas agree on all shapes and dtypes, forward and backward."""
    for m, n in shapes:
        for dtype in dtypes:
            make = lambda seed: [part.to(device) for part in degenerate(seed, m, n, dtype, 9, samples)]  # noqa: B023
            both = outputs(on_batch(backend)), outputs(few_rows.nearest)
            check_kernel(*both, make, tolerance=TOLERANCE[dtype], seeds=seeds)
            compare_gradients(backend, m, n, dtype, device=device, samples=samples)


def compare_promises(backend, device="cpu"):
    """A raw inside keeps its bits; absent and shared bounds, a shared A and `tangent` agree with the formulas."""
    raw, A = torch.tensor([[-0.0, 0.0], [0.5, -0.0]], device=device), torch.eye(2, device=device)
    one = torch.ones(2, device=device)
    for lower, upper in ((-one, one), (None, one), (-one, None)):
        y = backend.forward(Batch(raw, A, lower, upper))[0]
        assert torch.equal(y.view(torch.int32), raw.view(torch.int32))
    compare_gradients(backend, 2, 3, torch.float64, shared=True, device=device)
    compare_gradients(backend, 2, 2, torch.float64, tangent=True, device=device)


def compare_answers(backend, device="cpu"):
    """Computing y alone gives the same bits as computing it with the other results."""
    for dtype in (torch.float64, torch.float32):
        rows = Batch(*(part.to(device) for part in degenerate(4, 3, 4, dtype)))
        torch.testing.assert_close(backend.answer(rows), backend.forward(rows)[0], rtol=0, atol=0, equal_nan=True)
