"""The pivoting kernel against its plain reference: in Triton's interpreter, and on a GPU if there is one."""

import pytest
import torch

from hardnet.solvers.polyhedron.pivoting import pivot_reference
from tests.kernels.interpreter import interpret
from tests.solvers.families import duplicated, gaussian, integers

pytest.importorskip("triton")


def products(raw, A, lower, upper):
    """The arguments of `pivot` for unit rows."""
    norm = A.norm(dim=-1).clamp_min(1e-300)
    A = A / norm.unsqueeze(-1)
    product = (A @ raw.unsqueeze(-1)).squeeze(-1)
    return A @ A.mT, product, lower / norm, upper / norm, torch.full_like(product, 1e-13)


def compare(device, batch):
    """Same active sets and steps, multipliers to rounding; both detect empty sets."""
    from hardnet.kernels.gpu.polyhedron import pivot

    empty = gaussian(batch, 4, 6)
    empty[1][:, 1], empty[2][:, 1], empty[3][:, 1] = empty[1][:, 0], empty[3][:, 0] + 1, empty[3][:, 0] + 2
    for family in (gaussian(batch, 10, 5), gaussian(batch, 10, 20, equalities=2), gaussian(batch, 20, 40), empty):
        gram, *rest = (part.to(device) for part in products(*family))
        expected = pivot_reference(gram.clone(), *rest, limit=500)
        dual, side, steps, through = pivot(gram, *rest, limit=500)
        assert torch.equal(through, expected.finished)
        assert torch.equal(side[through], expected.side[through])
        assert torch.equal(steps[through], expected.steps[through])
        if bool(through.any()):
            assert (dual - expected.dual)[through].abs().max() <= 1e-11
        transposed = pivot(gram, *(part.mT.contiguous().mT for part in rest), limit=500)
        assert all(torch.equal(one, other) for one, other in zip(transposed, (dual, side, steps, through), strict=True))
    assert not through.any()


def test_kernel_agrees_with_its_reference_on_the_interpreter():
    interpret("test_pivoting", "compare('cpu', 6)")


@pytest.mark.gpu
def test_kernel_agrees_with_its_reference_on_the_device():
    compare("cuda", 500)


@pytest.mark.gpu
@pytest.mark.parametrize("family", [duplicated, integers, lambda: gaussian(64, 100, 100, equalities=50)])
def test_the_device_projects_like_the_cpu(family):
    from hardnet.solvers import Status, project_affine

    arguments = family()
    here, there = project_affine(*arguments), project_affine(*(part.cuda() for part in arguments))
    assert (there.status == Status.SOLVED).all()
    assert (there.y.cpu() - here.y).abs().max() <= 1e-10
