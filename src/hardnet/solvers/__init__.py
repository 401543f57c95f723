"""Algorithms on plain tensors, without autograd: each returns a Solution, sample by sample."""

from hardnet.solvers.solution import Solution, Status

__all__ = ["Solution", "Status"]
