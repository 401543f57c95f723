"""The structured polyhedra: of the size asked for, not empty, and empty where rows contradict each other."""

import numpy as np
import pytest
from scipy.optimize import linprog

from benchmarks.structured import FAMILIES, Structured


def found(polyhedron: Structured) -> bool:
    """Whether a linear program with equalities as rows between bounds has a point."""
    A, lower, upper, low, high, _ = (part.numpy() for part in polyhedron)
    units = np.abs(A).max(1)
    A, lower, upper = A / units[:, None], lower / units, upper / units
    above, below = np.isfinite(upper), np.isfinite(lower)
    rows, bounds = np.concatenate([A[above], -A[below]]), np.append(upper[above], -lower[below])
    return linprog(np.zeros(A.shape[1]), rows, bounds, bounds=np.stack([low, high], 1)).status == 0


@pytest.mark.parametrize("name", FAMILIES)
def test_structured_polyhedra_are_what_was_asked_for(name):
    drawn, again = FAMILIES[name](1, 60), FAMILIES[name](1, 60)
    assert all((a == b).all() for a, b in zip(drawn, again, strict=True))
    m, n = drawn.A.shape
    assert 40 <= n <= 80
    assert m <= 2 * n
    assert drawn.raw.shape == (4, n)
    assert bool(drawn.raw.isfinite().all())
    assert found(drawn)
    assert not found(FAMILIES[name](1, 60, contradiction=1e-3))
