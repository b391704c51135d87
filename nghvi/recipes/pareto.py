"""Pareto smoothed importance weights (PSIS; Vehtari, Simpson, Gelman, Yao and Gabry, 2024).

Beyond a cutoff u weights are taken to follow a generalised Pareto distribution,

    P(w > u + t) = (1 + k t / sigma)^(-1/k),

and the largest ones are replaced by its quantiles. k and sigma are the estimates of Zhang and
Stephens (2009): with b = -k / sigma, k(b) is the mean of log(1 - b t) in closed form, which leaves
an average over a grid of b. arviz-stats computes the same, but loads matplotlib and xarray with it.
"""

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, softmax

TAIL = 5
"""Weights that a tail needs at least."""
EQUAL = 1e-8
"""Spread of log weights that is due to rounding."""
PRIOR_SHAPE, PRIOR_WEIGHTS = 0.5, 10
"""The shape is drawn towards 0.5 as if by so many weights: a short tail says little about it."""


def pareto_smoothed(
    log_ratio: Float[np.ndarray, "... s"],
) -> tuple[Float[np.ndarray, "... s"], Float[np.ndarray, " ..."]]:
    """Normalised log weights of the draws, along the last axis, and the Pareto shape k-hat.

    Equal weights have no tail and shape 0. Others whose tail cannot be fitted, of draws that went
    astray, stay as they are, with an infinite shape.
    """
    log_weight = log_ratio - log_ratio.max(axis=-1, keepdims=True)
    draws = log_weight.shape[-1]
    size = int(3 * draws**0.5 if draws > 225 else draws / 5)
    if size < TAIL:
        raise ValueError(f"{draws} draws have no tail to smooth; give at least {5 * TAIL}.")
    order = np.argsort(log_weight, axis=-1)[..., -size - 1 :]
    tail = np.take_along_axis(log_weight, order, axis=-1)
    largest = np.exp(tail)
    cutoff, above = largest[..., :1], largest[..., 1:] - largest[..., :1]
    with np.errstate(all="ignore"):
        shape, scale = _generalised_pareto(above)
        log_survival = np.log1p(-(np.arange(size) + 0.5) / size)
        quantiles = cutoff + scale * np.expm1(-shape * log_survival) / shape
        smoothed = np.minimum(np.log(quantiles), 0.0)  # none above the largest there was
    equal = np.ptp(log_weight, axis=-1) < EQUAL
    fitted = np.isfinite(smoothed).all(axis=-1) & ~equal
    smoothed = np.where(fitted[..., None], smoothed, tail[..., 1:])
    np.put_along_axis(log_weight, order[..., 1:], smoothed, axis=-1)
    log_weight -= logsumexp(log_weight, axis=-1, keepdims=True)
    return log_weight, np.where(equal, 0.0, np.where(fitted, shape[..., 0], np.inf))


def _generalised_pareto(
    above: Float[np.ndarray, "... t"],
) -> tuple[Float[np.ndarray, "... 1"], Float[np.ndarray, "... 1"]]:
    """Shape and scale of what is above the cutoff, in ascending order."""
    size = above.shape[-1]
    points = 30 + int(size**0.5)
    grid = 1 - np.sqrt(points / (np.arange(points) + 0.5))
    quartile = above[..., int(size / 4 + 0.5) - 1, None]
    b = grid / (3 * quartile) + 1 / above[..., -1:]
    k = np.stack([_mean_log(each, above) for each in np.moveaxis(b, -1, 0)], axis=-1)
    likelihood = size * (np.log(-b / k) - k - 1)
    mean_b = np.sum(b * softmax(likelihood, axis=-1), axis=-1)
    k_at_mean = _mean_log(mean_b, above)
    scale = -k_at_mean / mean_b
    shape = (size * k_at_mean + PRIOR_WEIGHTS * PRIOR_SHAPE) / (size + PRIOR_WEIGHTS)
    return shape[..., None], scale[..., None]


def _mean_log(b: np.ndarray, above: np.ndarray) -> np.ndarray:
    return np.mean(np.log1p(-b[..., None] * above), axis=-1)
