"""Pareto smoothed weights against those of arviz-stats, and where there is no tail."""

import numpy as np
import pytest
from arviz_stats.base import array_stats

from nghvi.recipes.pareto import pareto_smoothed


@pytest.mark.parametrize("draws", [30, 225, 1000])
def test_weights_and_shapes_are_those_of_arviz(draws):
    rng = np.random.default_rng(draws)
    log_ratio = np.linspace(0.01, 4, 12)[:, None] * rng.standard_t(3, size=(12, draws))
    log_weight, shape = pareto_smoothed(log_ratio)
    expected, expected_shape = array_stats.psislw(-log_ratio)
    np.testing.assert_allclose(log_weight, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(shape, expected_shape, rtol=0, atol=1e-12)


def test_the_shape_is_that_of_the_tail():
    """Exponentials of exponential variables with mean k have Pareto tails of shape k, which 948
    weights tell with sds of (1 + k) / sqrt(948): three are allowed."""
    rng = np.random.default_rng(0)
    k = np.array([0.2, 0.5, 0.9])
    _, shape = pareto_smoothed(k[:, None] * rng.exponential(size=(3, 100_000)))
    np.testing.assert_array_less(np.abs(shape - k), 3 * (1 + k) / np.sqrt(948))


def test_weights_without_a_tail_stay():
    equal, astray = np.full(100, -3.0), np.where(np.arange(100) == 7, 0.0, -1e6)
    log_weight, shape = pareto_smoothed(np.stack([equal, astray]))
    np.testing.assert_allclose(np.exp(log_weight), [np.full(100, 0.01), astray == 0], atol=1e-12)
    np.testing.assert_array_equal(shape, [0, np.inf])
    with pytest.raises(ValueError, match="24 draws have no tail"):
        pareto_smoothed(np.arange(24.0))
