"""Posterior predictions for known groups and for groups never seen.

Known group: theta from the posterior, effects from their conditional given the training data.
Unseen group: effects from the population N(0, Omega).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from nghvi._typing import Data
from nghvi.models.mixed import MixedModel, MixedParams
from nghvi.posterior.mixed import MixedPosterior, params_at


def predictive_mean(
    posterior: MixedPosterior, x: np.ndarray, codes: np.ndarray, draws: int = 1000
) -> Float[np.ndarray, " n"]:
    """E[y | x, group, data] on the fitted scale; code -1 is an unseen group."""
    theta = posterior.inference.pool.resample(draws, np.random.default_rng(1))
    keys = jax.random.split(jax.random.key(1), draws)
    return np.asarray(
        _average_mean(
            posterior.model,
            posterior.data,
            keys,
            jnp.asarray(theta),
            jnp.asarray(x),
            jnp.asarray(codes),
        )
    )


@eqx.filter_jit
def _average_mean(
    model: MixedModel, data: Data, keys: Array, theta: Array, x: Array, codes: Array
) -> Array:
    def add(total: Array, draw: tuple[Array, Array]) -> tuple[Array, None]:
        params = params_at(model, data, draw[1])
        h = model.features(params, x)
        fixed, design = h @ params.coef, model.design(h)
        if model.num_effects == 0:
            eta = fixed
        else:
            eta = fixed + _effects_part(model, data, draw[0], params, design, codes)
        return total + model.response.mean(eta, params.dispersion), None

    total, _ = jax.lax.scan(add, jnp.zeros(x.shape[0]), (keys, theta))
    return total / theta.shape[0]


def _effects_part(
    model: MixedModel, data: Data, key: Array, params: MixedParams, design: Array, codes: Array
) -> Array:
    if model.response.conjugate:
        # eta enters the mean linearly: conditional means do, and an unseen group's is zero.
        effects, _ = model.effect_moments(key, params, data)
        known = data.in_original_order(effects)
        return jnp.where(codes < 0, 0.0, jnp.sum(design * known[codes], axis=1))
    known_key, new_key = jax.random.split(key)
    known = data.in_original_order(model.draw_effects(known_key, params, data))
    # One direction suffices: the predictor of an unseen group has variance h' Omega h.
    spread = jnp.sqrt(
        jnp.sum(solve_triangular(model.precision_factor(params), design.T, lower=True) ** 2, axis=0)
    )
    new = spread * jax.random.normal(new_key, codes.shape)
    return jnp.where(codes < 0, new, jnp.sum(design * known[codes], axis=1))
