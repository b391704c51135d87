"""What the priors of a model mean for the numbers that people read.

Priors are stated on the fitted scale and for standard deviations, inverse covariances or
logarithms. Draws from them, mapped to the raw scale as the posterior's draws are, say what
they mean in the units of the data.
"""

import math

import jax
import numpy as np

from nghvi.models.mixed import MixedParams
from nghvi.networks import Identity
from nghvi.posterior.effects import effects_of
from nghvi.posterior.mixed_posterior import MixedPosterior, params_at

DRAWS = 2**16
QUANTILES = {"q2.5": 0.025, "q50": 0.5, "q97.5": 0.975}


def draw_prior(posterior: MixedPosterior, number: int, seed: int) -> MixedParams:
    """Parameters drawn from the prior on the fitted scale; weights of a network stay as fitted."""
    start = params_at(posterior.model, posterior.data, posterior.inference.q.centre)
    return posterior.model.sample_prior(np.random.default_rng(seed), number, start)


def quantiles_of(values: np.ndarray) -> dict[str, float]:
    """Quantiles of draws by name."""
    return {label: float(np.quantile(values, level)) for label, level in QUANTILES.items()}


def stated_priors(posterior: MixedPosterior) -> dict[str, str]:
    """The prior of every reported parameter in words, by its name."""
    model, (features, effects, *_) = posterior.model, posterior.names
    sds = np.broadcast_to(np.asarray(model.priors.coef_sd, float), len(features))
    said = {name: f"N(0, {sd:.4g}^2)" for name, sd in zip(features, sds, strict=True)}
    if model.response.takes_intercept:  # which is reported by the response
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
    """The prior of a weight of each layer of a network: statement and quantiles."""
    priors, rng = posterior.model.priors, np.random.default_rng(0)
    rows: dict[str, dict[str, str | float]] = {}
    if not isinstance(posterior.model.trunk, Identity):
        for layer, weights in enumerate(jax.tree.leaves(params.weights)):
            standard = rng.standard_normal(len(weights))
            if priors.weight_sd is not None:
                said, sd = f"N(0, {priors.weight_sd:.4g}^2)", np.asarray(priors.weight_sd)
            else:
                # One draw has shape weights.shape[1:]; its first axis are the layer's outputs.
                shape = weights.shape[1:]
                fan_in = math.prod(shape) // shape[0] if len(shape) > 1 else 1
                said = f"N(0, s^2 / {fan_in}), log s ~ N(0, 1)"
                sd = np.exp(params.weight_scale[:, layer]) / math.sqrt(fan_in)
            name = f"weights[layer {layer + 1}]"
            rows[name] = {"prior": said, **quantiles_of(sd * standard)}
    return rows
