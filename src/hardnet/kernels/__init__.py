"""Compiled code, imported by solvers and functional alone: `cpu` (numba) and `gpu` (Triton).

Importing this room needs torch alone: numba and Triton are imported with the first call.
"""
