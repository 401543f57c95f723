"""The derivative of the projection in one kernel: in Triton's interpreter, and on a GPU if there is one."""

import pytest
import torch

import hardnet.nearest.derivative as formulas
from hardnet.functional import nearest
from hardnet.nearest.policy import Policy
from hardnet.rows import Batch, take_rows
from hardnet.solvers import Status
from hardnet.solvers.solution import Found
from tests.draws import draw
from tests.kernels.interpreter import interpret
from tests.solvers.families import duplicated, gaussian

pytest.importorskip("triton")

EPS = {torch.float64: 1e-11, torch.float32: 1e-6}


def project_affine(raw, A, lower=None, upper=None, **options):
    """The solver of any rows, also where few rows have their own."""
    rows = take_rows(raw, A, lower, upper)
    return rows.as_given(nearest.nearest(rows, Policy(**options), most_few=0))


class Kernel:
    """Makes the kernel take, or decline, every problem on any device, and remembers its answers."""

    def __init__(self, taken=True):
        self.taken, self.answers = taken, []

    def __enter__(self):
        self.before = formulas._fits, formulas._fused
        formulas._fits = lambda *numbers: self.taken
        formulas._fused = lambda *numbers: self.answers.append(self.before[1](*numbers)) or self.answers[-1]
        return self

    def __exit__(self, *error):
        formulas._fits, formulas._fused = self.before


def pull_back(numbers, taken, needed=(True,) * 4, weight=None, device="cpu"):
    """The gradients of a weighted sum of y with respect to raw, A, lower and upper; and whether the kernel answered."""
    leaves = [
        part if part is None else part.to(device).clone().requires_grad_(wanted)
        for part, wanted in zip(numbers, needed, strict=True)
    ]
    y = project_affine(*leaves, on_infeasible="nearest", on_invalid="nan")
    weight = draw(*y.shape, seed=77).to(y) if weight is None else weight.to(y)
    with Kernel(taken) as kernel:
        y.backward(weight)
    return [None if leaf is None else leaf.grad for leaf in leaves], [answer is not None for answer in kernel.answers]


def compare(numbers, answered=True, **options):
    """Compare the kernel with the torch formulas: entries, shapes, dtypes and absent gradients."""
    (fused, seen), (expected, unseen) = pull_back(numbers, True, **options), pull_back(numbers, False, **options)
    assert (seen, unseen) == ([answered], [])
    for one, other in zip(fused, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            tolerance = EPS[one.dtype]
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * max(1, other.abs().max()))
    return fused


def convert(numbers, dtype):
    return [None if part is None else part.to(dtype) for part in numbers]


