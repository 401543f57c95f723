"""Convex sets with a curved part: balls, quadratics, second-order cones, matrix inequalities, intersections."""
