"""Side-by-side benchmarks against alternatives and other packages, reported as ratios."""
