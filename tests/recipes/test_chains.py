"""Chains move draws to where the posterior is, and only there.

False alarms: the 960 draws of 40 chains are worth some 400 independent ones or more; the
tolerances are four of their standard errors, so that a test fails by chance in one of 10,000 seeds.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import nghvi
from nghvi.estimators.tables import Draws, about_draws
from nghvi.families import Factor, Mixture
from nghvi.recipes.chains import CHAINS, moved_pool

KEY = jax.random.key(3)
SD = np.array([1.0, 1e3, 1e-4])
COVARIANCE = np.outer(SD, SD) * (0.2 * np.eye(3) + 0.8)


class Density(nghvi.MarginalModel):
    """A model of three parameters, or one, whose density is given as a function."""

    def init_params(self, key, data):
        return jnp.zeros(self.dim)

    def init_latents(self, key, params, data):
        return ()

    def sample_latents(self, key, params, latents, data):
        return ()

    def log_joint(self, params, latents, data):
        return self.log_marginal(params, data)

    def evaluation_size(self, data):
        return 1


class Correlated(Density):
    """A normal distribution in coordinates of very different units."""

    dim = 3

    def log_marginal(self, params, data):
        return -0.5 * params @ jnp.linalg.solve(COVARIANCE, params)


class Hills(Density):
    """Seven tenths around zero, three tenths around three; nothing below minus two."""

    dim = 1

    def log_marginal(self, params, data):
        value = jnp.logaddexp(
            jnp.log(0.7) - 0.5 * params[0] ** 2, jnp.log(0.3) - 0.5 * (params[0] - 3) ** 2
        )
        return jnp.where(params[0] < -2, jnp.nan, value)


def test_a_narrow_gaussian_beside_the_posterior_becomes_the_posterior():
    q = Factor(rank=0).at(jnp.asarray(0.5 * SD), jnp.asarray(0.4 * SD))
    pool = moved_pool(KEY, q, Correlated(), ())
    assert (pool.chains, pool.member) == (CHAINS, None)
    assert pool.weight.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(pool.theta.mean(axis=0) / SD, 0.0, atol=0.2)
    np.testing.assert_allclose(pool.theta.std(axis=0) / SD, 1.0, atol=0.15)
    np.testing.assert_allclose(np.corrcoef(pool.theta.T)[np.triu_indices(3, 1)], 0.8, atol=0.1)


def test_a_mode_that_q_has_not_found_gets_its_share():
    q = Factor(rank=0).at(jnp.array([3.0]), jnp.array([0.8]))
    theta = moved_pool(KEY, q, Hills(), ()).theta[:, 0]
    heights = {0: 0.7, 3: 0.3}
    below, whole = (
        sum(height * (norm.cdf(x, mode) - norm.cdf(-2, mode)) for mode, height in heights.items())
        for x in (1.5, np.inf)
    )
    assert theta.min() > -2
    assert np.mean(theta < 1.5) == pytest.approx(below / whole, abs=0.1)


def test_draws_remember_the_start_that_their_chain_came_from():
    parts = [Factor(rank=0).at(jnp.array([at]), jnp.array([0.1])) for at in (0.0, 3.0)]
    pool = moved_pool(KEY, Mixture(tuple(parts)), Hills(), ())
    shares = pool.member.reshape(-1, CHAINS)
    assert (shares == shares[0]).all()
    assert 0.2 < shares.mean() < 0.8


def test_the_sentence_of_a_verdict_names_the_chains():
    said = about_draws(Draws(2.0, np.nan, False, 100.0, network=True, chains=40))
    assert said == "Draws are moved towards the exact posterior by 40 Hamiltonian chains."


@pytest.fixture(scope="module")
def products():
    """Two fits of a product by four units, whose climbs end in other modes than the best one."""
    rng = np.random.default_rng(1)
    x, group = rng.normal(size=(250, 2)), np.repeat(np.arange(25), 10)
    y = x[:, 0] * x[:, 1] + 0.5 * rng.normal(size=25)[group] + 0.5 * rng.normal(size=250)
    table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "group": group})
    fits = [
        nghvi.MixedRegressor("group", hidden=(4,), random_state=s).fit(table, y) for s in (1, 2)
    ]
    return table, y, fits


def test_two_seeds_give_one_answer(products):
    table, _, fits = products
    assert all(fit.posterior_.inference.pool.chains == CHAINS for fit in fits)
    assert all("40 Hamiltonian chains" in fit.verdict_ for fit in fits)
    means = [fit.predict(table, draws=1000) for fit in fits]
    lower, upper = fits[0].predict_interval(table, level=0.9, draws=1000)
    assert np.abs(means[0] - means[1]).mean() < 0.1 * np.mean(upper - lower) / 2 / norm.ppf(0.95)


def test_a_fit_of_few_steps_keeps_the_draws_of_q(products):
    table, y, _ = products
    fit = nghvi.MixedRegressor("group", hidden=(4,), steps=100, n_starts=1).fit(table, y)
    assert fit.posterior_.inference.pool.chains == 0
