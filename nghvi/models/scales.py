"""Coordinates of the effects' covariance in which an sd of zero is an ordinary point.

Theta holds u and kappa with (:mod:`nghvi._core.near_zero`)::

    log sd_j = log c_j + u_j + log Phi(4 u_j)
    L_jk = D_j sinh kappa_jk  (j > k),  L_jj = D_j,  Omega^-1 = L L'

and D such that the sds are those. kappa is Fisher's z of a partial correlation, in which priors of
correlations are nearly normal, whatever the sds.

The unit: an effect of variance v adds v x_i^2 to the variances of group k, whose information on it
is I_k = sum_i x_i^2 / s^2 at noise of variance s^2. At v = 0 the data tell v to within an sd of
``sqrt(2 / sum_k I_k^2)``, and c is its root. The factor 4 and this unit make the Kullback-Leibler
distance of the best Gaussian least, on average over 8 to 3,000 groups and effects from none to
strong: .01 nats (at most .04), where log sd has .10 (.28); a unit off by a factor 2 costs .03.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nghvi._core import near_zero
from nghvi._linalg import small
from nghvi._linalg.lowrank import pack_lower, unpack_log_cholesky, unpack_lower
from nghvi._typing import Scalar
from nghvi.data import LinearStatistics


def units(data: LinearStatistics, noise: float | None) -> Float[Array, " r"]:
    """Sds that data begin to tell from zero, each effect's.

    ``noise``: the variance s^2 of a row, as far as the response knows it.
    """
    gram = np.moveaxis(np.asarray(data.effects_gram), -1, 0)
    square = np.einsum("kjj->kj", gram)
    noise = noise_within(data) if noise is None else noise
    information = np.sqrt(np.sum((square / noise) ** 2, axis=0))
    return jax.device_put(2**0.25 / np.sqrt(np.maximum(information, 1e-100)))


def noise_within(data: LinearStatistics) -> float:
    """Residual variance of y within groups, whose own coefficients take what they can."""
    gram = np.moveaxis(np.asarray(data.effects_gram), -1, 0)
    cross = np.asarray(data.effects_cross).T
    level = np.maximum(np.einsum("kjj->j", gram) / float(data.num_rows), 1e-300)
    ridge = 1e-3 * np.diag(level)
    explained = np.sum(cross * np.linalg.solve(gram + ridge, cross[..., None])[..., 0])
    taken = np.einsum("kij,kji->", np.linalg.inv(gram + ridge), gram)
    whole, rows = float(data.square_total), float(data.num_rows)
    within = (whole - explained) / max(rows - taken, 0.1 * rows)
    return max(within, 1e-6 * whole / rows, 1e-300)


def to_free(
    coordinates: Float[Array, " free"], unit: Float[Array, " r"], correlated: bool
) -> tuple[Float[Array, " free"], Scalar]:
    """The free parameters that priors are stated for, and the log Jacobian of this change."""
    r = unit.size
    if not correlated:
        free = 2 * (jnp.log(unit) + near_zero.log_in_units(coordinates))
        return free, r * np.log(2) + jnp.sum(jnp.log(near_zero.slope(coordinates)))
    entries = unpack_lower(coordinates, r, r)
    u = jnp.diagonal(entries)
    shape = jnp.tril(jnp.sinh(entries), -1) + jnp.eye(r)
    # Omega = D^-1 A^-T A^-1 D^-1 with A this shape: the sds are the norms of A^-1's columns by D.
    norms = 0.5 * jnp.log(jnp.sum(small.inverse_lower(shape) ** 2, axis=0))
    log_d = norms - jnp.log(unit) - near_zero.log_in_units(u)
    lower = jnp.exp(log_d)[:, None] * shape
    free = pack_lower(jnp.tril(lower, -1) + jnp.diag(log_d))
    stretched = jnp.sum(jnp.log(jnp.cosh(jnp.tril(entries, -1)))) + jnp.arange(r) @ log_d
    return free, stretched + jnp.sum(jnp.log(near_zero.slope(u)))


def from_free(
    free: Float[Array, " free"], unit: Float[Array, " r"], correlated: bool
) -> Float[Array, " free"]:
    """The inverse of :func:`to_free`."""
    if not correlated:
        return near_zero.coordinate(0.5 * free - jnp.log(unit))
    lower = unpack_log_cholesky(free, unit.size)
    log_sds = 0.5 * jnp.log(jnp.sum(small.inverse_lower(lower) ** 2, axis=0))
    kappa = jnp.arcsinh(jnp.tril(lower, -1) / jnp.diagonal(lower)[:, None])
    return pack_lower(kappa + jnp.diag(near_zero.coordinate(log_sds - jnp.log(unit))))
