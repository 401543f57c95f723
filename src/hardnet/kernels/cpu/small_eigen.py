"""Eigenvalues and singular values of small matrices on a CPU, one sample at a time, by Jacobi rotations.

For orders below ten a call to the linear algebra library costs more than the rotations.
"""

from __future__ import annotations

import math

from hardnet.kernels.cpu.compiling import Tile, bare

SWEEPS = 40
"""Maximum number of sweeps over all pairs: convergence is quadratic and takes three to six."""
EPS = 2.0**-52


@bare
def rotation(p: float, q: float, off: float) -> tuple[float, float]:
    """Cosine and sine of the smaller angle that makes ``[p off; off q]`` diagonal."""
    half = 0.5 * (q - p)
    root = math.sqrt(half * half + off * off)
    tangent = off / (half + root) if half >= 0.0 else off / (half - root)
    cosine = 1.0 / math.sqrt(1.0 + tangent * tangent)
    return cosine, tangent * cosine


@bare
def turn(X: Tile, i: int, j: int, cosine: float, sine: float, columns: int) -> None:
    """Rows i and j of X become ``cosine X_i - sine X_j`` and ``sine X_i + cosine X_j``."""
    for column in range(columns):
        one, other = X[i, column], X[j, column]
        X[i, column] = cosine * one - sine * other
        X[j, column] = sine * one + cosine * other


@bare
def identity(X: Tile, k: int) -> None:
    """Set X to the identity of order k."""
    for i in range(k):
        for j in range(k):
            X[i, j] = 1.0 if i == j else 0.0


@bare
def eigen(X: Tile, V: Tile, values: Tile, k: int) -> None:
    """``X = V' diag(values) V`` for symmetric X of order k, which is overwritten; eigenvectors are the rows of V."""
    identity(V, k)
    for _ in range(SWEEPS):
        off, size = 0.0, 0.0
        for i in range(k):
            size += X[i, i] * X[i, i]
            for j in range(i):
                off += X[i, j] * X[i, j]
        if not off > EPS * EPS * size:  # also for NaN
            break
        for i in range(k):
            for j in range(i):
                if X[i, j] != 0.0:
                    cosine, sine = rotation(X[j, j], X[i, i], X[i, j])
                    turn(X, j, i, cosine, sine, k)
                    for row in range(k):
                        one, other = X[row, j], X[row, i]
                        X[row, j] = cosine * one - sine * other
                        X[row, i] = sine * one + cosine * other
                    turn(V, j, i, cosine, sine, k)
    for i in range(k):
        values[i] = X[i, i]


@bare
def orthogonalize(M: Tile, V: Tile, sizes: Tile, t: int) -> None:
    """``M = V' G`` with orthogonal rows G in place of the first t rows of M; their norms are the singular values.

    One-sided Jacobi: pairs of rows are rotated until all are orthogonal, which keeps small singular values accurate.
    """
    n, turned = M.shape[1], t > 1
    identity(V, t)
    for _ in range(SWEEPS):
        if not turned:
            break
        turned = False
        for i in range(t):
            for j in range(i):
                p, q, off = 0.0, 0.0, 0.0
                for column in range(n):
                    p += M[j, column] * M[j, column]
                    q += M[i, column] * M[i, column]
                    off += M[i, column] * M[j, column]
                if abs(off) > EPS * math.sqrt(p * q):
                    turned = True
                    cosine, sine = rotation(p, q, off)
                    turn(M, j, i, cosine, sine, n)
                    turn(V, j, i, cosine, sine, t)
    for i in range(t):
        square = 0.0
        for column in range(n):
            square += M[i, column] * M[i, column]
        sizes[i] = math.sqrt(square)
