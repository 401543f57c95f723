"""Differentiable functions on plain tensors: the mathematics, and where the speed lives."""

from hardnet.functional.affine import enforce_affine, factorize
from hardnet.functional.implicit import implicit_vjp
from hardnet.functional.polyhedron import project_affine
from hardnet.functional.strict import rounding_bound

__all__ = ["enforce_affine", "factorize", "implicit_vjp", "project_affine", "rounding_bound"]
