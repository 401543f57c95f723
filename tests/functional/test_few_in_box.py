"""A box and rows, four in total: the fixed program, exactly inside the box, compared with the multiplier method."""

import warnings

import pytest
import torch

import hardnet as hn
from hardnet.errors import InfeasibleError
from hardnet.functional import project_box_rows, project_rows
from hardnet.kernels.cpu import launch
from hardnet.layers.auto import structure_of
from hardnet.structure import BoxedRows
from tests.draws import F64, draw
from tests.solvers.box_families import KINDS, box_family

SHAPES = ((1, 1), (2, 1), (3, 1), (1, 2), (2, 2))
"""Numbers of rows and coordinates."""


@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_the_multipliers_and_is_exactly_inside(kind):
    for k, n in SHAPES:
        raw, *numbers = box_family(kind, 60, k, n, seed=n)
        assert "fixed program" in structure_of(BoxedRows(*numbers))
        y, expected = project_rows(raw, BoxedRows(*numbers)), project_box_rows(raw, *numbers)
        assert ((y >= numbers[3]) & (y <= numbers[4])).all()
        size = raw.abs().amax(-1, keepdim=True).clamp_min(1.0)
        assert ((y - expected).abs() <= 1e-10 * size).all()


def project_few_in_box(raw, *numbers, **options):
    """n coordinates and k rows of at most 4 together go to the fixed program."""
    return project_rows(raw, BoxedRows(*numbers), **options)


def test_gradients_are_those_of_the_multipliers():
    numbers = [part.requires_grad_() for part in box_family("plain", 50, 2, 2)]
    g = torch.linspace(-1.0, 1.0, 100, dtype=torch.float64).reshape(50, 2)
    found = torch.autograd.grad(project_few_in_box(*numbers), numbers, g)
    for own, other in zip(found, torch.autograd.grad(project_box_rows(*numbers), numbers, g), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-9)


def test_far_raws_and_rows_that_nearly_depend_are_right_or_settled_by_the_multipliers():
    raw, A, _, _, low, high = box_family("plain", 60, 2, 2)
    A[:, 1] = A[:, 0] + 1e-7 * A[:, 1]
    middle = (A * (0.5 * (low + high))[:, None]).sum(-1)
    constraint = hn.Box(low, high) & hn.Affine(A, lower=middle, upper=middle + 1e-3)
    for far in (1.0, 1e8):
        y = project_rows(far * raw, BoxedRows(A, middle, middle + 1e-3, low, high))
        assert hn.check(constraint, y).ok


def test_bad_and_empty_samples_alone_are_nan():
    raw, A, lower, upper, low, high = (part.clone() for part in box_family("plain", 6, 2, 2))
    good = project_few_in_box(raw, A, lower, upper, low, high)
    raw[1, 0], lower[2], upper[2] = torch.nan, 50.0, 60.0
    y = project_few_in_box(raw, A, lower, upper, low, high, on_infeasible="nan", on_invalid="nan")
    assert y.isnan().all(-1).tolist() == [False, True, True, False, False, False]
    assert torch.equal(y[[0, 3, 4, 5]], good[[0, 3, 4, 5]])
    with pytest.raises(InfeasibleError):
        project_few_in_box(raw[2:], A[2:], lower[2:], upper[2:], low[2:], high[2:])


def test_it_maps_and_compiles():
    numbers = box_family("plain", 8, 2, 2)
    expected = project_few_in_box(*numbers)
    mapped = torch.func.vmap(project_few_in_box)(*numbers)
    torch.testing.assert_close(mapped, expected, rtol=1e-12, atol=1e-12)
    compiled = torch.compile(project_few_in_box, fullgraph=True, backend="aot_eager")(*numbers)
    torch.testing.assert_close(compiled, expected, rtol=1e-12, atol=1e-12)
    jacobian = torch.func.vmap(torch.func.jacrev(project_few_in_box))(*numbers)
    forward = torch.func.vmap(torch.func.jacfwd(project_few_in_box))(*numbers)
    torch.testing.assert_close(jacobian, forward, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize("unit", [1e-100, 1.0, 1e20])
@pytest.mark.parametrize("far", [1e8, 1e16, 1e18, 1e25, 1e50, 1e100])
def test_from_far_away_rows_hold_or_a_warning_says_so(far, unit, numba, monkeypatch):
    """Accuracy relative to raw is not enough at y: without a warning, samples pass the certificate or are NaN."""
    if not numba:
        monkeypatch.setattr(launch.FewRows, "takes", lambda self, rows: False)
    ones, n = torch.ones(1, 3, dtype=F64), 3
    sets = [
        hn.Box(torch.zeros(n, dtype=F64)) & hn.Equality(ones, unit),
        hn.Box(torch.zeros(n, dtype=F64), unit) & hn.Affine(ones, upper=unit),
        hn.Affine(draw(2, n, seed=1), lower=-unit, upper=unit),
        hn.Affine(draw(3, n, seed=2), upper=torch.zeros(3, dtype=F64)),
    ]
    for constraint in sets:
        layer, raw = hn.layers.Projection(constraint), unit * far * draw(40, n, seed=3)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            y = layer(raw)
        assert said or hn.check(constraint, y).ok
        assert not said or far >= 1e50
