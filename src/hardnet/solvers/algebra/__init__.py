"""Linear algebra shared by the solvers: sums in extended precision, small systems, eigendecompositions."""
