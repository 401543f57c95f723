"""Triton kernels for a GPU: one file per shape of problem, mirroring `cpu`; Triton is imported at the first launch."""
