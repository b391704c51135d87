"""The problems as a NumPyro model: the same priors, effects in non-centred form.

Left in NumPyro's default single precision, in which it is fastest.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import log_ndtr

from benchmarks import problems
from benchmarks.methods.base import Summary, from_draws
from benchmarks.problems import Problem


def arguments(problem: Problem) -> tuple[Array, ...]:
    """Design, its part with random coefficients, group codes and y, as arrays."""
    design = problem.design
    varying = design[:, list(problem.random)]
    return tuple(jnp.asarray(a) for a in (design, varying, problem.group, problem.y))


def mixed_model(response: str, num_groups: int, num_effects: int) -> Any:
    """The model as a function of :func:`arguments`."""

    def model(design: Array, varying: Array, group: Array, y: Array) -> None:
        coef_prior = dist.Normal(0.0, problems.COEF_SD).expand([design.shape[1]]).to_event(1)
        coef = numpyro.sample("coef", coef_prior)
        variance_prior = dist.InverseGamma(problems.VARIANCE_SHAPE, problems.VARIANCE_SCALE)
        standard = dist.Normal(0.0, 1.0).expand([num_groups, num_effects]).to_event(2)
        whitened = numpyro.sample("whitened", standard)
        if num_effects == 1:
            effects = jnp.sqrt(numpyro.sample("effect_variance", variance_prior)) * whitened
        else:
            root = jnp.sqrt(problems.WISHART_SCALE) * jnp.eye(num_effects)
            prior = dist.WishartCholesky(num_effects + 1.0, scale_tril=root)
            factor = numpyro.sample("precision_factor", prior)
            effects = solve_triangular(factor, whitened.T, lower=True, trans=1).T
        eta = design @ coef + jnp.sum(varying * effects[group], axis=1)
        if response == "gaussian":
            noise = jnp.sqrt(numpyro.sample("noise_variance", variance_prior))
            numpyro.sample("y", dist.Normal(eta, noise), obs=y)
        else:
            numpyro.factor("y", jnp.sum(log_ndtr((2 * y - 1) * eta)))

    return model


def summarise_draws(problem: Problem, draws: dict, **more: object) -> Summary:
    """Summary of draws of the model's sites."""
    if problem.num_effects == 1:
        variances = np.asarray(draws["effect_variance"])[:, None]
    else:
        factor = np.asarray(draws["precision_factor"], float)
        precision = factor @ factor.transpose(0, 2, 1)
        variances = np.linalg.inv(precision).diagonal(axis1=1, axis2=2)
    return from_draws(problem, draws["coef"], variances, draws.get("noise_variance"), **more)
