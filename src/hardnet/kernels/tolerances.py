"""The tolerances of an algorithm, one record for all its texts: plain torch, numba and Triton."""

from __future__ import annotations

from typing import NamedTuple


class FewRowsTolerances(NamedTuple):
    """The tolerances of the fixed program for few rows, scaled to size one, which its three texts share.

    Attributes:
        dependent: A row is constant on the pinned rows if they leave no more of its square: an angle of 1e-14.
        doubt: An excess below this fraction of the terms it came from is rounding: at a vertex where more rows meet
            than needed, it would pin a row whose multiplier has the wrong sign.
        empty: How far a row that is constant on the others may be outside its bounds, relative to the terms of all rows
            at raw.
        roundings: How far a row may miss its bounds, in roundings of the dtype, relative to
            ``|a|_1 |y|_inf + |bounds|``.
        stationary: How far ``raw - A' dual`` may be from y, relative to raw and y; beyond this the active rows are not
            trusted.
        touches: A multiplier that moves its row by less than this fraction of the row's terms is rounding and set to
            zero. All solvers then agree on the derivative at a vertex where more rows meet than are needed.
    """

    dependent: float = (64 * 2.0**-52) ** 2
    doubt: float = 8 * 2.0**-52
    empty: float = 64 * 2.0**-52
    roundings: float = 16.0
    stationary: float = 1e-8
    touches: float = 8 * 2.0**-52


FEW_ROWS = FewRowsTolerances()
