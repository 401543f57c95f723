"""The GPU kernel for rows that stay in memory: in Triton's interpreter, and on a GPU if there is one."""

import pytest
import torch

import hardnet as hn
from tests.kernels import projection_cases as cases
from tests.kernels.interpreter import interpret
from tests.solvers import families

pytest.importorskip("triton")

FAMILIES = "from tests.solvers.families import *; by_active_rows()"


def test_agrees_with_the_launches_over_all_samples():
    interpret(
        "projection_cases",
        FAMILIES,
        "compare(gaussian(4, 2, 2), 'cpu')",
        "compare(gaussian(4, 10, 20, equalities=2), 'cpu', steps=False)",
        "compare(gaussian(2, 17, 40, shared=True), 'cpu')",
        "compare(gaussian(2, 33, 9), 'cpu')",
    )


def test_what_is_left_open_is_settled_in_steps():
    interpret("projection_cases", FAMILIES, "compare_whole(duplicated(4), 'cpu')", "compare_whole(integers(12), 'cpu')")


def test_promises_on_the_interpreter():
    interpret("projection_cases", FAMILIES, "compare_promises('cpu')", "compare_shared('cpu')")


def test_a_raw_just_outside_is_brought_inside():
    interpret("projection_cases", FAMILIES, "compare_near('cpu'); compare_far('cpu')")


def test_the_derivative_on_the_interpreter():
    interpret("projection_cases", "compare_derivative('cpu', [(3, 5), (20, 8), (2, 33)], 3)")


@pytest.mark.gpu
def test_agrees_with_the_launches_over_all_samples_on_a_device(monkeypatch):
    cases.by_active_rows(monkeypatch)
    for size in ((1000, 2, 2), (1000, 10, 20, 2), (1000, 32, 32), (200, 40, 120, 5), (100, 60, 50), (20, 200, 150)):
        cases.compare(families.gaussian(*size), "cuda", steps=False)
    cases.compare(families.gaussian(500, 5, 31, shared=True), "cuda")
    for family in (families.duplicated(), families.integers()):
        cases.compare_whole(family, "cuda")
    cases.compare_promises("cuda")
    cases.compare_shared("cuda")
    cases.compare_near("cuda")
    cases.compare_far("cuda")
    cases.compare_derivative("cuda", [(3, 5), (120, 40), (300, 200)], 50)


@pytest.mark.gpu
def test_the_device_projects_and_differentiates_like_the_cpu():
    for size in ((40, 40, 80), (10, 70, 50, 4)):
        here = [part.clone().requires_grad_() for part in families.gaussian(*size)]
        there = [part.detach().cuda().requires_grad_() for part in here]
        y, other = (hn.functional.project_affine(*numbers) for numbers in (here, there))
        assert (other.cpu() - y).abs().max() <= 1e-10
        weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
        expected = torch.autograd.grad((y * weight).sum(), here)
        found = torch.autograd.grad((other * weight.cuda()).sum(), there)
        for got, right in zip(found, expected, strict=True):
            assert (got.cpu() - right).abs().max() <= 1e-8 * right.abs().max().clamp_min(1.0)
