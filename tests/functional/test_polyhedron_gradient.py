"""The implicit derivative: finite differences, second derivatives, degenerate points, shared numbers and memory."""

from collections import namedtuple

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from hardnet.functional import implicit_vjp, nearest, project_affine
from hardnet.nearest.derivative import _replace_open
from hardnet.nearest.policy import Policy
from hardnet.rows import take_rows
from hardnet.solvers.polyhedron.active import solve_active, split
from tests.draws import draw
from tests.solvers.families import F64, cone_apex, gaussian


def general(raw, A, lower=None, upper=None, **options):
    """The solver of any rows, also where few rows have their own."""
    rows = take_rows(raw, A, lower, upper)
    return rows.as_given(nearest.nearest(rows, Policy(**options), most_few=0))


def leaves(*tensors):
    return [tensor.clone().requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 1), (4, 3), (3, 7), (30, 26)])
def test_gradients_pass_gradcheck(n, m, shared):
    arguments = leaves(*gaussian(3 if m < 20 else 1, n, m, shared=shared))
    assert gradcheck(project_affine, arguments, fast_mode=m > 20)
    if m < 20:
        assert gradgradcheck(project_affine, arguments, fast_mode=True)


def test_equalities_and_free_rows_pass_gradcheck():
    raw, A, lower, upper = gaussian(3, 5, 6, equalities=2)
    lower[:, 4], upper[:, 5] = -torch.inf, torch.inf
    tight = torch.tensor([True, True, False, False, False, False])

    def project(raw, A, middle, width):
        low, high = torch.where(tight, middle, lower + width), torch.where(tight, middle, upper - width)
        return project_affine(raw, A, low, high)

    arguments = leaves(raw, A, torch.where(tight, lower, 0.0), torch.zeros_like(lower))
    assert gradcheck(project, arguments)
    assert gradgradcheck(project, arguments, fast_mode=True)


def test_gradients_agree_with_finite_differences_at_size():
    raw, A, lower, upper = gaussian(2, 50, 60)
    arguments = leaves(raw, A, lower, upper)
    weight = draw(2, 50, seed=9)
    (project_affine(*arguments) * weight).sum().backward()
    for position, leaf in enumerate(arguments):
        direction = draw(*leaf.shape, seed=11)
        moved = [
            project_affine(*(x + (h * direction if k == position else 0) for k, x in enumerate((raw, A, lower, upper))))
            for h in (1e-6, -1e-6)
        ]
        slope = ((moved[0] - moved[1]) * weight).sum() / 2e-6
        assert torch.allclose((leaf.grad * direction).sum(), slope, rtol=1e-6, atol=1e-7)


def test_one_sided_bounds_receive_the_gradient_of_their_side():
    raw = torch.tensor([3.0, -3.0], dtype=F64, requires_grad=True)
    lower, upper = leaves(-torch.ones(2, dtype=F64), torch.ones(2, dtype=F64))
    project_affine(raw, torch.eye(2, dtype=F64), lower, upper).sum().backward()
    assert raw.grad.tolist() == [0.0, 0.0]
    assert upper.grad.tolist() == [1.0, 0.0]
    assert lower.grad.tolist() == [0.0, 1.0]


def test_feasible_samples_pass_the_gradient_through():
    raw = (0.1 * draw(5, 3)).requires_grad_()
    weight = draw(5, 3, seed=1)
    (project_affine(raw, torch.eye(3, dtype=F64), -1.0, 1.0) * weight).sum().backward()
    assert torch.equal(raw.grad, weight)


def test_equalities_act_on_samples_that_satisfy_them_already():
    A = torch.ones(1, 3, dtype=F64)
    raw, total = leaves(torch.tensor([0.2, 0.3, 0.5], dtype=F64), torch.ones(1, dtype=F64))
    weight = torch.tensor([1.0, 2.0, 6.0], dtype=F64)
    (project_affine(raw, A, total, total) * weight).sum().backward()
    assert torch.allclose(raw.grad, weight - 3, rtol=0, atol=1e-12)
    assert torch.allclose(total.grad, torch.tensor([3.0], dtype=F64), rtol=0, atol=1e-12)


