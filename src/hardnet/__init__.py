"""hardnet: neural networks whose outputs satisfy hard, input-dependent constraints by construction."""

from hardnet import errors, functional, layers, sets, solvers
from hardnet.sets import Affine, Box, Equality

__all__ = ["Affine", "Box", "Equality", "errors", "functional", "layers", "sets", "solvers"]
