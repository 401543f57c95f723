"""Analysis of a constant set, done once when a layer is built."""
