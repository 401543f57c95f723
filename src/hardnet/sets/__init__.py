"""Sets: what is allowed. Each maps the input x to the numbers of C(x)."""

from hardnet.sets.affine import Affine, Box, Equality
from hardnet.sets.affine_on_hull import AffineOnRegion
from hardnet.sets.base import AffineRows, ConstraintSet, Number
from hardnet.sets.curved import LMI, Ball, CurvedSet, Quadratic, SecondOrderCone
from hardnet.sets.cvxpy import Cvxpy
from hardnet.sets.horizon import Horizon
from hardnet.sets.intersection import Intersection
from hardnet.sets.l1_ball import L1Ball
from hardnet.sets.monotone import Monotone
from hardnet.sets.nonlinear import Nonlinear, Smooth
from hardnet.sets.relaxed import Relaxed
from hardnet.sets.scaled import ScaledCurved, ScaledRows, scaled
from hardnet.sets.simplex import Simplex
from hardnet.sets.sparse import SparseAffine
from hardnet.sets.transport import DoublyStochastic, Transport
from hardnet.sets.union import Union

__all__ = [
    "LMI",
    "Affine",
    "AffineOnRegion",
    "AffineRows",
    "Ball",
    "Box",
    "ConstraintSet",
    "CurvedSet",
    "Cvxpy",
    "DoublyStochastic",
    "Equality",
    "Horizon",
    "Intersection",
    "L1Ball",
    "Monotone",
    "Nonlinear",
    "Number",
    "Quadratic",
    "Relaxed",
    "ScaledCurved",
    "ScaledRows",
    "SecondOrderCone",
    "Simplex",
    "Smooth",
    "SparseAffine",
    "Transport",
    "Union",
    "scaled",
]
