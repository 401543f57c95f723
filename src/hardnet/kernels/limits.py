"""What kernels take: every limit on rows and sizes, once; and numbers that a kernel shares with its plain reference.

Called by `hardnet.solvers.polyhedron.box_rows`, `hardnet.solvers.nonlinear.guesses` and others.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_ROWS, MOST_NUMBERS = 8, 256
"""CPU: the most rows, and numbers of A per sample, for which one pass beats the library's factorizations; also the
limit up to which Gram-Schmidt in plain torch does."""
MOST_SHARED_NUMBERS = 64
"""CPU: numbers of a shared A up to which one pass without the library's products is faster."""
MOST_ELIMINATED = 32
"""The most rows of a symmetric matrix that compiled code eliminates."""
MOST_SYSTEM_COLUMNS = 64
"""GPU: the most columns of such a matrix and its right-hand sides together, which one program holds."""
MOST_STEP_ROWS = 128
"""CPU: the most rows of the nonlinear solver, and outputs of its Hessian, whose steps are found sample by sample."""
MOST_CONIC_NUMBERS, MOST_CONIC_ORDER = 512, 8
"""CPU: outputs times rows of a curved set, and the order of its matrices, up to which samples are solved one by one."""
INSIDE, ROUNDINGS, FEASIBLE = 4, 16, 1e-12
"""Curved sets: roundings of raw's dtype by which a raw output that counts as inside may miss a row, and by which a
solved sample may, relative to the row's terms, as certificates allow; and the second where the dtype allows more."""
FAR_AWAY, PASSES, HALFWAY = 16.0, 3, 128.0
"""From so many sizes of y on, a projection is found once more in the unit of y; how often, since each pass gains about
twelve digits of distance; and how many sizes of the set the point on the way lies from y."""
TIGHT, FAINT = 1e-10, 1e-3
"""Beyond this distance from its cone, in the unit of y and of the multipliers, a row counts as tight in the derivative;
and multipliers are scaled up to size one from here: below it their own rounding would count as tight."""
MOST_FUSED_ROWS, MOST_FUSED_COLUMNS = 64, 256
"""GPU: the largest matrix of one sample for the closed form."""
MOST_FUSED_ROWS_IN_HALF = 8
"""GPU: the same in half types: Triton feeds no float64 product from 16-bit loads, which blocks of rows need."""
MOST_SHARED_ROWS = 8
"""GPU: the same for an A that all samples share; with more rows the kernels that read its factor are faster."""
MOST_ROWS_OF_COMPILER = 2
"""GPU: under torch.compile so few rows stay plain formulas, which it fuses with what stands around them."""
MOST_NUMBERS_OF_A_THREAD, MOST_COLUMNS_OF_A_THREAD = 64, 16
"""GPU: the most numbers of A and the most columns that one thread holds for the nearest point of few rows."""
MOST_BOX_COLUMNS = 4096
"""GPU: the most coordinates of a box beside a row that one program holds."""
MOST_ON_CHIP = 32
"""GPU: the most rows and outputs of a general projection that one program holds."""
STRICT = 1e-11
"""Part of the sample's size above which a multiplier makes a row beside a box strictly active."""

UNRELATED = 1e-11
"""Pivoting: a squared distance of a unit row to the span of the active rows below which the row counts as dependent."""
VANISHING = 1e-13
"""Pivoting: slope of a multiplier up to which it does not shrink."""
CLOSE = 1e4
"""Without a look: slacks by which a row may be violated at a raw near the set. There a slack is part of the way to go,
and rows count as violated from the rounding of a certificate on."""
MOST_ROWS_TO_AN_OUTPUT = 4
"""CPU: rows to an output of a general projection up to which compiled pivoting is faster than DAQP."""
CORRECTIONS = 3
"""CPU: most corrections of a projection whose active rows miss their bounds by more than rounding."""

ROUNDS, PATIENCE = 12, 4
"""Steps of the nonlinear solver: guesses of the active rows, and how many may go by without a better one."""
NOISE = 1e-12
"""Part of the size of a row's numbers by which it may miss a bound there and count as holding."""
INDEPENDENT = 1e-13
"""Least pivot of unit rows for which elimination is trusted there."""

SUFFICIENT = 1e-4
"""Share of the decrease that the slope promises which a step of the nonlinear solver must bring."""
CHORD, FAST = 1e-5, 1e-2
"""A sample keeps its Jacobian for the steps that follow where its violation is below CHORD and fell by FAST at once."""
CUT = 1e-3
"""Least part of a refused length of a retraction that is tried next."""
STATIONARY = 1e-9
"""Share of the violation that a step must promise to remove; below it the point is stationary."""
NUDGES = 2
"""Nudges of a sample before it counts as stuck."""
SOFTEST = 1e1
"""Most elasticity of a row of length one."""
SHORT = 0.125
"""Length of a step below which the next one is more elastic."""
SHORTEST = 1e-12
"""Length below which a step is given up: near a vanishing gradient it may be too long by many orders."""
ELASTIC = 1e-4
"""Least elasticity of a row of length one there: of a violation v a step leaves about ``ELASTIC^2 v / sigma^2``.

A gradient that would send a sample farther than 1e4 times its own size counts as smaller than it is."""
FLATTEST = 1e-4
"""Least curvature that the Hessian of the Lagrangian may have; a smaller or negative one is replaced."""
SMALL_STEP = 3e-11
"""A step of this part of the sample's size is the last one: what remains is at most as much, mostly its square."""
DISTANT = 1e-3
"""What the distance to raw adds to the size of a sample: where y is near 0 it is all there is."""
MERIT_ROUNDING = 1e-15
"""Part of the merit's terms by which rounding may raise it."""

SEARCH_CUT = 0.1
"""Least part of a refused length towards the nearest point that is tried next."""
SHORTEST_SEARCH = 2.0**-12
"""Length below which such a step is given up."""
FAR = 0.3
"""Relative violation beyond which no such step may lead, however near to raw: the way back would be lost."""

DEPENDENT = 1e-13
"""What keeps dependent active rows solvable in the derivative, relative to unit rows: they share the multiplier q."""


class Tolerances(NamedTuple):
    """What counts as met for any rows in units of size one: parts of a row's or a sample's size.

    Attributes:
        inside: Of a row that holds at raw.
        feasible: Of a row that holds while rows are exchanged.
        solved: Of the residual.
        strict: Of a multiplier that is more than rounding.
        certain: Of a row that needs no more steps.
        allowed: Of a row that a certificate accepts, in the rounding of the caller's dtype.
    """

    inside: float
    feasible: float
    solved: float
    strict: float
    certain: float
    allowed: float


def padded(size: int) -> int:
    """The power of two that holds a size, of at least 16: what a tile of the matrix units has."""
    return max(16, 1 << (size - 1).bit_length())
