"""Random polyhedra shared by the tests of the projection: each returns raw, A, lower, upper in float64."""

import torch

from hardnet.rows import in_double, take_rows
from hardnet.solvers.polyhedron.projection import solve
from tests.draws import draw

F64 = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def product(A, y):
    return (A @ y.unsqueeze(-1)).squeeze(-1)


def gaussian(batch, n, m, equalities=0, shared=False, seed=0):
    """Bounds around a feasible center, raw three standard deviations away."""
    A = draw(m, n, seed=seed) if shared else draw(batch, m, n, seed=seed)
    center = draw(batch, n, seed=seed + 1)
    middle = product(A, center)
    lower = middle - draw(batch, m, seed=seed + 2).abs()
    upper = middle + draw(batch, m, seed=seed + 3).abs()
    lower[:, :equalities] = upper[:, :equalities] = middle[:, :equalities]
    return center + 3 * draw(batch, n, seed=seed + 4), A, lower, upper


def duplicated(batch=64):
    """Thirty rows of ten outputs: three equalities given twice, seven other rows given twice."""
    raw, A, lower, upper = gaussian(batch, 10, 20, equalities=3, seed=10)
    return raw, *(torch.cat([part, part[:, :10]], 1) for part in (A, lower, upper))


def half_open(batch=64):
    """A third of the bounds are infinite on each side."""
    raw, A, lower, upper = gaussian(batch, 20, 60, seed=20)
    absent = torch.rand(2, *lower.shape, generator=generator(21)) < 0.33
    return raw, A, lower.masked_fill(absent[0], -torch.inf), upper.masked_fill(absent[1], torch.inf)


def cone_apex(batch=64):
    """Forty half-spaces through one point of five dimensions."""
    A, apex = draw(batch, 40, 5, seed=30), draw(batch, 5, seed=31)
    upper = product(A, apex)
    return apex + 3 * draw(batch, 5, seed=32), A, torch.full_like(upper, -torch.inf), upper


def thin(batch=64):
    """Forty slabs of width 2e-9 through one point."""
    raw, A, _, upper = cone_apex(batch)
    return raw, A, upper - 1e-9, upper + 1e-9


def nearly_parallel(batch=64, angle=1e-6):
    """Eight rows within `angle` of each other among six others."""
    A = torch.cat([draw(batch, 1, 6, seed=40) + angle * draw(batch, 8, 6, seed=41), draw(batch, 6, 6, seed=42)], 1)
    center = draw(batch, 6, seed=43)
    width = draw(batch, 14, seed=44).abs()
    middle = product(A, center)
    return center + 3 * draw(batch, 6, seed=45), A, middle - width, middle + width


def integers(batch=256):
    """Small integers: ties, zero rows, parallel rows and exact degeneracy everywhere, with a feasible point."""
    g = generator(50)
    A = torch.randint(-2, 3, (batch, 12, 4), generator=g).to(F64)
    middle = product(A, torch.randint(-2, 3, (batch, 4), generator=g).to(F64))
    below, above = torch.randint(0, 2, (2, batch, 12), generator=g).to(F64)
    return torch.randint(-5, 6, (batch, 4), generator=g).to(F64), A, middle - below, middle + above


FAMILIES = {
    "one row of one": lambda: gaussian(64, 1, 1),
    "few rows": lambda: gaussian(256, 10, 5),
    "many rows": lambda: gaussian(256, 10, 20),
    "square": lambda: gaussian(32, 50, 50),
    "square 100": lambda: gaussian(8, 100, 100),
    "half equalities": lambda: gaussian(8, 100, 100, equalities=50),
    "wide": lambda: gaussian(16, 100, 50),
    "wide, shared rows": lambda: gaussian(16, 100, 50, shared=True),
    "300 rows": lambda: gaussian(2, 100, 300),
    "only equalities": lambda: gaussian(64, 10, 4, equalities=4),
    "duplicated rows": duplicated,
    "half open": half_open,
    "cone apex": cone_apex,
    "thin": thin,
    "nearly parallel": nearly_parallel,
    "integers": integers,
}


def solved(raw, A, lower, upper, *, look=True, **options):
    """The outcome of the solver for any rows."""
    return solve(in_double(take_rows(raw, A, lower, upper))._replace(look=look), **options)
