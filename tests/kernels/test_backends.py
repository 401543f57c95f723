"""Selection of a backend: every backend has the same operations, and none takes what kernels may not read."""

import pytest
import torch

from hardnet.kernels import backends
from hardnet.kernels.backends import BACKENDS, Backend, find
from hardnet.kernels.cpu import launch
from hardnet.rows import Batch, boxed, take_rows

PROBLEMS = Backend._fields
METHODS = {
    "closed_form": ("takes", "wants_factor", "forward", "backward"),
    "few_rows": ("takes", "answer", "forward", "backward"),
    "box_rows": ("takes", "answer", "forward"),
    "any_rows": ("takes", "forward"),
}


def record(**parts):
    raw, A, bound = torch.ones(5, 3), torch.ones(2, 3), torch.zeros(2)
    box = torch.zeros(3)
    return take_rows(raw, A, None, bound, None, box, None)._replace(**parts)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_backend_has_the_same_methods(problem):
    for backend in BACKENDS:
        operation = getattr(backend, problem)
        assert all(callable(getattr(operation, method)) for method in METHODS[problem]), operation


@pytest.mark.skipif(not launch.HAS_NUMBA, reason="a CPU has no other backend")
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_cpu_takes_plain_memory_alone(problem):
    assert find(problem, record()) is getattr(BACKENDS[0], problem)
    assert find(problem, record(memory=False)) is None
    assert (
        torch.func.vmap(lambda raw: raw + (find(problem, take_rows(raw, *record()[1:4])) is not None))(
            torch.zeros(4, 3)
        )
        .eq(0)
        .all()
    )


@pytest.mark.parametrize("problem", PROBLEMS)
def test_without_kernels_plain_torch_computes(problem, monkeypatch):
    monkeypatch.setattr(launch, "HAS_NUMBA", False)
    assert find(problem, record()) is None


def test_a_new_backend_is_a_line_of_the_table(monkeypatch):
    class Greedy:
        def takes(self, rows: Batch) -> bool:
            return True

    first = Backend(*[Greedy()] * 4)
    monkeypatch.setattr(backends, "BACKENDS", (first, *BACKENDS))
    assert find("few_rows", record()) is first.few_rows


@pytest.mark.skipif(not launch.HAS_NUMBA, reason="numba compiles them")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_answer_alone_is_that_of_the_whole_operation(dtype):
    draw = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=dtype)
    few = take_rows(3 * draw, torch.eye(3, dtype=dtype)[:2], None, torch.zeros(2, dtype=dtype))
    assert torch.equal(launch.FewRows().answer(few), launch.FewRows().forward(few)[0])
    ones = torch.ones(1, 3, dtype=dtype)
    rows = take_rows(draw, ones, ones[0, :1], ones[0, :1], None, torch.zeros(3, dtype=dtype), None)
    whole = launch.BoxRows().forward(boxed(rows), torch.finfo(dtype).eps)[0]
    assert torch.equal(launch.BoxRows().answer(boxed(rows, dtype)), whole.to(dtype))
