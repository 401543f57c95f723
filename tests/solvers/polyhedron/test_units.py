"""Units, outputs of mixed size, nearly dependent rows and empty sets: solved, or said, whatever the numbers' sizes."""

import pytest
import torch

from hardnet.errors import InfeasibleError
from hardnet.functional import project_affine as project
from hardnet.solvers import Status, project_affine
from tests.draws import draw
from tests.solvers.families import F64, gaussian, product
from tests.solvers.oracles import contradict, nearest_point

EXPONENTS = [(-150, 150), (150, -150), (-150, -150), (150, 150), (0, 150), (0, -150), (155, 0), (-170, 0)]


def powers(*shape, most, seed):
    """Powers of two between 2^-most and 2^most, so that a change of units rounds nothing."""
    exponent = torch.randint(-most, most + 1, shape, generator=torch.Generator().manual_seed(seed))
    return torch.ldexp(torch.ones(shape, dtype=F64), exponent)


@pytest.mark.parametrize(("rows", "outputs"), EXPONENTS)
@pytest.mark.parametrize(("n", "m"), [(3, 1), (10, 20), (12, 5)])
def test_units_do_not_matter(rows, outputs, n, m):
    raw, A, lower, upper = gaussian(16, n, m)
    y = project_affine(raw, A, lower, upper).y
    row, out = 2.0 ** int(3.3219 * rows), 2.0 ** int(3.3219 * outputs)
    if abs(rows + outputs) > 305:
        pytest.skip("bounds beyond the largest number")
    scaled = project_affine(out * raw, row * A, row * out * lower, row * out * upper)
    assert (scaled.status == Status.SOLVED).all()
    assert torch.equal(scaled.y / out, y)


def test_every_sample_and_every_row_may_have_units_of_its_own():
    raw, A, lower, upper = gaussian(32, 6, 9)
    found = project_affine(raw, A, lower, upper)
    row, out = powers(32, 9, most=480, seed=1), powers(32, 1, most=480, seed=2)
    scaled = project_affine(out * raw, row.unsqueeze(-1) * A, row * (out * lower), row * (out * upper))
    assert (scaled.status == Status.SOLVED).all()
    assert torch.equal(scaled.y / out, found.y)


@pytest.mark.parametrize("factor", [1e-30, 1e-20, 1e20, 1e30])
def test_units_in_float32(factor):
    raw, A, lower, upper = (part.float() for part in gaussian(16, 5, 8))
    y = project_affine(raw, A, lower, upper).y
    moved = project_affine(raw * factor, A, lower * factor, upper * factor)
    assert (moved.status == Status.SOLVED).all()
    assert torch.allclose(moved.y / factor, y, rtol=0, atol=1e-5)
    steep = project_affine(raw, A * factor, lower * factor, upper * factor)
    assert torch.allclose(steep.y, y, rtol=0, atol=1e-5)


