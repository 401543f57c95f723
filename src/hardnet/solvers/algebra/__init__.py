"""Linear algebra that the solvers share: sums in long arithmetic, small systems, eigendecompositions."""
