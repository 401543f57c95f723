"""How far two results may be apart: roundings of their size, times what a solve enlarges them by."""

import torch

ROUNDINGS = 16
"""Roundings that each term of a sum may carry, as many as a certificate allows."""


def of_factor(A, power=2):
    """``16 n eps cond(A)^power``, what two results by factors of A ``(*batch, m, n)`` may differ by, over their size.

    A point by A⁺ has power 1; a gradient has 2, since it solves twice or by a Gram matrix; a second derivative 3.
    """
    eps = torch.finfo(torch.float64).eps
    return ROUNDINGS * A.shape[-1] * eps * torch.linalg.cond(A.detach()).max().item() ** power


def of_digits(decimals):
    """Half a unit of the last of the decimals that a known answer is written with."""
    return 0.5 * 10.0**-decimals


def of_differences(step, size):
    """``16 (step^2 + eps / step)`` of a size: what central differences leave out, and what rounding leaves of them."""
    return ROUNDINGS * (step**2 + torch.finfo(torch.float64).eps / step) * float(size)


def assert_within(found, expected, part, most):
    """``|found - expected|`` is no more than `part` of ``max(1, max |expected|)``, nor `most` of ``1 + |expected|``."""
    size = expected.detach().abs()
    bound = (most * (1 + size)).clamp_max(part * max(1.0, size.max().item()))
    assert ((found - expected).abs() <= bound).all(), f"off by {(found - expected).abs().max().item():.1e}"
