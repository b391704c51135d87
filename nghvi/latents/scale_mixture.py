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

from nghvi._typing import Key, Scalar
from nghvi.latents.rows import RowProblem, draw_given_precision

SPARE = 16
"""One candidate more for so many draws; below 5 % are rejected."""


def sample_gamma(key: Key, shape: Scalar, size: tuple[int, ...]) -> Float[Array, "..."]:
    """Independent draws of Gamma(shape, 1) for one shape >= 1.

    Marsaglia and Tsang's candidates, d (1 + c x)^3 with x normal, d = shape - 1/3 and
    c = 1 / sqrt(9 d). As all draws have one shape, accepted candidates are exchangeable: in the
    place of a rejected one stands the next of a few spare ones, without another round. Single
    precision numbers suffice for noise and halve its price.
    """
    number = math.prod(size)
    spare = number // SPARE + 64
    d = shape - 1 / 3
    key_normal, key_uniform = jax.random.split(key)
    x = jax.random.normal(key_normal, (number + spare,), jnp.float32).astype(float)
    u = jax.random.uniform(key_uniform, (number + spare,), jnp.float32, minval=1e-30).astype(float)
    root = 1 + x / jnp.sqrt(9 * d)
    cube = jnp.maximum(root, 1e-10) ** 3
    accepted = (root > 0) & (jnp.log(u) < 0.5 * x**2 + d * (1 - cube + jnp.log(cube)))
    spares = cube[number:][jnp.nonzero(accepted[number:], size=spare)[0]]
    rejected = ~accepted[:number]
    next_spare = jnp.minimum(jnp.cumsum(rejected) - 1, spare - 1)
    return (d * jnp.where(rejected, spares[next_spare], cube[:number])).reshape(size)


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
