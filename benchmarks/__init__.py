"""Side-by-side benchmarks against alternatives and other packages, reported as ratios."""

import os

os.environ.setdefault("HARDNET_NUMBA", "wait")  # what is timed must not depend on what is compiled by then
