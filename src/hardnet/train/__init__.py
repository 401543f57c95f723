"""Training: one readable loop over stacked seeds, with checkpoints."""
