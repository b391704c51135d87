"""A positive number s in a coordinate u for which zero is an ordinary point::

    log s = log c + u + log Phi(4 u)

Data cannot tell s below some unit c from zero, and a prior that is flat there leaves log s a long
tail to the left that no Gaussian has. To the right of zero u is a logarithm; to the left s falls as
Phi does, so a density that is flat in s is normal in u. The factor 4 makes the Kullback-Leibler
distance of the best Gaussian least (:mod:`nghvi.models.parameters` has figures).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._special import inverse_mills, log_ndtr

STEEPNESS = 4.0
STEPS = 15


def log_in_units(u: Float[Array, "..."]) -> Float[Array, "..."]:
    """log s - log c."""
    return u + log_ndtr(STEEPNESS * u)


def slope(u: Float[Array, "..."]) -> Float[Array, "..."]:
    """The derivative of :func:`log_in_units`."""
    return 1 + STEEPNESS * inverse_mills(STEEPNESS * u)


def coordinate(log_ratio: Float[Array, "..."]) -> Float[Array, "..."]:
    """u from log s - log c by Newton steps: concave, so from the left they never overshoot."""
    start = -jnp.sqrt(2 * jnp.maximum(-log_ratio, 0.0)) / STEEPNESS
    return jax.lax.fori_loop(
        0, STEPS, lambda _, u: u + (log_ratio - log_in_units(u)) / slope(u), start
    )
