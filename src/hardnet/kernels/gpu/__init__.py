"""Triton kernels for a GPU: one file for each shape of problem, paired with `cpu`; Triton is imported at a launch."""
