"""Sets: what is allowed. Each maps the input x to the numbers of C(x)."""

from hardnet.sets.affine import Affine
from hardnet.sets.base import AffineRows, ConstraintSet, Number
from hardnet.sets.box import Box
from hardnet.sets.equality import Equality
from hardnet.sets.intersection import Intersection

__all__ = ["Affine", "AffineRows", "Box", "ConstraintSet", "Equality", "Intersection", "Number"]
