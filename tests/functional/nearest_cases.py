"""Small problems with exact answers, and random problems, for the nearest point of few rows."""

import itertools
import math
import random
from fractions import Fraction

import torch

from hardnet.functional.nearest import fixed_program
from hardnet.rows import take_rows


def dot(left, right):
    return sum(x * y for x, y in zip(left, right, strict=True))


def solve_exactly(M, right):
    """The solution of ``M z = r`` in rational numbers, or None if M is singular."""
    rows = [[Fraction(entry) for entry in row] + [Fraction(last)] for row, last in zip(M, right, strict=True)]
    for column in range(len(rows)):
        pivot = next((r for r in range(column, len(rows)) if rows[r][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for r in range(len(rows)):
            if r != column:
                share = rows[r][column] / rows[column][column]
                rows[r] = [x - share * y for x, y in zip(rows[r], rows[column], strict=True)]
    return [row[-1] / row[k] for k, row in enumerate(rows)]


def nearest_exactly(raw, A, lower, upper):
    """The nearest point in rational numbers, by trying every active set and side; None for an empty set."""
    for sides in itertools.product((0, 1, -1), repeat=len(A)):
        J = [i for i, side in enumerate(sides) if side]
        targets = [upper[i] if sides[i] > 0 else lower[i] for i in J]
        if None in targets:
            continue
        right = [dot(A[i], raw) - target for i, target in zip(J, targets, strict=True)]
        dual = solve_exactly([[dot(A[i], A[j]) for j in J] for i in J], right)
        if dual is None or any(value * sides[i] < 0 for i, value in zip(J, dual, strict=True)):
            continue
        y = [start - sum(value * A[i][j] for i, value in zip(J, dual, strict=True)) for j, start in enumerate(raw)]
        at = [dot(row, y) for row in A]
        if all(
            (low is None or low <= value) and (high is None or value <= high)
            for low, value, high in zip(lower, at, upper, strict=True)
        ):
            return y
    return None


def small_integers(seed, count, m, n):
    """Problems of small integers: degenerate vertices, duplicated and opposite rows, equalities, empty sets."""
    source = random.Random(seed)
    for _ in range(count):
        A = [[source.randint(-2, 2) for _ in range(n)] for _ in range(m)]
        if m > 1 and source.random() < 0.3:
            one, other = source.sample(range(m), 2)
            A[one] = [source.choice((-1, 1, 2)) * entry for entry in A[other]]
        lower, upper = [], []
        for _ in range(m):
            low, high = sorted(source.randint(-3, 3) for _ in range(2))
            kind = source.random()
            lower.append(None if kind < 0.3 else low)
            upper.append(None if 0.3 <= kind < 0.6 else low if kind > 0.85 else high)
        yield [source.randint(-6, 6) for _ in range(n)], A, lower, upper


def tensors(cases, dtype=torch.float64):
    """The problems as one batch."""
    fill = lambda values, absent: [absent if value is None else value for value in values]
    columns = [
        [case[0] for case in cases],
        [case[1] for case in cases],
        [fill(case[2], -math.inf) for case in cases],
        [fill(case[3], math.inf) for case in cases],
    ]
    return [torch.tensor(column, dtype=dtype) for column in columns]


def random_problem(seed, samples, m, n, *, far=1.0, dtype=torch.float64, equalities=0.1):
    """(raw, A, lower, upper) around a point that satisfies all rows (to rounding of the dtype if m > n)."""
    source = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=source, dtype=torch.float64)
    uniform = lambda *shape: torch.rand(*shape, generator=source, dtype=torch.float64)
    A, inside = normal(samples, m, n), normal(samples, n)
    middle, kind = torch.einsum("bmn,bn->bm", A, inside), uniform(samples, m)
    lower, upper = middle - uniform(samples, m), middle + uniform(samples, m)
    lower, upper = lower.where(kind > 0.3, -math.inf), upper.where((kind <= 0.3) | (kind > 0.6), math.inf)
    if m <= n:
        upper = upper.where(kind <= 1 - equalities, lower)
    return [part.to(dtype) for part in (inside + 3 * far * normal(samples, n), A, lower, upper)]


def nearest_few(raw, A, lower=None, upper=None, gradient="exact"):
    """Y, dual, status and residual of the fixed program for few rows, for raw ``(B, n)``."""
    return fixed_program(take_rows(raw, A, lower, upper), gradient)
