"""Small projections in one launch: in Triton's interpreter, and on a GPU if there is one."""

import pytest
import torch

from hardnet.kernels.gpu import affine
from hardnet.kernels.gpu.nearest import AnyRows
from hardnet.rows import Batch
from hardnet.solvers import Status, project_affine
from tests.kernels.interpreter import interpret
from tests.solvers import families

pytest.importorskip("triton")

FAMILIES = "from tests.solvers.families import *"


def test_agrees_with_the_launches_over_all_samples():
    interpret(
        "projection_cases",
        FAMILIES,
        "compare(gaussian(8, 2, 2), 'cpu')",
        "compare(gaussian(8, 10, 5), 'cpu')",
        "compare(gaussian(6, 10, 20, equalities=2), 'cpu')",
        "compare(gaussian(3, 17, 32, shared=True), 'cpu')",
        "compare(gaussian(3, 32, 9), 'cpu')",
    )


def test_what_is_left_open_is_settled_in_steps():
    interpret("projection_cases", FAMILIES, "compare_whole(duplicated(6), 'cpu')", "compare_whole(integers(12), 'cpu')")


def test_promises_on_the_interpreter():
    interpret("projection_cases", FAMILIES, "compare_promises('cpu')", "compare_shared('cpu')")


def test_a_raw_just_outside_is_brought_inside():
    interpret("projection_cases", "compare_near('cpu'); compare_far('cpu')")


class OnDevice(torch.Tensor):
    device = torch.device("cuda")
    is_cuda = True


def test_the_kernels_take_rows_whose_vectors_fit_on_a_gpu(monkeypatch):
    monkeypatch.setattr(affine, "_supported", lambda device: True)
    monkeypatch.setattr(affine, "HAS_TRITON", True)
    on_device = lambda *shape: torch.zeros(*shape).as_subclass(OnDevice)
    takes = lambda A: AnyRows().takes(Batch(A[..., 0, :], A, None, None))
    assert takes(on_device(2, 1))
    assert takes(on_device(7, 32, 32))
    assert takes(on_device(33, 4))
    assert takes(on_device(7, 4, 1024))
    for refused in (on_device(7, 4, 1025), torch.zeros(4, 4)):
        assert not takes(refused)
    monkeypatch.setattr(affine, "HAS_TRITON", False)
    assert not takes(on_device(2, 2))


@pytest.mark.gpu
def test_small_projections_on_the_device():
    from tests.kernels import projection_cases as cases

    for family in (
        families.gaussian(1000, 2, 2),
        families.gaussian(1000, 10, 20, equalities=2),
        families.gaussian(1000, 32, 32),
        families.gaussian(500, 5, 31, shared=True),
    ):
        cases.compare(family, "cuda")
    for family in (families.duplicated(), families.integers()):
        cases.compare_whole(family, "cuda")
    cases.compare_promises("cuda")
    cases.compare_shared("cuda")
    cases.compare_near("cuda")
    cases.compare_far("cuda")


@pytest.mark.gpu
def test_the_device_projects_small_problems_like_the_cpu():
    for family in (families.gaussian(300, 6, 9), families.integers(), families.duplicated()):
        here, there = project_affine(*family), project_affine(*(part.cuda() for part in family))
        assert (there.status == Status.SOLVED).all()
        assert (there.y.cpu() - here.y).abs().max() <= 1e-10
