"""Bring your own model: tobit regression, a latent variable model that is not a mixed model.

    y*_i ~ N(x_i' beta, v),   y_i = max(y*_i, 0)

The latent variables are the y* behind the zeros. Only public names of nghvi are used. Run it:

    python docs/extending/tobit.py
"""

import pathlib
import tempfile
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


@nghvi.storage.register  # a file holds its name
class Data(NamedTuple):
    """Inputs and responses censored from below at zero."""

    x: jax.Array
    y: jax.Array


@nghvi.storage.register
class Tobit(nghvi.LatentModel):
    """State log g(theta, z) and a way to draw z given theta: that is all that a fit needs."""

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

    def quantities(self, params):
        """What a summary shows: a standard deviation says more than the log of a variance."""
        return {"beta": params.beta, "sd": jnp.exp(0.5 * params.log_variance)}

    def predictive(self, key, params, latents, new):
        """A response at each row of new inputs."""
        sd = jnp.exp(0.5 * params.log_variance)
        return jnp.maximum(new @ params.beta + sd * jax.random.normal(key, new.shape[:1]), 0)


@nghvi.storage.register
class IntegratedTobit(Tobit, nghvi.MarginalModel):
    """The same model with its latent variables integrated out: faster, no sampling noise."""

    def log_marginal(self, params, data):
        """log p(y | theta) + log p(theta)."""
        mean, sd = data.x @ params.beta, jnp.exp(0.5 * params.log_variance)
        each = jnp.where(data.y > 0, norm.logpdf(data.y, mean, sd), norm.logcdf(-mean / sd))
        prior = jnp.sum(norm.logpdf(params.beta, 0, 10)) + norm.logpdf(params.log_variance, 0, 2)
        return jnp.sum(each) + prior


def simulate(n=300, seed=0):
    """Three inputs, about 40 % of the responses censored."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, 2))])
    latent = x @ np.array([0.3, 1.0, -0.7]) + 0.8 * rng.normal(size=n)
    return Data(jnp.asarray(x), jnp.asarray(np.maximum(latent, 0)))


def main(directory):
    """Fit, look, predict, save, load."""
    data = simulate()
    sampled = nghvi.Posterior(nghvi.infer(Tobit(), data, seed=1))
    print(sampled.inference.verdict)
    print(sampled.summary())
    # One move per draw, since sample_latents is exact here.
    print(sampled.latent_summary(moves=1).loc[["latents[0]", "latents[1]"]])

    integrated = nghvi.Posterior(nghvi.infer(IntegratedTobit(), data, seed=1))
    print(integrated.inference.verdict)
    print(integrated.summary(level=0.95))
    new = jnp.array([[1.0, 0.0, 0.0], [1.0, 1.0, -1.0]])
    print(integrated.predict(new))

    path = pathlib.Path(directory) / "tobit.nghvi"
    integrated.save(path)
    print(nghvi.load(path).predict(new, level=0.5))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(directory)
