"""Inputs for the compiled code on a CPU, and the closed form with all its gradients as one function for comparison."""

from typing import Any

import torch

from hardnet.functional import enforce_affine
from hardnet.functional.affine import choose
from hardnet.rows import take_rows
from tests.kernels import affine_reference
from tests.kernels.affine_cases import problem

PER_SAMPLE = [(1, 1), (1, 7), (2, 2), (3, 5), (5, 10), (8, 8), (8, 32)]
SHARED = [(1, 1), (2, 2), (5, 10), (8, 8), (12, 12), (20, 50), (50, 100)]
"""(m, n): one compiled pass up to (8, 8), torch's products beyond."""
DTYPES = (torch.float64, torch.float32)
SIZES = (1, 63, 64, 65, 511, 512, 513, 1000)
"""Batch sizes around the edges of narrow and wide tiles."""


def numbers_of(seed, samples, m, n, dtype, bounds="both", shared=False, spoiled=True) -> Any:
    """(raw, A, lower, upper, gradient) with a bad sample of each kind among the first eight, if spoiled."""
    numbers: Any = problem(seed, samples + 8, m, n, dtype, "cpu", "both")
    raw, A, lower, upper, gradient = numbers
    keep = slice(None, samples) if spoiled else slice(8, None)
    raw, lower, upper, gradient = (part[keep].clone() for part in (raw, lower, upper, gradient))
    A = A[0].clone() if shared else A[keep].clone()
    if bounds == "shared":
        lower, upper = lower[0], upper[0]
    return raw, A, None if bounds == "upper" else lower, None if bounds == "lower" else upper, gradient


def enforce(raw, A, lower, upper, **options):
    """`enforce_affine`, for numbers that the compiled code must accept."""
    assert choose(take_rows(raw, A, lower, upper)) == "cpu"
    return enforce_affine(raw, A, lower, upper, on_invalid="nan", **options)


def outputs(raw, A, lower, upper, gradient, **options):
    """Y and the gradients of raw, A and the given bounds; the gradient of a shared A as a mean over the samples."""
    leaves = [part if part is None else part.detach().requires_grad_() for part in (raw, A, lower, upper)]
    y = enforce(*leaves, **options)
    grad_raw, grad_A, *grads = torch.autograd.grad(y, [leaf for leaf in leaves if leaf is not None], gradient)
    return y.detach(), grad_raw, grad_A if A.dim() == 3 else grad_A / len(raw), *grads


def reference(raw, A, lower, upper, gradient):
    """The same from `affine_reference`, with float64 sums over the samples for shared numbers.

    A sample without an answer sends no gradient.
    """
    copies = A.expand(len(raw), *A.shape[-2:])
    y = affine_reference.forward(raw, copies, lower, upper)
    wide: Any = [part if part is None else part.double() for part in (gradient, raw, copies, lower, upper)]
    answered = ~y.isnan().any(-1)
    grads = [
        torch.where(answered.reshape(-1, *[1] * (grad.dim() - 1)), grad, 0.0)
        for grad in affine_reference.backward(*wide)
    ]
    grad_A = grads[1] if A.dim() == 3 else grads[1].mean(0)
    bounds = [
        grad if bound.dim() == 2 else grad.sum(0)
        for grad, bound in zip(grads[2:], (lower, upper), strict=True)
        if bound is not None
    ]
    return y, *(grad.to(raw.dtype) for grad in (grads[0], grad_A, *bounds))


def bits(tensor):
    """The bits as integers, so that NaN equals NaN and the two zeros differ."""
    return tensor.contiguous().view(torch.int64 if tensor.dtype == torch.float64 else torch.int32)


def same_bits(first, second):
    """Whether two tuples of tensors hold the same bits."""
    return all(torch.equal(bits(one), bits(other)) for one, other in zip(first, second, strict=True))


def take(parts, index):
    """The chosen samples of (raw, A, lower, upper, gradient); shared numbers stay whole."""
    cores = (1, 2, 1, 1, 1)
    return tuple(
        part if part is None or part.dim() == core else part[index] for part, core in zip(parts, cores, strict=True)
    )
