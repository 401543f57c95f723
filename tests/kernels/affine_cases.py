"""Random and degenerate inputs for the kernels of the closed form, and the checks they must pass on any device."""

import itertools
from functools import partial

import torch

from hardnet import check
from hardnet.kernels.gpu import affine
from hardnet.sets import Affine
from hardnet.testing import check_kernel
from tests.kernels import affine_reference

TOLERANCE = {torch.float64: 2e-10, torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 4e-3}
BOUNDS = ("both", "lower", "upper", "shared")


def problem(seed, samples, m, n, dtype, device, bounds="both"):
    """(raw, A, lower, upper, gradient): rows of many lengths, infinite bounds, equalities, bad samples of each kind."""
    source = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=source, dtype=torch.float64)
    A = 0.3 * normal(samples, m, n) / n**0.5
    A[:, :, :m] += torch.eye(m, dtype=torch.float64)  # well away from rank loss
    A = A * 2.0 ** torch.randint(-3, 4, (samples, m, 1), generator=source)
    raw, middle = 2 * normal(samples, n), torch.einsum("bmn,bn->bm", A, normal(samples, n))
    width = A.norm(dim=-1) * normal(samples, m).abs().where(normal(samples, m) > -0.8, 0.0)
    lower, upper = middle - width, middle + width
    lower[normal(samples, m) > 1.2] = -torch.inf
    upper[normal(samples, m) > 1.2] = torch.inf
    raw, A, lower, upper, gradient = (part.to(dtype) for part in (raw, A, lower, upper, normal(samples, n)))
    lower, upper = torch.minimum(lower, upper), torch.maximum(lower, upper)
    spoil(raw, A, lower, upper)
    if bounds == "shared":
        lower, upper = lower[0], upper[0]
    parts = raw, A, None if bounds == "upper" else lower, None if bounds == "lower" else upper, gradient
    return tuple(part if part is None else part.to(device) for part in parts)


def spoil(raw, A, lower, upper):
    """Insert one bad sample of each kind after a good first one, and one inside its bounds with a negative zero."""
    if len(raw) < 8:
        return
    A[1, 0] = 0.0
    A[2, -1] = A[2, 0] if A.shape[1] > 1 else 0.0
    A[3, 0, 0] = torch.nan
    raw[4, 0] = torch.inf
    lower[5, 0], upper[5, 0] = 1.0, 0.0
    lower[6, 0], upper[6, 0] = torch.nan, torch.nan
    lower[7], upper[7], raw[7] = -1e4, 1e4, -0.0


def kernel_forward(raw, A, lower, upper):
    """y, and the bounds in the form `kernel_backward` takes; an operator to compiled code."""
    run = affine.forward_operator if torch.compiler.is_compiling() else affine._launches().launch_forward
    return run(raw, A, lower, upper), (lower, upper)


def kernel_backward(gradient, raw, A, bounds, wants_matrix):
    if not torch.compiler.is_compiling():
        return affine._launches().launch_backward(gradient, raw, A, *bounds, wants_matrix)
    grads = affine.backward_operator(gradient, raw, A, *bounds, wants_matrix)
    return grads[0], grads[1] if wants_matrix else None, grads[2], grads[3]


def run_forward(raw, A, lower, upper, gradient):
    return kernel_forward(raw, A, lower, upper)[0]


def run_backward(raw, A, lower, upper, gradient):
    return kernel_backward(gradient, raw, A, (lower, upper), True)


def reference_forward(raw, A, lower, upper, gradient):
    return affine_reference.forward(raw, A, lower, upper)


def reference_backward(raw, A, lower, upper, gradient):
    return affine_reference.backward(gradient, raw, A, lower, upper)


def compare(shapes, dtypes, device, samples, seeds=(0,), kinds=BOUNDS):
    """Kernel and reference agree on all shapes, dtypes and kinds of bounds."""
    for (m, n), dtype, bounds in itertools.product(shapes, dtypes, kinds):
        make = partial(problem, samples=samples, m=m, n=n, dtype=dtype, device=device, bounds=bounds)
        options = {"tolerance": TOLERANCE[dtype], "seeds": seeds}
        check_kernel(run_forward, reference_forward, make, **options)
        check_kernel(run_backward, reference_backward, make, **options)


def compare_promises(shapes, device, samples):
    """Samples inside keep their bits, no sample affects another, and the gradient of A is computed only on request."""
    for m, n in shapes:
        raw, A, lower, upper, gradient = problem(3, samples, m, n, torch.float32, device)
        y, saved = kernel_forward(raw, A, lower, upper)
        assert y[7].view(torch.int32).equal(raw[7].view(torch.int32))
        assert y[1:7].isnan().all()
        assert not y[[0, *range(7, samples)]].isnan().any()
        grads = kernel_backward(gradient, raw, A, saved, True)
        for sample in (0, samples - 1):
            one = slice(sample, sample + 1)
            alone, kept = kernel_forward(raw[one], A[one], lower[one], upper[one])
            assert alone.equal(y[one])
            for mine, ours in zip(kernel_backward(gradient[one], raw[one], A[one], kept, True), grads, strict=True):
                assert mine.equal(ours[one])
        unasked = kernel_backward(gradient, raw, A, saved, False)
        assert unasked[1] is None
        for mine, ours in zip((unasked[0], *unasked[2:]), (grads[0], *grads[2:]), strict=True):
            assert mine.view(torch.int32).equal(ours.view(torch.int32))


