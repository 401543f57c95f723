"""Triton kernels, each beside its plain reference; imported by solvers and functional alone."""
