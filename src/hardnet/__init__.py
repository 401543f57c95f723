"""hardnet: neural networks whose outputs satisfy hard, input-dependent constraints by construction."""

from typing import TYPE_CHECKING, Any

from hardnet import (
    distributions,
    errors,
    functional,
    gradients,
    layers,
    losses,
    metrics,
    problems,
    sets,
    solvers,
    testing,
)
from hardnet.certificate import Certificate, check
from hardnet.features import features
from hardnet.gradients import GradientFlow, gradient_flow
from hardnet.laboratory import laboratory
from hardnet.layers import explain, methods, register
from hardnet.model import HardNet, best_of
from hardnet.sets import (
    LMI,
    Affine,
    Ball,
    Box,
    Cvxpy,
    DoublyStochastic,
    Equality,
    Horizon,
    L1Ball,
    Monotone,
    Nonlinear,
    Quadratic,
    Relaxed,
    SecondOrderCone,
    Simplex,
    Transport,
    scaled,
)
from hardnet.storage import load, save
from hardnet.warming import warmup

if TYPE_CHECKING:
    from hardnet_lab.experiments.compare import compare

__version__ = "0.3.0"

__all__ = [
    "LMI",
    "Affine",
    "Ball",
    "Box",
    "Certificate",
    "Cvxpy",
    "DoublyStochastic",
    "Equality",
    "GradientFlow",
    "HardNet",
    "Horizon",
    "L1Ball",
    "Monotone",
    "Nonlinear",
    "Quadratic",
    "Relaxed",
    "SecondOrderCone",
    "Simplex",
    "Transport",
    "best_of",
    "check",
    "compare",
    "distributions",
    "errors",
    "explain",
    "features",
    "functional",
    "gradient_flow",
    "gradients",
    "layers",
    "load",
    "losses",
    "methods",
    "metrics",
    "problems",
    "register",
    "save",
    "scaled",
    "sets",
    "solvers",
    "testing",
    "warmup",
]


def __getattr__(name: str) -> Any:
    """The laboratory stands beside the library, and is imported when it is asked for."""
    if name == "compare":
        return laboratory("experiments.compare").compare
    raise AttributeError(f"module 'hardnet' has no attribute '{name}'")
