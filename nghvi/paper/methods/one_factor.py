"""The one-factor Gaussian of NAGVAC: q = N(mu, b b' + C^2), C = diag(c).

With ``k = sum (b_i / c_i)^2`` and ``a = 1 / (1 + k)`` the diagonal blocks of the Fisher
information have closed inverses::

    mu   (b b' + C^2) g
    b    (1 + k) / (2 k) (b b' + C^2) g               (the published block, 2 (1 - a) P)
    c    F = 2 (diag(v) + w w'),   v = c^-2 - 2 a b^2 c^-4,   w = a b^2 c^-3

v is negative where one coordinate has more than half of the leverage ``u_i = a (b_i / c_i)^2``,
whose sum is below one. That coordinate alone is eliminated first, so nothing is divided by v_i.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._linalg.damped_cg import SolveOptions
from nghvi._linalg.lowrank import factor_precision
from nghvi.families.factor import FactorGaussian

SOLVE = SolveOptions(tolerance=1e-10, max_iterations=300)
DAMPING = 1.0
"""The whole matrix is singular where b has one entry: b_i and c_i then do the same. Undamped (and
with 0.1) runs on small linear and logit models diverge, whichever way the system is solved."""

Metric = Callable[[FactorGaussian, FactorGaussian], FactorGaussian]


def entropy_gradient(q: FactorGaussian) -> FactorGaussian:
    """Gradient of -E[log q] in (mu, b, c): (0, P b, c diag P)."""
    precision = factor_precision(q.loadings, q.scale)
    loadings, scale = precision.projected[:, 0], q.scale * precision.diagonal()
    return _tangent(q, jnp.zeros_like(q.mean), loadings, scale)


def block_diagonal(q: FactorGaussian, gradient: FactorGaussian) -> FactorGaussian:
    """Solve with the diagonal blocks of the Fisher information, O(m)."""
    b, c = q.packed_loadings, q.scale
    k = jnp.sum((b / c) ** 2)

    def covariance_times(g: Array) -> Array:
        return (b @ g) * b + c**2 * g

    return _tangent(
        q,
        covariance_times(gradient.mean),
        (1 + k) / (2 * k) * covariance_times(gradient.packed_loadings),
        _solve_scale_block(b, c, gradient.scale),
    )


def _solve_scale_block(
    b: Float[Array, " m"], c: Float[Array, " m"], right: Float[Array, " m"]
) -> Float[Array, " m"]:
    """``(2 (diag(v) + w w'))^-1 right``, in units of c, where v = 1 - 2 u and w = u."""
    square = (b / c) ** 2
    u = square / (1 + jnp.sum(square))
    g = 0.5 * c * right
    first = jnp.argmax(u)
    others = jnp.arange(u.size) != first
    v = jnp.where(others, 1 - 2 * u, 1.0)
    p = jnp.sum(jnp.where(others, u * g / v, 0.0))
    q = 1 + jnp.sum(jnp.where(others, u**2 / v, 0.0))
    x = (g[first] - u[first] * p / q) / (1 - 2 * u[first] + u[first] ** 2 / q)
    product = (p + u[first] * x) / q  # w'x
    return c * jnp.where(others, (g - u * product) / v, x)


def exact(q: FactorGaussian, gradient: FactorGaussian, damping: float = DAMPING) -> FactorGaussian:
    """Solve with the whole Fisher information, ``damping`` times its diagonal added."""
    return q.natural_gradient(gradient, damping, "exact", SOLVE)[0]


def _tangent(q: FactorGaussian, mean: Array, loadings: Array, scale: Array) -> FactorGaussian:
    return dataclasses.replace(q, mean=mean, packed_loadings=loadings, scale=scale)


METRICS: dict[str, Metric] = {"blockdiag": block_diagonal, "exact": exact}
