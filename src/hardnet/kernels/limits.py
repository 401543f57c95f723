"""Limits on the rows and sizes that kernels take, and the constants that a kernel shares with its plain reference."""

from __future__ import annotations

from typing import NamedTuple

MOST_ROWS, MOST_NUMBERS = 8, 256
"""CPU: the most rows, and numbers of A per sample, for which one compiled pass beats torch's factorizations; up to the
same limits Gram-Schmidt in plain torch beats them too."""
MOST_SHARED_NUMBERS = 64
"""CPU: the most numbers of a shared A for which one compiled pass is faster than torch's matrix products."""
MOST_ELIMINATED = 32
"""The most rows of a symmetric system that compiled code solves by elimination."""
MOST_SYSTEM_COLUMNS = 64
"""GPU: the most columns, of such a matrix and its right-hand sides together, that one program holds."""
MOST_STEP_ROWS = 128
"""CPU: the most rows, and the most outputs of a Hessian, for which the nonlinear solver computes its steps sample by
sample."""
MOST_CONIC_NUMBERS, MOST_CONIC_ORDER = 512, 8
"""CPU: the largest outputs times rows of a curved set, and order of its matrices, for which each sample is solved on
its own."""
ROUNDINGS = 16
"""Roundings of raw's dtype by which a solved sample may miss a row, in parts of its terms, as certificates allow."""
MOST_FUSED_ROWS, MOST_FUSED_COLUMNS = 64, 256
"""GPU: the largest matrix of one sample for the closed form."""
MOST_FUSED_ROWS_IN_HALF = 8
"""GPU: the most rows in half types. More rows need blocks, whose float64 products Triton cannot feed from 16-bit
loads."""
MOST_SHARED_ROWS = 8
"""GPU: the most rows of an A that all samples share; with more rows the kernels that read its factor are faster."""
MOST_ROWS_OF_COMPILER = 2
"""GPU: under torch.compile, up to this many rows stay plain formulas, which it fuses with the surrounding code."""
MOST_NUMBERS_OF_A_THREAD, MOST_COLUMNS_OF_A_THREAD = 64, 16
"""GPU: the most numbers of A and the most columns that one thread holds for the nearest point of few rows."""
MOST_BOX_COLUMNS = 4096
"""GPU: the most coordinates of a box beside a row that one program holds."""
MOST_BOX_ROWS, MOST_BOXED_NUMBERS = 32, 1 << 14
"""GPU: the most rows beside a box, and numbers of them padded to powers of two, that one program holds."""
MOST_ON_CHIP = 32
"""GPU: the most rows and outputs of a general projection that one program holds."""
MOST_ACTIVE_COLUMNS = 1024
"""GPU: the most outputs of a general projection whose rows stay in memory."""
STRICT = 1e-11
"""Fraction of the sample's size above which a multiplier makes a row beside a box strictly active."""

UNRELATED = 1e-11
"""Pivoting: the squared distance of a unit row from the span of the active rows below which it counts as dependent."""
VANISHING = 1e-13
"""Pivoting: slope up to which a multiplier counts as not shrinking."""
CLOSE = 1e4
"""Fixed program: a raw that violates no row by more than this many slacks is near the set. There a slack is a
noticeable part of the distance to move, so rows count as violated beyond the rounding that a certificate allows."""
MOST_ROWS_TO_AN_OUTPUT = 4
"""CPU: the most rows per output of a general projection for which compiled pivoting is faster than DAQP."""
CORRECTIONS = 3
"""CPU: the most corrections of a projection whose active rows miss their bounds by more than rounding."""

ROUNDS, PATIENCE = 12, 4
"""Nonlinear solver: the most guesses of the active rows per step, and how many may pass without a better one."""
NOISE = 1e-12
"""Nonlinear solver: a row counts as holding if it misses its bound by at most this fraction of its numbers' size."""
INDEPENDENT = 1e-13
"""Nonlinear solver: the least pivot of unit rows for which elimination is trusted."""


DEPENDENT = 1e-13
"""Regularization, relative to unit rows, that keeps dependent active rows solvable in the derivative: they share the
multiplier q."""


class Tolerances(NamedTuple):
    """Tolerances for any rows in units of size one, as fractions of the size of a row or of a sample.

    Attributes:
        inside: For a row to hold at raw.
        feasible: For a row to hold while rows are exchanged.
        solved: For the residual.
        strict: For a multiplier to be more than rounding.
        certain: For a row to need no more steps.
        allowed: For a row to pass a certificate, in the rounding of the caller's dtype.
    """

    inside: float
    feasible: float
    solved: float
    strict: float
    certain: float
    allowed: float


