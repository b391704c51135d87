"""What the priors of a model mean, and whether they matter.

**What they mean.** Priors are stated on the fitted scale, for standard deviations, inverse
covariances or logarithms. Draws from them, mapped to the raw scale like draws of the posterior,
show what they mean in the units of the data.

**Whether they matter.** Power scaling of prior and likelihood (Kallioinen et al., 2024): with
p(theta | y) proportional to p(theta)^a p(y | theta)^b, how fast does the posterior of each
parameter change with a, and with b, at a = b = 1? Instead of sampling again, draws are reweighted
by p(theta)^(a-1) or p(y | theta)^(b-1). The change is the cumulative Jensen-Shannon distance for a
doubling of a (or b); it is 0.05 for a normal distribution whose mean moves by a quarter of its sd.

Random effects are integrated out: their distribution given Omega belongs to the likelihood.
"""

import math
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from nghvi._core.evaluate import log_targets
from nghvi._core.variational import Variational
from nghvi._programs import program
from nghvi._typing import Data
from nghvi.models.mixed import MixedModel
from nghvi.models.parameters import MixedParams
from nghvi.posterior.effects import effects_of
from nghvi.posterior.mixed_posterior import MixedPosterior, params_at

PRIOR_DRAWS = 2**16
"""How many draws the quantiles of a prior come from; they are cheap."""
QUANTILES = {"q2.5": 0.025, "q50": 0.5, "q97.5": 0.975}


def draw_prior(posterior: MixedPosterior, number: int, seed: int) -> MixedParams:
    """Draw parameters from the prior, fitted scale; the weights of a network stay as fitted."""
    start = params_at(posterior.model, posterior.data, posterior.inference.q.centre)
    return posterior.model.sample_prior(np.random.default_rng(seed), number, start)


def quantiles_of(values: np.ndarray) -> dict[str, float]:
    """Return the quantiles of draws by name."""
    return {label: float(np.quantile(values, level)) for label, level in QUANTILES.items()}


def stated_priors(posterior: MixedPosterior) -> dict[str, str]:
    """Return the prior of every reported parameter as text, by its name."""
    model, (features, effects, *_) = posterior.model, posterior.names
    sds = np.broadcast_to(np.asarray(model.priors.coef_sd, float), len(features))
    said = {name: f"N(0, {sd:.4g}^2)" for name, sd in zip(features, sds, strict=True)}
    if model.response.takes_intercept:  # the response reports it then
        said.pop(features[0])
    said |= model.response.stated_priors(model.priors)
    for i, name in enumerate(effects):
        said[f"effects_sd[{name}]"] = model.effects_prior.stated(i)
    pairs = zip(effects_of(model).priors, posterior.names.blocks, strict=True)
    prior_of = [prior for prior, block in pairs for _ in effects[block]]
    for name, (i, _) in posterior.names.correlations.items():
        said[name] = prior_of[i].stated(None)
    return said


def weight_rows(
    posterior: MixedPosterior, params: MixedParams
) -> dict[str, dict[str, str | float]]:
    """Return the prior of a weight in each layer of a network, as text and by quantiles."""
    priors, rng = posterior.model.priors, np.random.default_rng(0)
    rows: dict[str, dict[str, str | float]] = {}
    trunk = posterior.model.trunk
    if trunk.linear:
        return rows
    for layer, weights in enumerate(jax.tree.leaves(params.weights)):
        # One draw has shape weights.shape[1:], whose first axis is the layer's outputs.
        shape = weights.shape[1:]
        fan_in = math.prod(shape) // shape[0] if len(shape) > 1 else 1
        name, sd = f"weights[layer {layer + 1}]", np.asarray(1 / math.sqrt(fan_in))
        if priors.weight_sd is not None:
            said, sd = f"N(0, {priors.weight_sd:.4g}^2)", np.asarray(priors.weight_sd)
        elif not trunk.sized:
            said = f"N(0, s^2 / {fan_in}), log s ~ N(0, 1)"
            sd = np.exp(params.weight_scale[:, layer]) * sd
        elif len(shape) > 1:
            said = f"N(0, 1 / {fan_in})"
        else:
            name, said = "size of the network", "N(0, 1)"
        rows[name] = {"prior": said, **quantiles_of(sd * rng.standard_normal(len(weights)))}
    return rows


THRESHOLD = 0.05
"""Sensitivity from which on a prior, or the likelihood, is said to matter."""
POWERS = (0.99, 1.01)
"""Powers between which the change of a posterior is measured."""
DRAWS = 4000
"""How many draws of the posterior are reweighted."""


class Powers(NamedTuple):
    """Equally weighted draws with the logs of the two densities that are raised to powers."""

    theta: Float[np.ndarray, "s m"]
    log_prior: Float[np.ndarray, " s"]
    """In the coordinates that priors are stated in: powers of a density depend on coordinates."""
    log_likelihood: Float[np.ndarray, " s"]


def powers(posterior: MixedPosterior, draws: int = DRAWS, seed: int = 0) -> Powers:
    """Draw from the posterior; return log prior and log likelihood up to constants as well."""
    inference = posterior.inference
    theta = inference.pool.resample(draws, np.random.default_rng(seed))
    found = _log_priors(posterior.model, posterior.data, jax.device_put(theta))
    log_prior, log_volume = map(np.asarray, found)
    if inference.pool.corrected or not inference.drawn_from_q:  # then the density is cheap
        log_posterior = log_targets(posterior.model, posterior.data, theta)
    else:
        log_posterior = np.asarray(log_density(inference.q, jax.device_put(theta)))
    return Powers(theta, log_prior - log_volume, log_posterior - log_prior)


@program
def _log_priors(model: MixedModel, data: Data, theta: Array) -> tuple[Array, Array]:
    def both(t: Array) -> tuple[Array, Array]:
        params = params_at(model, data, t)
        return model.log_prior(params), model.log_volume(params)

    return jax.lax.map(both, theta)


@program
def log_density(q: Variational, theta: Array) -> Array:
    """Return log q at every row of theta."""
    return jax.lax.map(q.log_density, theta)


def power_weights(log_density: Float[np.ndarray, " s"], power: float) -> Float[np.ndarray, " s"]:
    """Return normalised weights that raise a density to ``power``, the largest ones smoothed."""
    if np.ptp(log_density) < 1e-8:  # a flat density: nothing changes, and there is no tail
        return np.full(len(log_density), 1 / len(log_density))
    from arviz_stats.base import array_stats  # it loads matplotlib and xarray

    log_weight = array_stats.power_scale_lw(log_density - log_density.max(), alpha=power)
    weight = np.exp(log_weight - log_weight.max())
    return weight / weight.sum()


def sensitivity(values: Float[np.ndarray, " s"], log_density: Float[np.ndarray, " s"]) -> float:
    """Return how fast the distribution of ``values`` changes with the power of a density."""
    if np.ptp(values) == 0:
        return 0.0
    from arviz_stats.base import array_stats

    lower, upper = (power_weights(log_density, power) for power in POWERS)
    found = array_stats.power_scale_sense(
        values[None], lower[None], upper[None], *POWERS, chain_axis=0, draw_axis=1
    )
    return float(found)


def diagnosis(prior: float, likelihood: float) -> str:
    """Return what the two sensitivities mean, in words."""
    if not np.isfinite(prior):
        return "unknown"
    if prior < THRESHOLD:
        return "the prior hardly matters"
    if likelihood < THRESHOLD:
        return "the prior decides: the data say little"
    return "the prior matters, and may contradict the data"
