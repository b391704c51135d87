"""theta of a mixed model: what it consists of, and draws of its prior.

theta = (weights, beta, dispersion, free parameters of Omega, log scales of the weights)
"""

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nghvi._typing import PyTree

if TYPE_CHECKING:
    from nghvi.models.mixed import MixedModel


class MixedParams(NamedTuple):
    """Unconstrained global parameters."""

    weights: PyTree
    coef: Float[Array, " q"]
    dispersion: Float[Array, " c"]
    effects: Float[Array, " free"]
    weight_scale: Float[Array | np.ndarray, " layers"] = np.zeros(0)
    """Log scale of each layer's weights; empty where their prior is fixed."""


def draws_of_prior(
    model: "MixedModel", rng: np.random.Generator, number: int, start: MixedParams
) -> MixedParams:
    """Draws of all but the weights, which are ``start``'s, with leading axis ``number``."""
    coef = np.asarray(model.priors.coef_sd) * rng.standard_normal((number, start.coef.size))
    dispersion = jnp.asarray(model.response.sample_prior(rng, number, model.priors))
    if (found := model.response.intercept_prior(dispersion, model.priors)) is not None:
        coef[:, 0] = found[0] + coef[:, 0] * found[1] / model.intercept_sd
    effects = np.zeros((number, start.effects.size))
    if model.num_effects:
        free = jnp.asarray(model.effects_prior.sample(rng, number, model.num_effects))
        effects = np.asarray(jax.vmap(model.effects_from_free)(free))
    drawn = MixedParams(
        jax.tree.map(lambda w: np.broadcast_to(w, (number, *w.shape)), start.weights),
        jnp.asarray(coef),
        dispersion,
        jnp.asarray(effects),
        rng.standard_normal((number, np.asarray(start.weight_scale).size)),
    )
    # Priors are stated for the numbers themselves, theta may hold them in units of the effects.
    plain = drawn._replace(weights=(), weight_scale=np.zeros((number, 0)))
    unit = jax.vmap(model.coef_unit)(plain)[:, None]
    own = dispersion - jnp.log(unit) if model.response.takes_intercept else dispersion
    return drawn._replace(coef=drawn.coef / unit, dispersion=own)