def test_rows_that_touch_without_a_multiplier_are_inactive():
    """Raw on the boundary, and a vertex where one of two tight rows carries no multiplier."""
    eye = torch.eye(2, dtype=F64)
    raw = torch.tensor([[1.0, 0.0], [3.0, 1.0]], dtype=F64, requires_grad=True)
    project_affine(raw, eye, upper=1.0).sum().backward()
    assert raw.grad.tolist() == [[1.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize("project", [project_affine, general])
def test_duplicates_share_the_gradient(project):
    """Evenly in the general solver; with up to four rows the first takes it all, which is a valid derivative too."""
    A = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]], dtype=F64)
    upper = torch.tensor([1.0, 2.0, 9.0], dtype=F64, requires_grad=True)
    raw = torch.tensor([3.0, 0.0], dtype=F64, requires_grad=True)
    project(raw, A, upper=upper).sum().backward()
    expected = [0.5, 0.25, 0.0] if project is general else [1.0, 0.0, 0.0]
    assert torch.allclose(upper.grad, torch.tensor(expected, dtype=F64), rtol=0, atol=1e-12)
    assert torch.allclose(raw.grad, torch.tensor([0.0, 1.0], dtype=F64), rtol=0, atol=1e-12)


def test_gradients_at_a_vertex_of_many_rows_are_finite():
    arguments = leaves(*cone_apex(16))
    project_affine(*arguments).sum().backward()
    assert all(leaf.grad.isfinite().all() for leaf in arguments)


def test_a_shared_number_receives_the_sum_over_the_batch():
    raw, A, lower, upper = gaussian(7, 4, 5, shared=True)
    shared = leaves(raw, A, lower[0] - 1, upper[0] + 1)
    project_affine(*shared).square().sum().backward()
    alone = leaves(raw, A.expand(7, 5, 4), (lower[0] - 1).expand(7, 5), (upper[0] + 1).expand(7, 5))
    project_affine(*alone).square().sum().backward()
    for one, many in zip(shared[1:], alone[1:], strict=True):
        assert torch.allclose(one.grad, many.grad.sum(0), rtol=0, atol=1e-12)
    assert torch.allclose(shared[0].grad, alone[0].grad, rtol=0, atol=1e-12)


def test_gradients_of_a_sample_do_not_depend_on_its_batch_mates():
    numbers = gaussian(40, 30, 40)
    whole, part = leaves(*numbers), leaves(*(number[7:9] for number in numbers))
    project_affine(*whole).square().sum().backward()
    project_affine(*part).square().sum().backward()
    for one, many in zip(part, whole, strict=True):
        assert torch.equal(one.grad, many.grad[7:9])


def test_samples_without_an_answer_have_zero_gradients_and_spare_the_others():
    raw, A, lower, upper = gaussian(3, 4, 6)
    raw[0, 0] = torch.nan
    A[1, 1], lower[1, 1], upper[1, 1] = A[1, 0], upper[1, 0] + 1, upper[1, 0] + 2
    arguments = leaves(raw, A, lower, upper)
    y = project_affine(*arguments, on_infeasible="nan", on_invalid="nan")
    y[2].sum().backward()
    alone = leaves(raw[2], A[2], lower[2], upper[2])
    project_affine(*alone).sum().backward()
    for one, many in zip(alone, arguments, strict=True):
        assert torch.allclose(one.grad, many.grad[2], rtol=0, atol=1e-13)
        assert not many.grad[:2].any()


def test_gradients_have_the_dtype_of_their_tensor():
    arguments = leaves(*(part.float() for part in gaussian(3, 4, 5)))
    project_affine(*arguments).sum().backward()
    assert all(leaf.grad.dtype == torch.float32 for leaf in arguments)


def test_the_graph_keeps_vectors_and_the_inputs_alone():
    raw, A, lower, upper = leaves(*gaussian(8, 20, 30))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        project_affine(raw, A, lower, upper)
    own = {tensor.data_ptr() for tensor in (raw, A, lower, upper)}
    extra = sum(tensor.numel() for tensor in kept if tensor.data_ptr() not in own)
    assert extra <= 8 * (2 * 20 + 3 * 30 + 8)


def test_curvature_and_rows_enter_as_the_formula_says():
    """``u = (W^-1 - W^-1 C'(C W^-1 C')^-1 C W^-1) g`` against dense inverses."""
    C, root, g = draw(5, 3, 6), draw(5, 6, 6, seed=1), draw(5, 6, seed=2)
    W = root @ root.mT + torch.eye(6, dtype=F64)
    active = torch.tensor([[True, True, False]] * 5)
    u, w = implicit_vjp(g, C, active, W)
    inverse, rows = W.inverse(), C[:, :2]
    inner = (rows @ inverse @ rows.mT).inverse()
    expected = inverse - inverse @ rows.mT @ inner @ rows @ inverse
    assert torch.allclose(u, (expected @ g.unsqueeze(-1)).squeeze(-1), rtol=0, atol=1e-12)
    assert torch.allclose(w[:, :2], (inner @ rows @ inverse @ g.unsqueeze(-1)).squeeze(-1), rtol=0, atol=1e-12)
    assert not w[:, 2].any()


