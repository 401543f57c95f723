"""Generators of a polyhedral cone: ``{y : A y <= 0, E y = 0} = {rays' beta + lineality' gamma : beta >= 0}``."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardnet.errors import NonFiniteError, UnsupportedSetError, sentence

RELATIVE_ZERO = 1e-10
"""Largest number that counts as zero in float64 once every vector has unit length."""

PAIRS_AT_ONCE = 4096
"""How many pairs of rays are tested for adjacency in one matrix product, to bound memory."""


class Generators(NamedTuple):
    """The rays and lines that span a cone.

    Attributes:
        rays: Unit vectors orthogonal to the lines, ``(r, n)``; used with non-negative coefficients.
        lineality: Orthonormal lines, ``(l, n)``; used with coefficients of any sign.
    """

    rays: Tensor
    lineality: Tensor


def cone_generators(A: Tensor, E: Tensor | None = None, *, limit: int = 10_000) -> Generators:
    """Rays and lines of ``{y : A y <= 0, E y = 0}`` (Minkowski-Weyl).

    Equalities are removed first, by changing to coordinates of null(E). Independent rows need no enumeration: their
    rays are the columns of ``-A⁺`` and their lines span null(A). All other cases use `double_description`.

    Args:
        A: Inequality rows, ``(m, n)``; zero rows are dropped.
        E: Equality rows, ``(p, n)``.
        limit: Largest number of generators to accept; their number can grow exponentially with the number of rows.

    Returns:
        The generators in float64.
    """
    A = _clean_rows("A", A)
    if E is None or E.shape[-2] == 0:
        return _inequality_generators(A, limit)
    basis = _null_space(_clean_rows("E", E))
    inner = _inequality_generators(_clean_rows("A", A @ basis.mT, RELATIVE_ZERO), limit)
    return Generators(inner.rays @ basis, inner.lineality @ basis)


def double_description(A: Tensor, *, limit: int = 10_000) -> Generators:
    """Rays and lines of ``{y : A y <= 0}``, starting from the whole space and adding one row at a time.

    A row that cuts a line turns it into a ray and shears the other generators onto its hyperplane. A row that cuts no
    line keeps the rays on its side and replaces each adjacent pair from opposite sides by a ray on its hyperplane.
    """
    A = _small_cones_first(_clean_rows("A", A))
    m, n = A.shape
    lines, rays = torch.eye(n, dtype=A.dtype), A.new_zeros(0, n)
    tight = torch.zeros(0, m, dtype=torch.bool)
    for row, normal in enumerate(A):
        slope = lines @ normal
        if slope.numel() and slope.abs().max() > RELATIVE_ZERO:
            lines, rays, tight = _cut_line(normal, row, slope, lines, rays, tight)
        else:
            rays, tight = _cut_rays(normal, row, rays, tight)
        if len(rays) + len(lines) > limit:
            raise _too_many(len(rays) + len(lines), limit)
    lines = torch.linalg.qr(lines.mT).Q.mT
    return Generators(_unit(rays - rays @ lines.mT @ lines), lines)


def _inequality_generators(A: Tensor, limit: int) -> Generators:
    """The closed form for independent rows, else the double description."""
    m, n = A.shape
    if m <= n and (m == 0 or torch.linalg.svdvals(A)[-1] > RELATIVE_ZERO):
        if n > limit:
            raise _too_many(n, limit)
        return Generators(_unit(-torch.linalg.pinv(A).mT), _null_space(A))
    return double_description(A, limit=limit)


def _cut_line(
    normal: Tensor, row: int, slope: Tensor, lines: Tensor, rays: Tensor, tight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Turn the line with the steepest slope into a ray; shear every other generator onto the hyperplane."""
    pick = int(slope.abs().argmax())
    line = -slope[pick].sign() * lines[pick]
    steepest = -slope[pick].abs()
    others = torch.arange(len(lines)) != pick
    kept = _unit(lines[others] - (slope[others] / steepest)[:, None] * line)
    sheared = _unit(rays - (rays @ normal / steepest)[:, None] * line)
    own = torch.arange(tight.shape[1])[None] < row  # a line is tight on every row before this one
    tight = tight.clone()
    tight[:, row] = True
    return kept, torch.cat([sheared, line[None]]), torch.cat([tight, own])


def _cut_rays(normal: Tensor, row: int, rays: Tensor, tight: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the rays on the feasible side of the hyperplane and combine the adjacent pairs that it separates."""
    slope = rays @ normal
    above, below = slope > RELATIVE_ZERO, slope < -RELATIVE_ZERO
    tight = tight.clone()
    tight[~above & ~below, row] = True
    first, second = _adjacent_pairs(tight, above.nonzero().flatten(), below.nonzero().flatten())
    joined = _unit(slope[first, None] * rays[second] - slope[second, None] * rays[first])
    shared = tight[first] & tight[second]
    shared[:, row] = True
    return torch.cat([rays[~above], joined]), torch.cat([tight[~above], shared])


def _adjacent_pairs(tight: Tensor, above: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs for which no third ray is tight on all their common tight rows: exactly the pairs that span a face."""
    pairs = torch.cartesian_prod(above, below).reshape(-1, 2)
    loose = (~tight).to(torch.float32).mT
    found = [_span_face(tight, loose, chunk) for chunk in pairs.split(PAIRS_AT_ONCE)]
    pairs = pairs[torch.cat(found)] if found else pairs
    return pairs[:, 0], pairs[:, 1]


def _span_face(tight: Tensor, loose: Tensor, pairs: Tensor) -> Tensor:
    """For each pair, whether its two rays are the only ones tight on all rows where both are."""
    common = (tight[pairs[:, 0]] & tight[pairs[:, 1]]).to(torch.float32)
    return (common @ loose == 0).sum(dim=1) == 2


def _small_cones_first(A: Tensor) -> Tensor:
    """Sparse rows first, then lexicographic: the order that keeps intermediate cones small in practice."""
    rows = A.tolist()
    order = sorted(range(len(rows)), key=lambda i: (sum(entry != 0 for entry in rows[i]), rows[i]))
    return A[order]


def _clean_rows(name: str, A: Tensor, zero: float = 0.0) -> Tensor:
    """The rows longer than `zero`, on the CPU in float64 and scaled to unit length."""
    A = A.detach().to(device="cpu", dtype=torch.float64)
    if not bool(A.isfinite().all()):
        raise NonFiniteError(sentence(name, "finite entries", "NaN or infinity"))
    norm = torch.linalg.vector_norm(A, dim=-1)
    return A[norm > zero] / norm[norm > zero, None]


def _null_space(A: Tensor) -> Tensor:
    """An orthonormal basis of null(A) as rows, ``(n - rank, n)``."""
    if A.shape[0] == 0:
        return torch.eye(A.shape[1], dtype=A.dtype)
    _, values, right = torch.linalg.svd(A, full_matrices=True)
    return right[int((values > RELATIVE_ZERO).sum()) :]


def _unit(vectors: Tensor) -> Tensor:
    """Each row divided by its length."""
    return vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)


def _too_many(count: int, limit: int) -> UnsupportedSetError:
    """The error for an enumeration with too many generators."""
    remedy = "use method 'projection', which needs no generators, or raise the limit"
    return UnsupportedSetError(sentence("A", f"a cone of at most {limit} generators", f"{count} or more", remedy))
