"""Checks for one A that all samples share, given its factor, on any device."""

import itertools
from functools import partial

import torch

from hardnet import check
from hardnet.functional.affine import ClosedForm
from hardnet.functional.affine_formulas import by_qr
from hardnet.kernels.gpu import affine, affine_kernels
from hardnet.sets import Affine
from hardnet.testing import check_kernel
from tests.bounds import assert_within, of_factor
from tests.functional.affine_problems import by_operations
from tests.kernels import affine_reference
from tests.kernels.affine_cases import BOUNDS, TOLERANCE, problem


def pseudo_inverse(A):
    """``A^+'`` by QR in float64."""
    return by_qr(A.double(), A.dtype).to(A.dtype).contiguous()


BAD = [4, 5, 6]
"""The samples of `problem` that are bad whatever their A; sample 7 is inside."""


def shared_problem(seed, samples, m, n, dtype, device, bounds="both"):
    """(raw, A, P, lower, upper, gradient), with the A of the first sample for all samples."""
    raw, A, *rest = problem(seed, samples, m, n, dtype, device, bounds)
    return raw, A[0], pseudo_inverse(A[0]), *rest


def run_forward(raw, A, P, lower, upper, gradient):
    return affine_kernels.launch_shared_forward(raw, A, P, lower, upper)


def run_backward(raw, A, P, lower, upper, gradient):
    return affine_kernels.launch_shared_backward(gradient, raw, A, P, lower, upper)


def reference_forward(raw, A, P, lower, upper, gradient):
    return affine_reference.forward(raw, A.expand(len(raw), *A.shape), lower, upper)


def reference_backward(raw, A, P, lower, upper, gradient):
    grads = affine_reference.backward(gradient, raw, A.expand(len(raw), *A.shape), lower, upper)
    return grads[0], grads[2], grads[3]


def compare(shapes, dtypes, device, samples, seeds=(0,), kinds=BOUNDS):
    """Kernel and reference agree on all shapes, dtypes and kinds of bounds."""
    for (m, n), dtype, bounds in itertools.product(shapes, dtypes, kinds):
        make = partial(shared_problem, samples=samples, m=m, n=n, dtype=dtype, device=device, bounds=bounds)
        check_kernel(run_forward, reference_forward, make, tolerance=TOLERANCE[dtype], seeds=seeds)
        check_kernel(run_backward, reference_backward, make, tolerance=TOLERANCE[dtype], seeds=seeds)


def compare_promises(shapes, dtypes, device, samples):
    """Samples inside keep their bits, bad samples affect no others, and bits do not depend on the batch."""
    for (m, n), dtype in itertools.product(shapes, dtypes):
        parts = raw, A, P, lower, upper, gradient = shared_problem(3, samples, m, n, dtype, device)
        gradient[7, 0] = -0.0
        y, grads = run_forward(*parts), run_backward(*parts)
        assert same_bits(y[7], raw[7])
        assert same_bits(grads[0][7], gradient[7])
        bad = torch.zeros(samples, dtype=torch.bool, device=device).index_fill_(0, torch.tensor(BAD).to(device), True)
        for result in (y, *grads):
            assert result[bad].isnan().all()
            assert not result[~bad].isnan().any()
        for sample in (0, 7, samples - 1):
            one = slice(sample, sample + 1)
            alone = raw[one], A, P, lower[one], upper[one], gradient[one]
            for mine, ours in zip((run_forward(*alone), *run_backward(*alone)), (y, *grads), strict=True):
                assert same_bits(mine, ours[one])


def same_bits(first, second):
    return first.contiguous().view(torch.uint8).equal(second.contiguous().view(torch.uint8))


def compare_alone(m, n, device, samples):
    """A sample that needs no correction has the same bits whether or not other samples need one."""
    raw, A, P, lower, upper, gradient = shared_problem(4, samples, m, n, torch.float32, device)
    calm = run_forward(raw, A, P, lower, upper, gradient)
    wild = raw.clone()
    wild[8::2] *= 1e6
    assert same_bits(run_forward(wild, A, P, lower, upper, gradient)[9::2], calm[9::2])


def compare_dependent(m, n, dtype, device):
    """A NaN factor, as dependent rows have, makes every sample NaN, whether it moves or not."""
    raw, A, P, lower, upper, gradient = shared_problem(0, 20, m, n, dtype, device)
    parts = raw, A, P * torch.nan, lower, upper, gradient
    for result in (run_forward(*parts), *run_backward(*parts)):
        assert result.isnan().all()
    A[-1] = A[0]
    assert run_forward(raw, A, pseudo_inverse(A), lower, upper, gradient).isnan().all()


def compare_certificates(shapes, device, samples, dtypes=(torch.float32, torch.float64), sizes=(3.0, 1e3, 1e6)):
    """Raws up to a million times farther away than their set is wide pass the certificate, sample by sample."""
    for (m, n), dtype, size in itertools.product(shapes, dtypes, sizes):
        source = torch.Generator().manual_seed(m)
        normal = partial(torch.randn, generator=source, dtype=torch.float64)
        A, center = normal(m, n), normal(samples, n)
        middle, width = center @ A.mT, normal(samples, m).abs() * (normal(samples, m) > -0.5)
        numbers = (size * normal(samples, n), A, middle - width, middle + width)
        raw, A, lower, upper = (number.to(dtype).to(device) for number in numbers)
        y = run_forward(raw, A, pseudo_inverse(A), lower, upper, None)
        certificate = check(Affine(A, lower=lower, upper=torch.maximum(lower, upper)), y)
        assert certificate.ok, (m, n, dtype, size, str(certificate))


def compare_factors(shapes, device):
    """The float32 factor computed by the fused kernel agrees with QR, up to rounding."""
    for m, n in shapes:
        A = shared_problem(1, 1, m, n, torch.float32, device)[1]
        expected = pseudo_inverse(A)
        rounding = 4 * torch.finfo(torch.float32).eps * expected.abs().max().item()
        torch.testing.assert_close(affine._make_factor(A), expected, rtol=0, atol=rounding)


def learned(m, n, device):
    """(raw, A, lower, upper) in float64, all with gradients, and no row at a kink."""
    raw, A, _, lower, upper, _ = shared_problem(2, 3, m, n, torch.float64, device)
    lower, upper = ((bound + side).clamp(-50, 50) for bound, side in ((lower, -0.5), (upper, 0.5)))
    assert ((raw @ A.mT - lower).abs().min() > 1e-3) & ((raw @ A.mT - upper).abs().min() > 1e-3)
    return [part.clone().requires_grad_() for part in (raw, A, lower, upper)]


def compare_learned(shapes, device):
    """The gradients of a learned A and of all other numbers agree with autograd through the plain formulas."""
    for (m, n), shared_bounds in itertools.product(shapes, (False, True)):
        leaves = learned(m, n, device)
        if shared_bounds:
            leaves[2:] = [bound.detach()[0].clone().requires_grad_() for bound in leaves[2:]]
        gradient = shared_problem(2, 3, m, n, torch.float64, device)[-1]
        mine = torch.autograd.grad(ClosedForm.apply("gpu", None, True, *leaves, None)[0], leaves, gradient)
        expected = torch.autograd.grad(by_operations(*leaves), leaves, gradient)
        for one, other in zip(mine, expected, strict=True):
            assert_within(one, other, of_factor(leaves[1]), most=1e-9)
