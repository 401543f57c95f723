"""Triton kernels, each beside its plain reference; imported by solvers and functional alone.

Importing this room needs torch alone: Triton is imported with the first launch.
"""