def compare_shared(shapes, dtypes, device, samples):
    """A shared A gives the same bits as that A repeated for every sample, and the sum of its gradients."""
    for (m, n), dtype in itertools.product(shapes, dtypes):
        raw, A, lower, upper, gradient = problem(5, samples, m, n, dtype, device)
        y, saved = kernel_forward(raw, A[0], lower, upper)
        one = kernel_backward(gradient, raw, A[0], saved, False)
        each = A[:1].expand_as(A)
        same = kernel_backward(gradient, raw, each, saved, False)
        good = ~y.isnan().any(-1)
        asked = [part[good] for part in (gradient, raw, each)], tuple(bound[good] for bound in saved)
        _, total, *_ = kernel_backward(*asked[0][:2], A[0], asked[1], True)
        expected = kernel_backward(*asked[0], asked[1], True)[1].sum(0)
        torch.testing.assert_close(total, expected, rtol=0, atol=TOLERANCE[dtype] * expected.abs().max().item())
        assert y.isnan().equal(kernel_forward(raw, each, lower, upper)[0].isnan())
        assert y.nan_to_num(7.0).equal(kernel_forward(raw, each, lower, upper)[0].nan_to_num(7.0))
        assert one[1] is None
        assert all(
            mine.nan_to_num(7.0).equal(ours.nan_to_num(7.0))
            for mine, ours in zip(one, same, strict=True)
            if mine is not None
        )
        assert not y[7:].isnan().any()


def compare_compiled(device):
    """Compiled code calls the kernels as two operators, forward and backward, and gives the same numbers."""
    raw, A, lower, upper, gradient = problem(0, 4, 2, 3, torch.float64, device)

    def both(*parts):
        y, saved = kernel_forward(*parts)
        return y, *kernel_backward(gradient, parts[0], parts[1], saved, True)

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    for got, expected in zip(compiled(raw, A, lower, upper), both(raw, A, lower, upper), strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(affine.forward_operator, (raw, A, lower, None), test_utils=tests)
    torch.library.opcheck(affine.backward_operator, (gradient, raw, A, None, upper, False), test_utils=tests)


def compare_certificates(shapes, device, samples, dtypes=(torch.float32, torch.float64)):
    """Raws up to a million times farther away than their set is wide pass the certificate, sample by sample."""
    for (m, n), dtype, size in itertools.product(shapes, dtypes, (3.0, 1e3, 1e6)):
        source = torch.Generator().manual_seed(m)
        normal = partial(torch.randn, generator=source, dtype=torch.float64)
        A, center = normal(samples, m, n), normal(samples, n)
        middle, width = torch.einsum("bmn,bn->bm", A, center), normal(samples, m).abs() * (normal(samples, m) > -0.5)
        numbers = (size * normal(samples, n), A, middle - width, middle + width)
        raw, A, lower, upper = (number.to(dtype).to(device) for number in numbers)
        certificate = check(
            Affine(A, lower=lower, upper=torch.maximum(lower, upper)), kernel_forward(raw, A, lower, upper)[0]
        )
        assert certificate.ok, (m, n, dtype, size, str(certificate))


def compare_close_rows(shapes, device):
    """Far float32 raws and two rows at a small angle: answered, and within the certificate."""
    for (m, n), angle in itertools.product(shapes, (1e-2, 1e-4, 1e-5)):
        source = torch.Generator().manual_seed(n)
        normal = partial(torch.randn, generator=source, dtype=torch.float64)
        A = normal(12, m, n)
        A[:, 1] = A[:, 0] + angle * A[:, 1]
        middle = torch.einsum("bmn,bn->bm", A, normal(12, n))
        raw, A, bound = (number.float().to(device) for number in (1e6 * normal(12, n), A, middle))
        certificate = check(Affine(A, lower=bound, upper=bound), kernel_forward(raw, A, bound, bound)[0])
        assert certificate.ok, (m, n, angle, str(certificate))


def compare_conditioning(shapes, device):
    """Violations stay within the rounding of y while cond(A) grows to 1e4 (float32) and 1e6 (float64)."""
    for (m, n), (dtype, decades) in itertools.product(shapes, ((torch.float32, 4), (torch.float64, 6))):
        source = torch.Generator().manual_seed(m)
        normal = partial(torch.randn, generator=source, dtype=torch.float64)
        U, V = torch.linalg.qr(normal(m, m))[0], torch.linalg.qr(normal(n, m))[0]
        A = (U * torch.logspace(0, -decades, m, dtype=torch.float64) @ V.mT)[None].to(dtype).to(device)
        raw, bound = normal(1, n).to(dtype).to(device), torch.full((m,), 0.01, dtype=dtype, device=device)
        y = kernel_forward(raw, A, -bound, bound)[0]
        product = torch.einsum("bmn,bn->bm", A.double(), y.double())
        violation = (product.abs() - bound.double()).max()
        assert violation <= 4 * torch.finfo(dtype).eps * y.abs().max(), (m, n, dtype, violation)
