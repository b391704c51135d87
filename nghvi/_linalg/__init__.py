"""Linear algebra: many small factors at once, low rank plus diagonal, damped solves, pytrees."""
