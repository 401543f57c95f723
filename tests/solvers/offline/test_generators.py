"""Generators of cones: known cones, the shortcut against the enumeration, and membership both ways."""

import itertools

import pytest
import torch

from hardnet.errors import NonFiniteError, UnsupportedSetError
from hardnet.solvers.offline import cone_generators, double_description

F64 = torch.float64
ROOT = 0.5**0.5


def same_vectors(found, expected, signed=True):
    """Whether two sets of unit vectors agree in any order (and, for lines, up to sign)."""
    expected = torch.as_tensor(expected, dtype=F64).reshape(-1, found.shape[-1])
    match = found @ expected.mT
    match = match if signed else match.abs()
    return found.shape == expected.shape and bool((match.max(dim=0).values > 1 - 1e-12).all())


def cube_cone(n):
    """The cone over an n-cube in one more dimension: |y_i| <= y_last."""
    corner = torch.eye(n, dtype=F64)
    last = -torch.ones(n, 1, dtype=F64)
    return torch.cat([torch.cat([corner, last], 1), torch.cat([-corner, last], 1)])


def cross_polytope_cone(n):
    """The cone over an n-cross-polytope: sum of |y_i| <= y_last."""
    signs = torch.tensor(list(itertools.product([1.0, -1.0], repeat=n)), dtype=F64)
    return torch.cat([signs, -torch.ones(len(signs), 1, dtype=F64)], 1)


@pytest.mark.parametrize("generate", [cone_generators, double_description])
def test_wedge_has_two_rays_and_no_line(generate):
    rays, lines = generate(torch.tensor([[-1.0, 1.0], [-1.0, -1.0]], dtype=F64))
    assert same_vectors(rays, [[ROOT, ROOT], [ROOT, -ROOT]])
    assert lines.shape == (0, 2)


@pytest.mark.parametrize("generate", [cone_generators, double_description])
def test_half_plane_has_one_ray_and_one_line(generate):
    rays, lines = generate(torch.tensor([[1.0, 0.0]], dtype=F64))
    assert same_vectors(rays, [[-1.0, 0.0]])
    assert same_vectors(lines, [[0.0, 1.0]], signed=False)


@pytest.mark.parametrize("generate", [cone_generators, double_description])
def test_monotone_cone_has_two_rays_and_the_constant_line(generate):
    rays, lines = generate(torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]], dtype=F64))
    assert rays.shape == (2, 3)
    assert same_vectors(lines, [[3**-0.5] * 3], signed=False)


@pytest.mark.parametrize(("A", "count"), [(cube_cone(4), 16), (cross_polytope_cone(4), 8), (cube_cone(6), 64)])
def test_cones_over_polytopes_have_one_ray_per_vertex(A, count):
    rays, lines = cone_generators(A)
    assert rays.shape == (count, A.shape[1])
    assert lines.shape[0] == 0
    assert (A @ rays.mT).max() < 1e-12


def test_disjoint_sums_on_an_image_need_no_enumeration():
    A = torch.zeros(16, 784, dtype=F64)
    for row in range(16):
        A[row, row * 49 : (row + 1) * 49] = (-1.0) ** torch.arange(49)
    rays, lines = cone_generators(A)
    assert rays.shape == (16, 784)
    assert lines.shape == (768, 784)


def test_shortcut_and_enumeration_agree_on_independent_rows():
    A = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=F64)
    short, full = cone_generators(A), double_description(A)
    assert same_vectors(short.rays, full.rays)
    assert torch.allclose(short.lineality.mT @ short.lineality, full.lineality.mT @ full.lineality, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_every_generator_is_in_the_cone_and_orthogonal_to_the_lines(seed):
    draw = torch.Generator().manual_seed(seed)
    A = torch.randn(9, 4, generator=draw, dtype=F64) @ torch.randn(4, 6, generator=draw, dtype=F64)
    A = A * A[:, :1].sign()  # the first coordinate's negative axis is then inside, so the cone is not a subspace
    rays, lines = cone_generators(A)
    assert len(rays) > 4
    assert (A @ rays.mT).max() < 1e-10
    assert (A @ lines.mT).abs().max() < 1e-10
    assert lines.shape == (2, 6)
    assert (rays @ lines.mT).abs().max() < 1e-10


@pytest.mark.parametrize("seed", range(3))
def test_every_point_of_the_cone_is_generated(seed):
    """By polarity: a face of the generated cone that cut the true one would be a row that A does not imply."""
    draw = torch.Generator().manual_seed(seed)
    A = torch.cat([torch.randn(8, 3, generator=draw, dtype=F64), -torch.ones(8, 1, dtype=F64)], 1)
    rays, _ = cone_generators(A)
    faces, _ = cone_generators(rays)  # the polar cone: its rays are the irredundant rows of A
    rows = A / torch.linalg.vector_norm(A, dim=1, keepdim=True)
    assert ((faces @ rows.mT).max(dim=1).values > 1 - 1e-10).all()


def test_equalities_become_coordinates_of_their_null_space():
    A = -torch.eye(3, dtype=F64)
    E = torch.tensor([[1.0, -1.0, 0.0]], dtype=F64)
    rays, lines = cone_generators(A, E)
    assert same_vectors(rays, [[ROOT, ROOT, 0.0], [0.0, 0.0, 1.0]])
    assert lines.shape[0] == 0


def test_zero_rows_and_repeated_rows_say_nothing():
    A = torch.tensor([[1.0, 0.0], [0.0, 0.0], [2.0, 0.0]], dtype=F64)
    rays, lines = cone_generators(A)
    assert same_vectors(rays, [[-1.0, 0.0]])
    assert same_vectors(lines, [[0.0, 1.0]], signed=False)


def test_a_cone_of_the_origin_alone_has_no_generator():
    rays, lines = cone_generators(torch.cat([torch.eye(2), -torch.eye(2)]).to(F64))
    assert rays.shape == lines.shape == (0, 2)


def test_too_many_generators_are_counted_and_refused():
    with pytest.raises(UnsupportedSetError, match=r"at most 20 generators, got 32 or more; use method 'projection'"):
        cone_generators(cube_cone(5), limit=20)
    with pytest.raises(UnsupportedSetError, match="at most 3 generators, got 4 or more"):
        cone_generators(torch.ones(1, 4, dtype=F64), limit=3)


def test_a_matrix_that_is_not_finite_is_refused():
    with pytest.raises(NonFiniteError, match="A: expected finite entries"):
        cone_generators(torch.tensor([[torch.nan, 1.0]], dtype=F64))
