"""A coordinate u of a positive number s, in which s = 0 is an ordinary point::

    log s = log c + u + log Phi(4 u)

Data cannot distinguish s from zero below some unit c, and a prior that is flat there gives log s a
long left tail that no Gaussian has. To the right of zero u is a logarithm; to the left s falls as
Phi does, so a density that is flat in s is normal in u. The factor 4 minimises the Kullback-Leibler
distance of the best Gaussian (figures are in :mod:`nghvi.models.parameters`).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._special import inverse_mills, log_ndtr

STEEPNESS = 4.0
"""The factor 4 above."""
STEPS = 15
"""Number of Newton steps of :func:`coordinate`."""


def log_in_units(u: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log s - log c."""
    return u + log_ndtr(STEEPNESS * u)


def slope(u: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the derivative of :func:`log_in_units`."""
    return 1 + STEEPNESS * inverse_mills(STEEPNESS * u)


@jax.custom_jvp
def coordinate(log_ratio: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return u given log s - log c, by Newton steps.

    The function is concave, so steps that start on the left never overshoot.
    """
    start = -jnp.sqrt(2 * jnp.maximum(-log_ratio, 0.0)) / STEEPNESS
    return jax.lax.fori_loop(
        0, STEPS, lambda _, u: u + (log_ratio - log_in_units(u)) / slope(u), start
    )


@coordinate.defjvp
def _coordinate_jvp(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    u = coordinate(*primals)
    return u, tangents[0] / slope(u)
