"""Student-t: Gibbs sampling of the effects through the precisions of a scale mixture.

With noise variance v and nu degrees of freedom a row's precision is tau_i = w_i / v::

    tau_i | alpha ~ Gamma((nu + 1) / 2, rate (nu v + (y_i - eta_i)^2) / 2)
    u_k | tau     ~ N(Q_k^-1 b_k, Q_k^-1),   Q_k = I + Z_k' diag(tau) Z_k,
                                             b_k = Z_k' diag(tau) (y - offset)

As for probit only the effects are kept.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._linalg.tree import materialise
from nghvi._typing import Key, Scalar
from nghvi.latents.rows import RowProblem, draw_given_precision

SPARE = 16
"""One candidate more for so many draws; below 5 % are rejected."""


def sample_gamma(key: Key, shape: Scalar, size: tuple[int, ...]) -> Float[Array, "..."]:
    """Independent draws of Gamma(shape, 1) for one shape >= 1.

    Marsaglia and Tsang's candidates, d (1 + z)^3 with z ~ N(0, 1 / 9d) and d = shape - 1/3,
    accepted with probability exp(3 d (log(1 + z) - z + z^2/2 - z^3/3)). As all draws have one
    shape, accepted candidates are exchangeable: in the place of a rejected one stands the next of
    a few spare ones, without another round. Single precision suffices for noise and costs a third.
    """
    number = math.prod(size)
    spare = number // SPARE + 64
    d = (shape - 1 / 3).astype(jnp.float32)
    key_normal, key_uniform = jax.random.split(key)
    z = jax.random.normal(key_normal, (number + spare,), jnp.float32) / (3 * jnp.sqrt(d))
    z = materialise(jnp.maximum(z, -1 + 1e-6))
    u = jax.random.uniform(key_uniform, z.shape, jnp.float32, minval=1e-30)
    series = jnp.log1p(z) - z * (1 - z * (0.5 - z / 3))
    accepted = jnp.log(u) < 3 * d * series
    kept = z[number:][jnp.nonzero(accepted[number:], size=spare)[0]]
    rejected = ~accepted[:number]
    next_spare = jnp.minimum(jnp.cumsum(rejected, dtype=jnp.int32) - 1, spare - 1)
    z = jnp.where(rejected, kept[next_spare], z[:number])
    return (d * (1 + z) ** 3).astype(float).reshape(size)


def draw_precision(
    key: Key, error: Float[Array, " n"], noise_var: Scalar, degrees: Scalar
) -> Float[Array, " n"]:
    """tau given y - eta."""
    gammas = sample_gamma(key, 0.5 * (degrees + 1), error.shape)
    return 2 * gammas / (degrees * noise_var + error**2)


def sample(
    key: Key,
    problem: RowProblem,
    effects: Float[Array, "r k"],
    sweeps: int,
    noise_var: Scalar,
    degrees: Scalar,
) -> Float[Array, "r k"]:
    """``sweeps`` passes from these whitened effects."""
    residual = problem.data.y - problem.offset

    def sweep(i: Array, effects: Array) -> Array:
        key_precision, key_effects = jax.random.split(jax.random.fold_in(key, i))
        error = problem.data.y - problem.predictor(effects)
        precision = draw_precision(key_precision, error, noise_var, degrees)
        return draw_given_precision(key_effects, problem, precision, precision * residual)

    return jax.lax.fori_loop(0, sweeps, sweep, effects)