@pytest.mark.parametrize("rows", [3, 40])
def test_dependent_rows_are_split_by_the_pseudo_inverse(rows):
    A = draw(6, rows, 5)
    A = torch.cat([A, A[:, :1] + A[:, 1:2], A[:, :1] / 3], 1)
    A = A / A.norm(dim=-1, keepdim=True)
    active = torch.rand(6, rows + 2, generator=torch.Generator().manual_seed(0)) < 0.7
    active[:, [0, 1, rows, rows + 1]] = True
    masked = A * active.unsqueeze(-1)
    v, target = draw(6, 5, seed=1), draw(6, rows + 2, seed=2)
    tangent, multiplier = split(v, A, active)
    assert torch.allclose(multiplier, (torch.linalg.pinv(masked.mT) @ v.unsqueeze(-1)).squeeze(-1), rtol=0, atol=1e-10)
    assert torch.allclose((masked @ tangent.unsqueeze(-1)).abs().amax(), torch.zeros((), dtype=F64), rtol=0, atol=1e-12)
    solved = solve_active(A, active, target)
    expected = torch.linalg.pinv(masked @ masked.mT, rtol=1e-12) @ (target * active).unsqueeze(-1)
    assert torch.allclose(solved, expected.squeeze(-1), rtol=0, atol=1e-8)


def test_nearly_dependent_rows_keep_the_digits_that_they_have():
    """Rows at an angle of 1e-6 lose six digits, not the twelve that their Gram matrix would lose."""
    A = torch.cat([draw(8, 1, 6) + 1e-6 * draw(8, 2, 6, seed=1), draw(8, 2, 6, seed=2)], 1)
    v = draw(8, 6, seed=3)
    tangent, multiplier = split(v, A, torch.ones(8, 4, dtype=torch.bool))
    Q = torch.linalg.qr(A.mT).Q
    expected = v - (Q @ (Q.mT @ v.unsqueeze(-1))).squeeze(-1)
    assert torch.allclose(tangent, expected, rtol=0, atol=1e-8)
    assert torch.allclose((A.mT @ multiplier.unsqueeze(-1)).squeeze(-1) + tangent, v, rtol=0, atol=1e-8)


def test_the_compromise_on_an_empty_set_passes_gradcheck():
    raw, A, middle = draw(2, 3), draw(2, 5, 3, seed=1), 2 * draw(2, 5, seed=2)

    def nearest(raw, A, lower, upper):
        return project_affine(raw, A, lower, upper, on_infeasible="nearest")

    assert gradcheck(nearest, leaves(raw, A, middle, middle + 0.1), fast_mode=True)
    assert gradcheck(nearest, leaves(raw, A[0], middle, middle + 0.1), fast_mode=True)


@pytest.mark.parametrize("m", [3, 6, 12])
@pytest.mark.parametrize("shared", [False, True])
def test_gradients_per_sample_by_vmap(m, shared):
    raw, A, _, upper = gaussian(5, 4, m, shared=shared)
    bound = upper.abs()
    loss = lambda raw, A, bound: project_affine(raw, A, -bound, bound).square().sum()
    found = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)), (0, None if shared else 0, 0))(raw, A, bound)
    for i in range(5):
        leaves = [number.clone().requires_grad_() for number in (raw[i], A if shared else A[i], bound[i])]
        for one, other in zip(found, torch.autograd.grad(loss(*leaves), leaves), strict=True):
            torch.testing.assert_close(one[i], other, rtol=1e-9, atol=1e-9)
    twice = torch.func.jacrev(torch.func.jacrev(lambda raw: loss(raw, A, bound)))(raw)
    assert twice.isfinite().all()


def test_what_a_kernel_leaves_open_is_nan_and_nothing_else():
    """A kernel marks samples by bytes, as `hardnet.kernels.gpu.polyhedron.Found` holds them."""
    Found = namedtuple("Found", "raw matrix lower upper open")  # the class itself needs Triton
    found = Found(torch.ones(3, 2), None, torch.ones(3, 4), torch.ones(3, 4), torch.tensor([0, 1, 0], dtype=torch.int8))
    replaced = _replace_open(found)
    assert replaced.matrix is None
    for part in (replaced.raw, replaced.lower, replaced.upper):
        assert part.isnan().all(-1).tolist() == [False, True, False]
        assert (part[[0, 2]] == 1).all()
