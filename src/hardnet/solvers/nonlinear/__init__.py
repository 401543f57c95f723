"""Nonlinear rows ``lower <= g(y, x) <= upper``: a retraction and the nearest point."""
