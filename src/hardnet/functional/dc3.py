"""DC3 on affine rows: complete the equalities, correct the inequalities, in the predicted coordinates z.

    y_P = z,  y_O = A_O^-1 (b - A_P z),  lower <= G y <= upper
    becomes  lower - G_O A_O^-1 b <= (G_P - G_O A_O^-1 A_P) z <= upper - G_O A_O^-1 b.

The completion is affine in z, so descending on z and completing once at the end is the published iteration on y,
with the equalities as fresh as one solve leaves them.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from hardnet.functional.completion import Completion, Partition, complete, factorize_completion, matvec, reduced_rows
from hardnet.functional.correction import Descent, correct_affine


class Reduced(NamedTuple):
    """What depends on the matrices alone, so that it is kept where they are constant.

    Attributes:
        G: Inequality rows in the coordinates that descend, ``(*batch, q, n - e)``.
        completion: The factor of the equalities; None without completion.
        shift: ``G_O A_O^-1``: what one unit of b takes off the bounds of G; None without completion.
        gram: ``G G'`` where it is no larger than G, else None.
        step: ``1 / (2 sigma_max(G)^2)`` where the caller asked for it, ``(*batch, 1)``; else None.
    """

    G: Tensor
    completion: Completion | None
    shift: Tensor | None
    gram: Tensor | None
    step: Tensor | None = None


def reduce_rows(A: Tensor | None, G: Tensor, partition: Partition | None) -> Reduced:
    """Eliminate the completed coordinates from the inequality rows G; without a partition nothing is eliminated.

    Args:
        A: Equality rows, ``(*batch, e, n)``; None without completion.
        G: Inequality rows, ``(*batch, q, n)``; all rows without completion.
        partition: Which coordinates are predicted and completed; None without completion.
    """
    if A is None or partition is None:
        return _with_gram(G, None, None)
    completion = factorize_completion(A, partition)
    shift = G.index_select(-1, partition.completed) @ completion.inverse
    return _with_gram(reduced_rows(G, completion, partition), completion, shift)


def _with_gram(G: Tensor, completion: Completion | None, shift: Tensor | None) -> Reduced:
    """Add what the descent on G needs."""
    gram = G @ G.mT if G.shape[-2] <= G.shape[-1] else None
    return Reduced(G, completion, shift, gram)


def complete_and_correct(
    z: Tensor,
    b: Tensor | None,
    lower: Tensor | None,
    upper: Tensor | None,
    reduced: Reduced,
    partition: Partition | None,
    descent: Descent,
) -> Tensor:
    """Descend from z on the violated inequalities, and complete.

    Args:
        z: Predicted coordinates, ``(*batch, n - e)``; all of them without completion.
        b: Right-hand sides of the equalities, ``(e,)`` or ``(*batch, e)``; None without completion.
        lower: Lower bounds of the inequality rows, or None.
        upper: Upper bounds of the inequality rows, or None.
        reduced: `reduce_rows` of the matrices.
        partition: Which coordinates are which; None without completion.
        descent: Step size, momentum and number of steps.

    Returns:
        y ``(*batch, n)``.
    """
    if b is None or partition is None or reduced.completion is None or reduced.shift is None:
        return correct_affine(z, reduced.G, lower, upper, descent, reduced.gram)
    taken = matvec(reduced.shift, b)
    lower = None if lower is None else lower - taken
    upper = None if upper is None else upper - taken
    z = correct_affine(z, reduced.G, lower, upper, descent, reduced.gram)
    return complete(z, b, reduced.completion, partition)
