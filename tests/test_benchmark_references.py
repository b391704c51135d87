"""The referees of the benchmarks are held against oracles of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import longitudinal
from benchmarks.longitudinal_reference import log_huang_wand, log_likelihood_by_grid, root
from nghvi._linalg.packed import pack_lower
from nghvi.data import Rows
from nghvi.models.mixed import MixedModel, MixedParams
from nghvi.networks import Identity
from nghvi.priors import HuangWand
from nghvi.responses import RESPONSES


def log_cholesky_of_precision(coordinates):
    factor = root(coordinates[:2], coordinates[2])
    lower = jnp.linalg.cholesky(jnp.linalg.inv(factor @ factor.T))
    return pack_lower(lower.at[np.diag_indices(2)].set(jnp.log(jnp.diag(lower))))


@pytest.mark.parametrize("prior", [HuangWand(), HuangWand(3.0, 1.2)])
def test_the_prior_of_the_nuts_references_is_the_library_s(prior):
    for point in np.random.default_rng(0).normal(size=(3, 3)):
        free = log_cholesky_of_precision(jnp.asarray(point))
        jacobian = jax.jacobian(log_cholesky_of_precision)(jnp.asarray(point))
        expected = prior.log_density(free, 2) + jnp.linalg.slogdet(jacobian)[1]
        ours = log_huang_wand(jnp.asarray(point[:2]), jnp.asarray(point[2]), prior)
        np.testing.assert_allclose(ours, expected, rtol=1e-10)


@pytest.mark.parametrize("response", longitudinal.LINKS)
def test_the_grid_of_the_references_integrates_like_quadrature_where_that_is_easy(response):
    problem = longitudinal.simulate(response, "small", 1)
    coef, log_sd, fisher = jnp.array([-1.0, 0.3, 0.2, -0.1]), jnp.log(jnp.array([0.8, 0.5])), 0.3
    ours = log_likelihood_by_grid(problem, coef, log_sd, jnp.asarray(fisher))
    free = log_cholesky_of_precision(jnp.array([*log_sd, fisher]))
    model = MixedModel(
        Identity(4), RESPONSES[response](), longitudinal.PRIORS, problem.random, num_nodes=15
    )
    rows = Rows.from_arrays(problem.design, problem.y, problem.group, problem.num_groups)
    params = MixedParams((), coef, jnp.zeros(0), free)
    expected = model.log_marginal(params, rows) - model.log_prior(params)
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_most_persons_of_the_longitudinal_data_are_all_0_or_all_1():
    for response in longitudinal.LINKS:
        for size in longitudinal.SIZES:
            for seed in longitudinal.SEEDS:
                problem = longitudinal.simulate(response, size, seed)
                assert longitudinal.share_constant(problem) > 0.5
