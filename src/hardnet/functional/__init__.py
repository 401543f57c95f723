"""Differentiable functions on plain tensors: the mathematics, by the fastest code that takes them."""

from hardnet.functional.affine import enforce_affine
from hardnet.functional.affine_formulas import factorize
from hardnet.functional.conic import project_intersection
from hardnet.functional.derivatives import implicit_vjp
from hardnet.functional.elementary import (
    project_ball,
    project_box,
    project_psd,
    project_second_order_cone,
    project_simplex,
)
from hardnet.functional.entropic import project_entropic
from hardnet.functional.l1_ball import project_l1_ball
from hardnet.functional.monotone import project_monotone
from hardnet.functional.nearest import project_affine, project_box_rows, project_rows, solve_affine, solve_rows
from hardnet.functional.nonlinear import project_nonlinear, solve_nonlinear
from hardnet.functional.quadratic import project_quadratic
from hardnet.functional.strict import rounding_bound

__all__ = [
    "enforce_affine",
    "factorize",
    "implicit_vjp",
    "project_affine",
    "project_ball",
    "project_box",
    "project_box_rows",
    "project_entropic",
    "project_intersection",
    "project_l1_ball",
    "project_monotone",
    "project_nonlinear",
    "project_psd",
    "project_quadratic",
    "project_rows",
    "project_second_order_cone",
    "project_simplex",
    "rounding_bound",
    "solve_affine",
    "solve_nonlinear",
    "solve_rows",
]