def compare_shapes(shapes, batch, device="cpu"):
    """Both dtypes, with and without equalities, A per sample or shared, and sizes that are not powers of two."""
    for m, n in shapes:
        for dtype in EPS:
            for equalities, shared in ((0, False), (min(m, n) // 3, True), (1, False)):
                compare(convert(gaussian(batch, n, m, equalities, shared), dtype), device=device)


def compare_sharing():
    """Absent and shared bounds, broadcast batches, one sample, unneeded gradients, and an A shared by many samples."""
    raw, A, lower, upper = gaussian(4, 3, 5, shared=True)
    wide = lower[0] - 1, upper[0] + 1
    for low, high in ((None, upper), (lower, None), (None, wide[1]), wide, (wide[0], upper), (lower, wide[1])):
        for dtype in EPS:
            compare(convert((raw, A, low, high), dtype), needed=(True, True, low is not None, high is not None))
    compare((raw[0], A, lower[0], upper[0]))
    compare((raw.view(2, 2, 3), A.expand(2, 1, 5, 3), wide[0].expand(1, 2, 5), upper.view(2, 2, 5)))
    compare((raw[0], A.expand(4, 5, 3), *wide))
    own = gaussian(3, 5, 3)
    own[2][1, 0], own[2][2, 1:] = own[3][1, 0], own[3][2, 1:]  # every sample has different equalities
    compare(own)
    for missing in range(4):
        compare(gaussian(2, 3, 5), needed=tuple(place != missing for place in range(4)))
    formulas.LARGEST_MATRICES = 10
    for dtype in EPS:
        compare(convert((raw, A, *wide), dtype))
    raw[1] = torch.nan
    compare((raw, A, *wide))


def compare_odd_samples():
    """Invalid samples and NaN cotangents count as zero; dependent rows and empty sets are left to the formulas."""
    raw, A, lower, upper = gaussian(4, 3, 5)
    raw[0, 0], A[1, 2, 1], lower[2, 0] = torch.nan, torch.inf, upper[2, 0] + 1
    for part in compare((raw, A, lower, upper)):
        assert not part[:3].any()
        assert part[3].any()
    for part in compare((raw[3:], A[1], lower[3:], upper[3:])):  # no sample has an answer: zeros
        assert not part.any()
    weight = draw(4, 3)
    weight[0, 1] = torch.nan
    compare(gaussian(4, 3, 5), weight=weight)
    box = [torch.zeros(1, 2), torch.eye(2), -torch.ones(2), torch.ones(2)]
    free, _ = pull_back(box, True, weight=torch.tensor([[torch.inf, 1.0]]))  # no row is active
    assert free[0].tolist() == [[torch.inf, 1.0]]
    assert free[2].tolist() == free[3].tolist() == [0.0, 0.0]
    empty = gaussian(2, 3, 5)
    empty[1][:, 1], empty[2][:, 1], empty[3][:, 1] = empty[1][:, 0], empty[3][:, 0] + 1, empty[3][:, 0] + 2
    compare(empty, answered=False)
    compare(duplicated(2), answered=False)
    tight = gaussian(2, 3, 2, equalities=2)
    tight[1][:, 1] = tight[1][:, 0] + 9e-5 * draw(2, 3)
    compare(tight, answered=False)


def flags(numbers, side, status, matrix):
    """Which samples the launch itself flags as open, for given sides and status."""
    from hardnet.kernels.gpu.polyhedron import Rules, Saved, launch_backward

    raw, A, lower, upper = numbers
    saved = Saved(raw, torch.zeros_like(lower), side, status)
    rules = Rules(1e-8, int(Status.INVALID), int(Status.INFEASIBLE) if matrix else -1)
    return launch_backward(raw, A, lower, upper, saved, rules, [torch.float64] * 4).open.tolist()


def compare_flags():
    """Open are dependent active rows, and empty sets only if the gradient of A is wanted; invalid samples never are."""
    numbers = gaussian(5, 4, 3)
    numbers[1][:, 1] = 2 * numbers[1][:, 0]
    numbers[1][4, 2] = 0
    side = torch.tensor([[1, 1, 0], [1, 0, -1], [1, 0, 1], [1, -1, 1], [0, 1, 1]], dtype=torch.int8)
    status = torch.tensor([Status.SOLVED, Status.SOLVED, Status.INFEASIBLE, Status.INVALID, Status.NOT_CONVERGED])
    assert flags(numbers, side, status.to(torch.int8), True) == [1, 0, 1, 0, 1]
    assert flags(numbers, side, status.to(torch.int8), False) == [1, 0, 0, 0, 1]
    one = [part[2:3] for part in (*numbers, side, status)]
    saved = Found(one[0], None, torch.zeros_like(one[2]), *one[4:], one[0][:, 0])
    rows = Batch(*one[:4], look=True)
    assert formulas._fused(one[0], rows, saved, (True, True, True, True)) is None
    assert formulas._fused(one[0], rows, saved, (True, False, True, True)) is not None


def compare_nearly_dependent():
    """Rows at an angle of 1e-3: one correction by the residual reaches the u of their QR decomposition."""
    raw, A, lower, _ = gaussian(3, 5, 3, equalities=3)
    A[:, 1] = A[:, 0] + 1e-3 * draw(3, 5)
    found, answered = pull_back((raw, A, lower, lower), True, needed=(True, False, False, False))
    assert answered == [True]
    Q, g = torch.linalg.qr(A.mT).Q, draw(3, 5, seed=77).unsqueeze(-1)
    assert (found[0] - (g - Q @ (Q.mT @ g)).squeeze(-1)).abs().max() <= 1e-12


def compare_differences():
    """Compare a directional derivative of the projection in every argument with finite differences."""
    numbers, weight = gaussian(3, 5, 7), draw(3, 5, seed=77)
    found, answered = pull_back(numbers, True)
    assert answered == [True]
    for place, part in enumerate(numbers):
        direction = draw(*part.shape, seed=11)
        ends = [
            project_affine(*(x + (h * direction if k == place else 0) for k, x in enumerate(numbers)))
            for h in (1e-6, -1e-6)
        ]
        slope = ((ends[0] - ends[1]) * weight).sum() / 2e-6
        torch.testing.assert_close((found[place] * direction).sum(), slope, rtol=1e-6, atol=1e-7)


def test_agrees_with_the_formulas():
    interpret(
        "test_projection_backward",
        "compare_shapes([(1, 1), (2, 2), (5, 3)], 3)",
        "compare_shapes([(10, 20), (20, 10), (32, 32)], 1)",
    )


def test_shared_absent_and_broadcast_numbers():
    interpret("test_projection_backward", "compare_sharing()")


def test_odd_samples_are_zero_or_left_open():
    interpret("test_projection_backward", "compare_odd_samples()", "compare_flags()")


def test_finite_differences_and_nearly_dependent_rows():
    interpret("test_projection_backward", "compare_differences()", "compare_nearly_dependent()")


class OnDevice(torch.Tensor):
    device = torch.device("cuda")


def test_the_kernel_is_chosen_for_small_plain_tensors(monkeypatch):
    monkeypatch.setattr(formulas.gpu, "HAS_TRITON", True)
    monkeypatch.setattr(formulas.gpu, "_supported", lambda device: True)
    monkeypatch.setattr(formulas, "plain", lambda *tensors: True)
    zeros = lambda *shape, **kind: torch.zeros(*shape, **kind).as_subclass(OnDevice)
    takes = lambda batch, m, n, **kind: formulas._fits(
        zeros(batch, n, **kind), Batch(zeros(batch, n, **kind), zeros(batch, m, n, **kind), None, None)
    )
    assert takes(2, 32, 32)
    assert takes(1, 1, 1, dtype=torch.float64)
    assert not takes(2, 33, 4)
    assert not takes(2, 4, 33)
    assert not takes(0, 3, 4)
    assert not takes(2, 3, 4, dtype=torch.bfloat16)
    assert not formulas._fits(torch.zeros(2, 4), Batch(torch.zeros(2, 4), torch.zeros(2, 3, 4), None, None))
    monkeypatch.setattr(formulas, "plain", lambda *tensors: False)
    assert not takes(2, 3, 4)


@pytest.mark.gpu
@pytest.mark.parametrize(("m", "n"), [(2, 2), (10, 20), (32, 32), (20, 10)])
def test_agrees_with_the_formulas_on_the_device(m, n):
    compare_shapes([(m, n)], 500, "cuda")


@pytest.mark.gpu
def test_gradcheck_on_the_device():
    leaves = [part.cuda().requires_grad_() for part in gaussian(3, 5, 7)]
    assert torch.autograd.gradcheck(project_affine, leaves)
    assert torch.autograd.gradgradcheck(project_affine, leaves, fast_mode=True)
    shared = [part.cuda().requires_grad_() for part in gaussian(3, 5, 7, shared=True)]
    assert torch.autograd.gradcheck(project_affine, shared)


@pytest.mark.gpu
def test_the_backward_of_project_affine_takes_the_kernel_on_the_device(monkeypatch):
    calls, fused = [], formulas._fused
    monkeypatch.setattr(formulas, "_fused", lambda *numbers: calls.append(1) or fused(*numbers))
    leaves = [part.cuda().requires_grad_() for part in gaussian(100, 10, 5)]
    project_affine(*leaves).sum().backward()
    assert calls == [1]
    assert all(leaf.grad.isfinite().all() for leaf in leaves)