def test_gradients_do_not_depend_on_units():
    raw, A, lower, upper = gaussian(4, 5, 7)
    weight = draw(4, 5, seed=9)
    grads = []
    for row, out in ((1.0, 1.0), (2.0**500, 2.0**-490), (2.0**-400, 2.0**500)):
        leaves = [part.requires_grad_() for part in (out * raw, row * A, row * out * lower, row * out * upper)]
        moved = project(*leaves)
        found = torch.autograd.grad((moved * weight).sum(), leaves)
        grads.append([found[0], found[1] * row / out, found[2] * row, found[3] * row])
    for other in grads[1:]:
        for one, two in zip(grads[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spread", [3.0, 3.5])
def test_outputs_of_mixed_size_are_solved(seed, spread, backend):
    """Outputs of 10^-spread ... 10^spread: the rows see them as columns of these sizes, up to cond 1e7."""
    pytest.importorskip("scipy")
    size = torch.logspace(-spread, spread, 6, dtype=F64)
    raw, A, lower, upper = gaussian(16, 6, 9, seed=10 * seed)
    raw, A = raw * size, A / size
    found = project_affine(raw, A, lower, upper, backend=backend)
    assert (found.status == Status.SOLVED).all()
    norm = A.norm(dim=-1)
    value = product(A, found.y)
    missed = torch.maximum(value - upper, lower - value) / norm
    assert missed.max() <= 1e-11 * raw.abs().max()
    for i in range(0, 16, 5):
        expected = nearest_point(raw[i], A[i], lower[i], upper[i])
        distance, best = (found.y[i] - raw[i]).norm(), (expected - raw[i]).norm()
        assert distance <= best * (1 + 1e-9) + 1e-11 * raw[i].norm()


@pytest.mark.parametrize("angle", [1e-6, 1e-7, 1e-8, 1e-10, 1e-12])
def test_nearly_antiparallel_rows_are_not_called_empty(angle):
    A = torch.tensor([[1.0, 0.0], [-1.0, -angle]], dtype=F64)
    found = project_affine(torch.zeros(1, 2, dtype=F64), A, upper=torch.tensor([0.0, -angle], dtype=F64))
    assert found.status.item() == Status.SOLVED
    assert torch.allclose(found.y, torch.tensor([[0.0, 1.0]], dtype=F64), rtol=0, atol=1e-15 / angle)


@pytest.mark.parametrize("seed", range(4))
def test_a_wedge_of_nearly_antiparallel_rows_is_not_called_empty(seed):
    A = draw(64, 1, 5, seed=seed)
    angle = 10.0 ** -torch.linspace(3, 9, 64, dtype=F64).view(-1, 1, 1)
    A = torch.cat([A, -A + angle * draw(64, 1, 5, seed=seed + 10)], 1)
    center = draw(64, 5, seed=seed + 20)
    found = project_affine(center + draw(64, 5, seed=seed + 30), A, upper=product(A, center))
    assert (found.status == Status.SOLVED).all()


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_duplicates_of_unequal_scale_are_solved(backend):
    raw, A, lower, upper = gaussian(64, 5, 7)
    factor = 10.0 ** draw(64, 7, seed=8)
    A = torch.cat([A, factor.unsqueeze(-1) * A, -A / 3], 1)
    lower, upper = torch.cat([lower, factor * lower, -upper / 3], 1), torch.cat([upper, factor * upper, -lower / 3], 1)
    found = project_affine(raw, A, lower, upper, backend=backend)
    assert (found.status == Status.SOLVED).all()


def conflict_of(raw, A, lower, upper):
    with pytest.raises(InfeasibleError) as caught:
        project(raw, A, lower, upper)
    return caught.value


def test_rows_of_unequal_scale_are_all_named():
    A = torch.tensor([[1.0, 0.0], [0.0, 1e7], [-1.0, -1.0]], dtype=F64)
    upper = torch.tensor([0.0, 0.0, -1.0], dtype=F64)
    assert conflict_of(torch.zeros(1, 2, dtype=F64), A, None, upper).rows == [[0, 1, 2]]


@pytest.mark.parametrize("seed", range(3))
def test_the_named_rows_alone_contradict_each_other(seed):
    """Farkas by a linear program on the named rows, scaled to length one, for random sets of unequal units."""
    pytest.importorskip("scipy")
    A, middle = draw(24, 12, 4, seed=seed), 2 * draw(24, 12, seed=seed + 1)
    lower, upper = middle, middle + 0.1
    lower[:, 1::3], upper[:, 2::3] = -torch.inf, torch.inf
    A, lower, upper = (torch.cat([part, part.roll(1, 1)], 1) for part in (A, lower, upper))
    row = powers(24, 24, most=60, seed=seed + 2)
    error = conflict_of(draw(24, 4, seed=seed + 3), row.unsqueeze(-1) * A, row * lower, row * upper)
    assert error.samples
    for sample, rows in zip(error.samples, error.rows, strict=True):
        assert contradict(A[sample, rows], lower[sample, rows], upper[sample, rows])


def test_contradictions_by_little_are_found():
    A = torch.tensor([[1.0, 2.0], [3.0, 6.0], [1.0, 0.0]], dtype=F64) / 7
    for gap in (1.0, 1e-3, 1e-8):
        lower = torch.tensor([-torch.inf, 3 * (1 + gap), 0.0], dtype=F64)
        upper = torch.tensor([1.0, torch.inf, 5.0], dtype=F64)
        assert conflict_of(torch.zeros(1, 2, dtype=F64), A, lower, upper).rows == [[0, 1]]
