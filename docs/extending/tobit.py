"""Bring your own model: tobit regression, a latent variable model that is no mixed model.

    y*_i ~ N(x_i' beta, v),   y_i = max(y*_i, 0)

The latent variables are the y* behind the zeros. Only public names of nghvi are used. Run it:

    python docs/extending/tobit.py
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

import nghvi


class Params(NamedTuple):
    """Everything is unconstrained: the variance enters as its logarithm."""

    beta: jax.Array
    log_variance: jax.Array


class Data(NamedTuple):
    """Inputs and responses censored from below at zero."""

    x: jax.Array
    y: jax.Array


class Tobit(nghvi.LatentModel):
    """State log g(theta, z) and a way to draw z given theta: that is all."""

    def init_params(self, key, data):
        """Start at zero coefficients and the raw variance."""
        return Params(jnp.zeros(data.x.shape[1]), jnp.log(jnp.var(data.y)))

    def init_latents(self, key, params, data):
        """Start with every censored y* at its bound."""
        return jnp.zeros_like(data.y)

    def log_joint(self, params, latents, data):
        """log p(y, y* | theta) + log p(theta); beta ~ N(0, 100), log v ~ N(0, 4)."""
        full = jnp.where(data.y > 0, data.y, latents)
        sd = jnp.exp(0.5 * params.log_variance)
        fit = jnp.sum(norm.logpdf(full, data.x @ params.beta, sd))
        prior = jnp.sum(norm.logpdf(params.beta, 0, 10)) + norm.logpdf(params.log_variance, 0, 2)
        return fit + prior

    def sample_latents(self, key, params, latents, data):
        """An exact draw: y* is normal, truncated to the side of zero it was censored to."""
        mean, sd = data.x @ params.beta, jnp.exp(0.5 * params.log_variance)
        return mean + sd * jax.random.truncated_normal(key, -jnp.inf, -mean / sd)


class IntegratedTobit(Tobit, nghvi.MarginalModel):
    """The same model with its latent variables integrated out: faster, no sampling noise."""

    def log_marginal(self, params, data):
        """log p(y | theta) + log p(theta)."""
        mean, sd = data.x @ params.beta, jnp.exp(0.5 * params.log_variance)
        each = jnp.where(data.y > 0, norm.logpdf(data.y, mean, sd), norm.logcdf(-mean / sd))
        prior = jnp.sum(norm.logpdf(params.beta, 0, 10)) + norm.logpdf(params.log_variance, 0, 2)
        return jnp.sum(each) + prior


def simulate(n=500, seed=0):
    """Three inputs, about 40 % of the responses censored."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, 2))])
    latent = x @ np.array([0.3, 1.0, -0.7]) + 0.8 * rng.normal(size=n)
    return Data(jnp.asarray(x), jnp.asarray(np.maximum(latent, 0)))


if __name__ == "__main__":
    data = simulate()
    for model in (Tobit(), IntegratedTobit()):
        found = nghvi.infer(model, data, seed=1)
        draws = found.draws(4000)
        print(type(model).__name__)
        print(" ", found.verdict)
        print("  beta mean", np.round(draws.beta.mean(0), 3), "sd", np.round(draws.beta.std(0), 3))
        print(f"  log v mean {draws.log_variance.mean():.3f} sd {draws.log_variance.std():.3f}")
