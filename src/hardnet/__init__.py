"""hardnet: neural networks whose outputs satisfy hard, input-dependent constraints by construction."""

from hardnet import errors, functional, gradients, layers, losses, metrics, sets, solvers, testing
from hardnet.certificate import Certificate, check
from hardnet.gradients import GradientFlow, gradient_flow
from hardnet.layers import explain, methods, register
from hardnet.model import HardNet
from hardnet.sets import (
    LMI,
    Affine,
    Ball,
    Box,
    Cvxpy,
    Equality,
    Quadratic,
    Relaxed,
    SecondOrderCone,
    Simplex,
    scaled,
)
from hardnet.storage import load, save

__version__ = "0.2.0"

__all__ = [
    "LMI",
    "Affine",
    "Ball",
    "Box",
    "Certificate",
    "Cvxpy",
    "Equality",
    "GradientFlow",
    "HardNet",
    "Quadratic",
    "Relaxed",
    "SecondOrderCone",
    "Simplex",
    "check",
    "errors",
    "explain",
    "functional",
    "gradient_flow",
    "gradients",
    "layers",
    "load",
    "losses",
    "methods",
    "metrics",
    "register",
    "save",
    "scaled",
    "sets",
    "solvers",
    "testing",
]
