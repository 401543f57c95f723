"""x."""

PICTURES = {}
