"""Side-by-side benchmarks against the alternatives and the peers, as ratios."""
