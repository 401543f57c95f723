"""The factor of working rows over the free coordinates, ``A_WF' = Q'R``, and what moves rows and columns through it.

Rows of Q are orthonormal, kept so by Gram-Schmidt done twice where digits cancel and by rotations; Q has a column for
every coordinate, and at those that are held it says how the multipliers move there. R is upper triangular.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hardnet.kernels.cpu.compiling import Tile, bare, bare_summed
from hardnet.kernels.limits import POLYHEDRON

Marks = Any  # npt.NDArray[np.int64], whose entries are no int to a type checker

EPS = np.finfo(np.float64).eps
DEPENDENT = POLYHEDRON.dependent
FREE, ABSENT = 0, -1


@bare_summed
def product(left: Tile, right: Tile) -> float:
    """``l'r``."""
    total = 0.0
    for j in range(left.shape[0]):
        total += left[j] * right[j]
    return total


@bare_summed
def largest(vector: Tile) -> float:
    """``max |v_j|``, by four comparisons at once."""
    most, n = 0.0, vector.shape[0]
    second, third, fourth = 0.0, 0.0, 0.0
    for j in range(0, n - 3, 4):
        most, second = max(most, abs(vector[j])), max(second, abs(vector[j + 1]))
        third, fourth = max(third, abs(vector[j + 2])), max(fourth, abs(vector[j + 3]))
    for j in range(n - n % 4, n):
        most = max(most, abs(vector[j]))
    return max(max(most, second), max(third, fourth))


@bare
def copy(source: Tile, target: Tile) -> None:
    """``target = source``."""
    for j in range(target.shape[0]):
        target[j] = source[j]


@bare
def add(weight: float, source: Tile, target: Tile) -> None:
    """``target += weight source``."""
    for j in range(target.shape[0]):
        target[j] += weight * source[j]


@bare
def rotate(first: Tile, second: Tile, cosine: float, sine: float) -> None:
    """Rotate two vectors in their plane."""
    for j in range(first.shape[0]):
        left, right = first[j], second[j]
        first[j] = cosine * left + sine * right
        second[j] = cosine * right - sine * left


@bare
def orthogonalize(Q: Tile, k: int, held: Marks, z: Tile, part: Tile, c: Tile) -> float:
    """``z -= Q'c`` with ``c = Q_F z_F``, twice where digits cancel; returns ``|z_F|``. `part` is scratch."""
    before = free_part(z, held, part)
    for i in range(k):
        c[i] = product(Q[i], part)
        add(-c[i], Q[i], z)
    return orthogonalize_again(Q, k, held, z, part, c, before)


@bare
def orthogonalize_again(Q: Tile, k: int, held: Marks, z: Tile, part: Tile, c: Tile, before: float) -> float:
    """The second time, if the length was `before`; returns the length."""
    length = free_part(z, held, part)
    if length < 0.5 * before:
        for i in range(k):
            again = product(Q[i], part)
            c[i] += again
            add(-again, Q[i], z)
        length = free_part(z, held, part)
    return length


@bare_summed
def free_part(z: Tile, held: Marks, part: Tile) -> float:
    """Write ``z_F``, zero elsewhere; returns its length."""
    total = 0.0
    for j in range(z.shape[0]):
        value = z[j] if held[j] == FREE else 0.0
        part[j] = value
        total += value * value
    return np.sqrt(total)


@bare
def back_substitute(R: Tile, k: int, c: Tile, r: Tile) -> None:
    """``R r = c`` for upper triangular R."""
    for i in range(k - 1, -1, -1):
        r[i] = (c[i] - product(R[i, i + 1 : k], r[i + 1 : k])) / R[i, i]


@bare
def forward_substitute(R: Tile, k: int, c: Tile, r: Tile) -> None:
    """``R'r = c``."""
    for i in range(k):
        r[i] = c[i]
    for i in range(k):
        r[i] /= R[i, i]
        add(-r[i], R[i, i + 1 : k], r[i + 1 : k])


@bare
def remove_row(Q: Tile, R: Tile, work: Marks, k: int, place: int) -> None:
    """Take the row at this place out of the working set."""
    for i in range(place, k - 1):
        work[i] = work[i + 1]
        for row in range(i + 2):
            R[row, i] = R[row, i + 1]
    for i in range(place, k - 1):
        length = np.hypot(R[i, i], R[i + 1, i])
        if length > 0.0:
            cosine, sine = R[i, i] / length, R[i + 1, i] / length
            rotate(R[i, i : k - 1], R[i + 1, i : k - 1], cosine, sine)
            rotate(Q[i], Q[i + 1], cosine, sine)
            R[i + 1, i] = 0.0


@bare
def hold_coordinate(Q: Tile, R: Tile, k: int, z: Tile, length: float, j: int, spare: Tile) -> None:
    """Take coordinate j out of the free ones; z is what `orthogonalize` leaves of ``e_j``, of this length."""
    for i in range(k):
        spare[i] = 0.0
    for column in range(z.shape[0]):
        z[column] /= length
    for i in range(k - 1, -1, -1):
        if Q[i, j] != 0.0:
            total = np.hypot(z[j], Q[i, j])
            cosine, sine = z[j] / total, Q[i, j] / total
            rotate(z, Q[i], cosine, sine)
            rotate(spare[i:k], R[i, i:k], cosine, sine)
    forward_substitute(R, k, spare, spare)
    for i in range(k):
        Q[i, j] = spare[i]


@bare
def free_coordinate(Q: Tile, R: Tile, A: Tile, work: Marks, k: int, j: int, z: Tile, spare: Tile) -> None:
    """Put coordinate j among the free ones: the working rows have one more column."""
    z[:] = 0.0
    z[j] = 1.0
    for i in range(k):
        spare[i], Q[i, j] = A[work[i], j], 0.0
    for i in range(k):
        if spare[i] != 0.0:
            total = np.hypot(R[i, i], spare[i])
            cosine, sine = R[i, i] / total, spare[i] / total
            rotate(R[i, i:k], spare[i:k], cosine, sine)
            rotate(Q[i], z, cosine, sine)


@bare
def append_row(Q: Tile, R: Tile, work: Marks, k: int, i: int, z: Tile, length: float, c: Tile) -> None:
    """Put row i into the working set; z and c are what `orthogonalize` leaves of it."""
    for j in range(z.shape[0]):
        Q[k, j] = z[j] / length
    for row in range(k):
        R[row, k], R[k, row] = c[row], 0.0
    R[k, k], work[k] = length, i


@bare
def take_row(
    i: int, A: Tile, held: Marks, work: Marks, k: int, Q: Tile, R: Tile, z: Tile, part: Tile, c: Tile
) -> int:  # fmt: skip
    """`append_row` from the row itself, if it does not depend on the others; returns how many rows there are then."""
    for j in range(z.shape[0]):
        z[j] = A[i, j]
    whole = free_part(z, held, part)
    length = orthogonalize(Q, k, held, z, part, c)
    if length > DEPENDENT * whole:
        append_row(Q, R, work, k, i, z, length, c)
        return k + 1
    return k
