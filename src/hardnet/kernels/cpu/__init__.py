"""Compiled code for a CPU (numba): one launch file, and one file for each shape of problem, paired with `gpu`."""
