"""The Student-t family: its density, its quantiles, and posteriors that are exactly t."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import nghvi
from nghvi.families import MultivariateT
from nghvi.families.multivariate_t import MOST, _gamma
from nghvi.recipes.verdict import Status
from tests.core.test_fit import DATA, NormalMean
from tests.registry import cholesky_gaussian


@pytest.mark.parametrize("degrees", [2.5, 7.0, 120.0])
def test_density_is_that_of_the_multivariate_t(degrees):
    q = MultivariateT(degrees).closest(cholesky_gaussian(3))
    theta = np.random.default_rng(0).normal(size=(5, 3)) * 4
    scale = np.asarray(q.factor @ q.factor.T)
    exact = stats.multivariate_t(q.centre, scale, df=degrees).logpdf(theta)
    np.testing.assert_allclose(jax.vmap(q.log_density)(theta), exact, rtol=1e-10)
    np.testing.assert_allclose(q.covariance(), cholesky_gaussian(3).covariance(), rtol=1e-10)


of_many = jax.jit(jax.vmap(_gamma, (None, 0)))


@jax.jit
def along_both(shape, noise):
    """The quantiles, and their slope as shape and noise grow alike."""
    return jax.jvp(of_many, (shape, noise), (jnp.ones(()), jnp.ones_like(noise)))


@pytest.mark.parametrize("shape", [1.01, 1.5, 5.0, 100.0])
def test_quantiles_of_the_gamma_distribution_and_their_slopes(shape):
    noise = np.linspace(-7, 7, 29)
    lower = special.gammaincinv(shape, stats.norm.cdf(noise))
    upper = special.gammainccinv(shape, stats.norm.sf(noise))
    found, slope = along_both(jnp.asarray(shape), jnp.asarray(noise))
    np.testing.assert_allclose(found, np.where(noise < 0, lower, upper), rtol=1e-12)
    h, some = 1e-5, np.abs(noise) <= 3
    ahead, behind = (of_many(jnp.asarray(shape + s), jnp.asarray(noise + s)) for s in (h, -h))
    difference = (ahead - behind) / (2 * h)
    np.testing.assert_allclose(slope[some], difference[some], rtol=1e-6)


class Regression(nghvi.MarginalModel):
    """Coefficients with flat priors, the variance integrated out: exactly t, n - p degrees."""

    def init_params(self, key, data):
        return jnp.zeros(data[0].shape[1])

    def init_latents(self, key, params, data):
        return ()

    def sample_latents(self, key, params, latents, data):
        return ()

    def log_joint(self, params, latents, data):
        return self.log_marginal(params, data)

    def log_marginal(self, params, data):
        x, y = data
        return -0.5 * y.size * jnp.log(jnp.sum((y - x @ params) ** 2))


def test_a_posterior_that_is_t_is_found_exactly_where_the_gaussian_cannot():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(8), rng.normal(size=(8, 2))])
    y = x @ [1.0, 2.0, -1.0] + rng.normal(size=8)
    model, data = Regression(), (jnp.asarray(x), jnp.asarray(y))
    found = nghvi.infer(model, data, family="multivariate-t")
    coef, degrees = np.linalg.lstsq(x, y, rcond=None)[0], 8 - 3
    scale = np.sum((y - x @ coef) ** 2) / degrees * np.linalg.inv(x.T @ x)
    assert found.verdict.status is Status.SETTLED
    assert float(found.q.degrees) == pytest.approx(degrees, rel=1e-6)
    np.testing.assert_allclose(found.q.centre, coef, rtol=1e-6)
    np.testing.assert_allclose(found.q.factor @ found.q.factor.T, scale, rtol=1e-6)
    at_mode = float(model.log_marginal(jnp.asarray(coef), data))
    evidence = at_mode - stats.multivariate_t(coef, scale, df=degrees).logpdf(coef)
    assert found.elbo == pytest.approx(evidence, abs=1e-8)
    gaussian = nghvi.infer(model, data, family="full", importance=False)
    assert gaussian.elbo + 0.05 < found.elbo
    assert found.k_hat < gaussian.k_hat
    np.testing.assert_allclose(
        found.draws(40_000).std(0), np.sqrt(np.diag(scale) * 5 / 3), rtol=0.1
    )


def test_a_gaussian_posterior_gets_many_degrees_and_loses_nothing():
    gaussian = nghvi.infer(NormalMean(), DATA)
    found = nghvi.infer(NormalMean(), DATA, family=MultivariateT(degrees=5.0))
    assert 20 < float(found.q.degrees) <= MOST
    assert found.elbo == pytest.approx(gaussian.elbo, abs=0.015)  # of which noise: 3 x 0.003
    np.testing.assert_allclose(found.q.centre, gaussian.q.centre, atol=0.02)
