"""Whether the integrals of a model are exact enough at the result of a fit.

The log densities of a model and of a refinement of it differ by d(theta). What counts is how d
changes over the posterior, since that is what moves means and sds.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nghvi._core.batches import Batches
from nghvi._core.draws import AntitheticDraws, DrawScheme, OrthogonalDraws
from nghvi._core.evaluate import (
    evaluation_size,
    log_targets,
    side_by_side,
    values_and_scores,
)
from nghvi._core.model import LatentModel, MarginalModel, unraveller
from nghvi._core.variational import Variational
from nghvi._programs import program
from nghvi._typing import Data, Key
from nghvi.recipes.plan import HUGE
from nghvi.recipes.verdict import TOLERANCE

ASTRAY, UNLIKE = 0.03, 0.05
"""Errors of an integral beyond which it is refined: by how much it moves posterior means (in sds)
and sds (relatively), and the level of the log density (in nats)."""
MANY = 25
"""Number of parameters beyond which the number of draws that estimate these errors is constant."""


class Known(NamedTuple):
    """Draws theta of q, made of standard normal noise, and the log densities of a model there."""

    noise: Float[np.ndarray, "s e"]
    theta: Float[np.ndarray, "s m"]
    log_target: Float[np.ndarray, " s"]


def refinements_needed(
    key: Key,
    model: LatentModel,
    data: Data,
    q: Variational,
    costly: bool,
    known: Known | None = None,
) -> int:
    """Return how often to refine the model so that its integrals are exact enough at the result.

    The log densities of the model and of its yardstick differ by d(theta). If q is right, a linear
    trend of d over its draws moves the posterior mean by as many sds, and a quadratic one c z^2 its
    sd by the share c; noise around these trends moves neither. If d is too large, the first model
    between the two for which it is half of that is enough; a mean over draws is refined until the
    next refinement changes little, or until it is no longer affordable. If integrals are
    ``costly``, the slope of d at the centre has to do, and for rows in batches its level.
    ``known``: draws of q at which the model's log density has been computed.
    """
    if not isinstance(model, MarginalModel) or not model.marginal_is_exact:
        return 0
    if eqx.tree_equal(better := model.refined(), model):
        return 0
    yardstick = model.yardstick()
    if isinstance(data, Batches):
        at = np.asarray(q.centre)[None]
        now, then = (log_targets(m, data, at)[0] for m in (model, yardstick))
        return int(abs(now - then) > UNLIKE)
    if costly:
        centre, pull = jax.vjp(q.transport, jnp.zeros(q.noise_dim))
        at = np.asarray(centre)[None]
        rough, fine = (values_and_scores(m, data, at)[1][0] for m in (model, yardstick))
        return int(not np.abs(pull(jnp.asarray(fine - rough))[0]).max() < TOLERANCE)
    if (error := _trend_of_noise(key, model, data, q)) is not None:
        return int(error > ASTRAY)
    if known is None:
        noise, theta = (np.asarray(each) for each in _noise_and_draws(_scheme(q), key, q))
    else:
        noise, theta = known.noise, known.theta

    def values(model: MarginalModel) -> np.ndarray:
        return log_targets(model, data, theta, side_by_side(model, data))

    right = values(yardstick)

    def is_exact(found: np.ndarray, share: float) -> bool:
        level, trend = _apart(right - found, noise)
        return (level < share * UNLIKE or model.is_drawn(data)) and trend < share * ASTRAY

    if is_exact(values(model) if known is None else known.log_target, 1.0):
        return 0
    number = 1
    while not (eqx.tree_equal(better, yardstick) or is_exact(values(better), 0.5)):
        better, number = better.refined(), number + 1
    # Where draws are far too few, fits with somewhat more would be in vain.
    while model.is_drawn(data) and is_affordable(better, data):
        finer = values(better.refined())
        if _apart(finer - right, noise)[1] < ASTRAY:
            break
        better, right, number = better.refined(), finer, number + 1
    return number


def is_affordable(model: LatentModel, data: Data) -> bool:
    """Return whether a fit with these integrals takes minutes at most."""
    if not isinstance(model, MarginalModel):
        return True
    many = model.is_drawn(data) and evaluation_size(model, data) > HUGE
    return model.integration_is_affordable and not many


def _trend_of_noise(key: Key, model: MarginalModel, data: Data, q: Variational) -> float | None:
    """Return twice the standard error of the largest trend that noise of common draws causes.

    It follows from how these draws differ among themselves; None if the model cannot tell.
    """
    if not model.is_drawn(data):
        return None
    noise, theta = (np.asarray(each) for each in _noise_and_draws(_scheme(q), key, q))
    found = _deviations(model, data, jax.device_put(theta))
    if found is None:
        return None
    each = np.asarray(found)
    errors = np.linalg.norm(_trends(each, noise), axis=-1) / np.sqrt(
        each.shape[1] * (each.shape[1] - 1)
    )
    return float(2 * errors.max())


@program
def _deviations(
    model: MarginalModel, data: Data, theta: Float[Array, "n m"]
) -> Float[Array, "n s"] | None:
    unravel = unraveller(model, data)
    return jax.vmap(lambda t: model.deviations(unravel(t), data))(theta)


def _scheme(q: Variational) -> DrawScheme:
    return OrthogonalDraws() if q.noise_dim <= MANY else AntitheticDraws(2 * MANY)


def _trends(
    values: Float[np.ndarray, "n ..."], noise: Float[np.ndarray, "n e"]
) -> Float[np.ndarray, "2 e ..."]:
    """Return slopes and bends of values over draws."""
    level = values.mean(axis=0)
    slopes = noise.T @ values / len(noise)
    bends = 0.5 * (noise**2 - 1).T @ (values - level) / len(noise)
    return np.stack([slopes, bends])


def _apart(
    difference: Float[np.ndarray, " s"], noise: Float[np.ndarray, "s e"]
) -> tuple[float, float]:
    """Return level and largest trend of the difference of two log densities over draws of q."""
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, which is within no bound
        trends = _trends(difference, noise)
    return float(np.abs(difference.mean())), float(np.abs(trends).max())


@program
def _noise_and_draws(scheme: DrawScheme, key: Key, q: Variational) -> tuple[Array, Array]:
    noise = scheme(key, q.noise_dim)
    return noise, jax.vmap(q.transport)(noise)
