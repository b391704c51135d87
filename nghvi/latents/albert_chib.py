"""Probit: Gibbs sampling of the effects through the latent utilities y*.

    y*_i | alpha ~ N(eta_i, 1) truncated to the side of y_i,     alpha | y* conjugate Gaussian

Only the effects are kept: the gradient uses ``log p(y | alpha, theta)``, with y* integrated
out, which has less noise than the augmented form and is exact as well.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._linalg import small
from nghvi._special import positive_normal
from nghvi._typing import Key
from nghvi.latents.rows import RowProblem, draw_gaussian


def sample(
    key: Key, problem: RowProblem, effects: Float[Array, "r k"], sweeps: int
) -> Float[Array, "r k"]:
    """``sweeps`` passes from these whitened effects."""
    data, design = problem.data, problem.design
    sign = 2 * data.y - 1
    root = small.cholesky(jnp.eye(design.shape[1])[:, :, None] + data.gram(design))

    def sweep(i: Array, effects: Array) -> Array:
        key_utility, key_effects = jax.random.split(jax.random.fold_in(key, i))
        eta = problem.predictor(effects)
        utility = sign * positive_normal(key_utility, sign * eta)
        cross = data.sum(design * (utility - problem.offset)[:, None]).T
        return draw_gaussian(key_effects, root, cross)

    return jax.lax.fori_loop(0, sweeps, sweep, effects)
