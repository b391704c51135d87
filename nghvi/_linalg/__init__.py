"""Small pieces of linear algebra: packed triangles, low rank plus diagonal, damped solves."""
