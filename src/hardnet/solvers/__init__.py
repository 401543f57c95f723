"""Algorithms on plain tensors, without autograd: each returns a Solution, sample by sample."""

from hardnet.solvers.conic.blocks import Block, Intervals, Quadratics, SecondOrder, SemiDefinite
from hardnet.solvers.conic.solve import project_intersection
from hardnet.solvers.polyhedron.box_rows import project_box_rows
from hardnet.solvers.polyhedron.projection import project_affine
from hardnet.solvers.solution import Solution, Status

__all__ = [
    "Block",
    "Intervals",
    "Quadratics",
    "SecondOrder",
    "SemiDefinite",
    "Solution",
    "Status",
    "project_affine",
    "project_box_rows",
    "project_intersection",
]
