"""Differentiable functions on plain tensors: the mathematics, and where the speed lives."""
