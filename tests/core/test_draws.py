"""The noise behind a batch of draws: shapes, and the moments each scheme promises exactly."""

import jax
import numpy as np
import pytest

from nghvi._core.draws import AntitheticDraws, IndependentDraws, OrthogonalDraws


def draw(scheme, dim, seed=0):
    noise = np.asarray(jax.jit(lambda key: scheme(key, dim))(jax.random.key(seed)))
    assert noise.shape == (scheme.count(dim), dim)
    return noise


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_orthogonal_draws_have_the_moments_of_the_standard_normal(dim):
    noise = draw(OrthogonalDraws(), dim)
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=1e-14)
    np.testing.assert_allclose(noise.T @ noise / len(noise), np.eye(dim), atol=1e-13)
    third = np.einsum("si,sj,sk->ijk", noise, noise, noise) / len(noise)
    np.testing.assert_allclose(third, 0, atol=1e-13)
    np.testing.assert_allclose(np.mean(np.sum(noise**2, axis=1) ** 2), dim * (dim + 2), rtol=1e-13)


def test_orthogonal_draws_are_turned_anew_by_every_key():
    first, second = (draw(OrthogonalDraws(), 5, seed) for seed in (0, 1))
    assert np.abs(first - second).max() > 0.1
    np.testing.assert_array_equal(first, draw(OrthogonalDraws(), 5, 0))


@pytest.mark.parametrize(("pairs", "dim"), [(2, 5), (5, 5), (9, 5), (4, 1)])
def test_antithetic_draws_are_orthogonal_pairs_of_length_root_dim(pairs, dim):
    noise = draw(AntitheticDraws(pairs), dim)
    half = noise[: len(noise) // 2]
    np.testing.assert_array_equal(noise[len(half) :], -half)
    np.testing.assert_allclose(half @ half.T, dim * np.eye(len(half)), atol=1e-13)
    if pairs >= dim:
        np.testing.assert_allclose(noise.T @ noise / len(noise), np.eye(dim), atol=1e-13)


def test_independent_draws_have_the_requested_shape_and_standard_normal_moments():
    assert draw(IndependentDraws(), 4).shape == (1, 4)
    noise = draw(IndependentDraws(5000), 4)
    # 4 means and 4 variances within 4.5 standard errors: false alarm rate 6e-5.
    assert np.abs(noise.mean(axis=0)).max() < 4.5 / np.sqrt(5000)
    assert np.abs(noise.var(axis=0) - 1).max() < 4.5 * np.sqrt(2 / 5000)