class PolyhedronTolerances(NamedTuple):
    """The tolerances of the nearest point of a polyhedron beside a box, for rows of a length between 1 and 2.

    Attributes:
        dependent: The part of a row outside the span of the working rows, relative to its length over the free
            outputs, below which it depends on these.
        beyond: How many times as far away as y and raw a point would have to lie that a proof of emptiness overlooks.
        narrow: The same distance below which a row nearly depends on the others.
        room: Roundings of a row that nearly depends on others by which it may be missed.
        touching: The same distance up to which a row that touches y takes part in the multipliers of the others.
        rate: The rate, relative to the largest, below which a multiplier counts as not shrinking.
        violated: Roundings of float64 by which a row is violated and has to enter the working set.
        verified: Roundings of the answer's dtype up to which a row holds: rounding y adds half of one to these, and a
            certificate allows 16.
        certain: The residual of the optimality conditions up to which a sample counts as solved.
        strict: The fraction of the sample's size above which a multiplier makes its row strictly active.
        straightened: The rounding by which straightened rows are said to contradict others.
        newton_steps: The most Newton steps that look for a working set to start from.
        close: The squared distance of a row from the others below which it is not left to their Gram matrix.
        near: How near a row outside the working set may be to its bound there, relative to y.
        gram: The most rows and outputs whose Gram matrix is made.
    """

    dependent: float = 1e-14
    beyond: float = 1e3
    narrow: float = 1e-6
    room: float = 2.0
    touching: float = 1e-12
    rate: float = 1e-12
    violated: float = 4.0
    verified: float = 11.0
    certain: float = 1e-12
    strict: float = 1e-11
    straightened: float = 1e-9
    newton_steps: int = 12
    close: float = 1e-8
    near: float = 1e-10
    gram: int = 640


POLYHEDRON = PolyhedronTolerances()


class CurvedTolerances(NamedTuple):
    """What the texts of the projection onto curved sets share: plain torch (`solvers.conic`) and numba.

    Attributes:
        first_penalty: The penalty of an augmented Lagrangian that starts.
        largest_penalty: Slopes are known to about as many roundings: below this accuracy Newton alone goes on.
        target: Newton stops at this residual, or where a step no longer halves it.
        repairs: Steps inwards at most.
        trials: Points that one line search may try.
        floor: Below this eigenvalue of the projection's derivative a direction counts as tight.
        inside: Roundings of raw's dtype by which a raw output that counts as inside may miss a row.
        feasible: Part of a row's terms by which a solved sample may miss it where the dtype allows more.
        far_away: From so many sizes of y on, a projection is found once more in the unit of y.
        passes: How often, since each pass gains about twelve digits of distance.
        halfway: How many sizes of the set the point on the way lies from y.
        tight: Beyond this distance from its cone, in the unit of y and of the multipliers, a row counts as tight in the
            derivative.
        faint: Multipliers are scaled up to size one from here: below it their own rounding would count as tight.
    """

    first_penalty: float = 10.0
    largest_penalty: float = 1e9
    target: float = 2.0**-52
    repairs: int = 3
    trials: int = 12
    floor: float = 1e-11
    inside: float = 4.0
    feasible: float = 1e-12
    far_away: float = 16.0
    passes: int = 3
    halfway: float = 128.0
    tight: float = 1e-10
    faint: float = 1e-3


CURVED = CurvedTolerances()


def padded(size: int) -> int:
    """The smallest power of two that holds a size, and at least 16, the size of a tile of the matrix units."""
    return max(16, 1 << (size - 1).bit_length())


FIRST_SPREAD, GROWTH, ROUGH, SWEEPS = 8.0, 4.0, 0.3, 2
"""Entropic nearest points: the spread of scores to start from, by how much they grow once the rows hold to this part of
the largest output in them, and Sinkhorn sweeps before the first step."""
KEEP_BASIS, LEAST_PIVOT, LAST_STEP, LEAST_SCORE = 16.0, 1e-9, 2e-8, -690.0
"""By how much another output may exceed the one that stands for a row, the least entry to eliminate with where rows
have largest entry one, the Newton step after which nothing but rounding is left, and the logarithm below which an
output counts as zero."""
