"""A mixture of Gaussians: its draws, density, moments and ELBO."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from nghvi._core.draws import flat_normal
from nghvi.families import Factor, FactorGaussian, Mixture

CENTRES = np.array([[0.0, 3.0], [2.0, -1.0]])
SDS = np.array([[1.0, 0.5], [0.3, 2.0]])
DRAWS = 100_000


@pytest.fixture(scope="module")
def mixture():
    members = [
        Factor(rank=0).at(jnp.asarray(c), jnp.asarray(s)) for c, s in zip(CENTRES, SDS, strict=True)
    ]
    return Mixture(tuple(members))


@pytest.fixture(scope="module")
def draws(mixture):
    noise = flat_normal(jax.random.key(1), (DRAWS, mixture.noise_dim))
    return np.asarray(jax.vmap(mixture.transport)(noise))


def test_its_density_is_the_mean_of_the_members_densities(mixture, draws):
    some = draws[:50]
    each = [stats.norm(c, s).pdf(some).prod(axis=1) for c, s in zip(CENTRES, SDS, strict=True)]
    found = jax.vmap(mixture.log_density)(jnp.asarray(some))
    np.testing.assert_allclose(np.exp(found), np.mean(each, axis=0), rtol=1e-10)
    np.testing.assert_array_equal(mixture.member_of(jnp.asarray(some)), np.argmax(each, axis=0))


def test_its_draws_have_its_moments(mixture, draws):
    # 100,000 draws: bounds of five standard errors, so that one run in a million fails.
    covariance = np.asarray(mixture.covariance())
    error = 5 * np.sqrt(np.diag(covariance) / DRAWS)
    assert (np.abs(draws.mean(axis=0) - CENTRES.mean(axis=0)) < error).all()
    spread = 5 * np.sqrt(2 * np.outer(*2 * [np.diag(covariance)]) / DRAWS)
    assert (np.abs(np.cov(draws.T) - covariance) < spread).all()
    np.testing.assert_allclose(mixture.standard_deviation() ** 2, np.diag(covariance), rtol=1e-12)
    np.testing.assert_array_equal(mixture.centre, CENTRES[0])


def test_opposite_noise_takes_the_other_member(mixture):
    noise = jnp.asarray([0.3, 0.0, 0.0])
    np.testing.assert_array_equal(mixture.transport(noise), CENTRES[1])
    np.testing.assert_array_equal(mixture.transport(-noise), CENTRES[0])
    np.testing.assert_array_equal(mixture.transport(40 * noise), CENTRES[1])


def test_members_move_by_their_own_updates(mixture):
    update = jax.tree.map(jnp.ones_like, mixture)
    moved = mixture.retract(mixture.rescale(update, jnp.asarray([2.0, 3.0])))
    for member, start in zip(moved.members, mixture.members, strict=True):
        assert isinstance(member, FactorGaussian)
        np.testing.assert_allclose(member.mean, start.mean + jnp.asarray([2.0, 3.0]))
