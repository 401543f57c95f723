"""Compiled code for a CPU (numba): one launch file, and one file per shape of problem, mirroring `gpu`."""
