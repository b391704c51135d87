"""Whether the integrals of a model are exact enough at the result of a fit.

The log densities of a model and of its refinement differ by d(theta). What counts is how d changes
over the posterior, since that is what moves means and sds.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nghvi._core.batches import Batches
from nghvi._core.draws import AntitheticDraws, DrawScheme, OrthogonalDraws
from nghvi._core.evaluate import log_targets, side_by_side
from nghvi._core.model import LatentModel, MarginalModel
from nghvi._core.variational import Variational
from nghvi._programs import program
from nghvi._typing import Data, Key
from nghvi.recipes.smooth import values_and_scores
from nghvi.recipes.verdict import TOLERANCE

ASTRAY, UNLIKE = 0.03, 0.05
"""Errors of an integral beyond which it is refined: by how much it moves posterior means (in sds)
and sds (relatively), and the level of the log density (in nats)."""
MANY = 25
"""Number of parameters beyond which the number of draws that estimate these errors is constant."""


def refined_if_needed(
    key: Key, model: LatentModel, data: Data, q: Variational, costly: bool
) -> MarginalModel | None:
    """Return the refined model if the integrals of this one are not exact enough at the result.

    The two log densities differ by d(theta). If q is right, a linear trend of d over its draws
    moves the posterior mean by as many sds, and a quadratic one c z^2 its sd by the share c; noise
    around these trends moves neither. If integrals are ``costly``, the slope of d at the centre has
    to do, and for rows in batches its level.
    """
    if not isinstance(model, MarginalModel) or not model.marginal_is_exact:
        return None
    better = model.refined()
    if eqx.tree_equal(better, model):
        return None
    if isinstance(data, Batches):
        now, then = (log_targets(m, data, np.asarray(q.centre)[None])[0] for m in (model, better))
        return better if abs(now - then) > UNLIKE else None
    if costly:
        theta, pull = jax.vjp(q.transport, jnp.zeros(q.noise_dim))
        at = np.asarray(theta)[None]
        rough, fine = (values_and_scores(m, data, at)[1][0] for m in (model, better))
        return None if np.abs(pull(jnp.asarray(fine - rough))[0]).max() < TOLERANCE else better
    level, trend = _apart(key, model, better, data, q)
    known = level < UNLIKE or model.is_drawn(data)
    return None if known and trend < ASTRAY else better


def _apart(
    key: Key, rough: MarginalModel, fine: MarginalModel, data: Data, q: Variational
) -> tuple[float, float]:
    """Return level and largest trend of the difference of two log densities over draws of q."""
    scheme = OrthogonalDraws() if q.noise_dim <= MANY else AntitheticDraws(2 * MANY)
    noise, theta = (np.asarray(each) for each in _noise_and_draws(scheme, key, q))
    values = [log_targets(model, data, theta, side_by_side(model, data)) for model in (fine, rough)]
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, which is within no bound
        difference = values[0] - values[1]
        level = difference.mean()
        slopes = difference @ noise / len(noise)
        bends = 0.5 * (difference - level) @ (noise**2 - 1) / len(noise)
    return float(np.abs(level)), float(np.abs([slopes, bends]).max())


@program
def _noise_and_draws(scheme: DrawScheme, key: Key, q: Variational) -> tuple[Array, Array]:
    noise = scheme(key, q.noise_dim)
    return noise, jax.vmap(q.transport)(noise)
