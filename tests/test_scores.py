"""Scores against scikit-learn, scipy or the definition; seeds are fixed, results deterministic."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm
from sklearn import metrics

from nghvi import scores

RNG = np.random.default_rng(0)
Y, PREDICTED = RNG.normal(size=50), RNG.normal(size=50)
LABELS, PROBABILITY = RNG.integers(0, 2, 50), RNG.random(50)


def test_point_scores():
    assert scores.r2(Y, PREDICTED) == pytest.approx(metrics.r2_score(Y, PREDICTED))
    assert scores.rmse(Y, PREDICTED) == pytest.approx(metrics.root_mean_squared_error(Y, PREDICTED))


@pytest.mark.parametrize("probability", [PROBABILITY, 0 * PROBABILITY, 0 * PROBABILITY + 1])
@pytest.mark.parametrize("labels", [LABELS, 0 * LABELS])
def test_class_scores(labels, probability):
    """They also agree if nothing is predicted or nothing is positive."""
    predicted = (probability > 0.5).astype(int)
    for ours, theirs in [
        (scores.precision, metrics.precision_score),
        (scores.recall, metrics.recall_score),
        (scores.f1, metrics.f1_score),
    ]:
        assert ours(labels, probability) == pytest.approx(
            theirs(labels, predicted, zero_division=0)
        )
    wrong = scores.misclassification_rate(labels, probability)
    assert wrong == pytest.approx(1 - metrics.accuracy_score(labels, predicted))


def test_cross_entropy_is_the_log_loss_and_stays_finite():
    assert scores.pce(LABELS, PROBABILITY) == pytest.approx(metrics.log_loss(LABELS, PROBABILITY))
    assert scores.pce(np.array([1]), np.array([0.0])) == pytest.approx(-np.log(scores.CLIP))


def test_log_score_averages_densities_not_their_logarithms():
    density = RNG.random((7, 5))
    expected = np.mean(np.log(density.mean(axis=0)))
    assert scores.log_score(np.log(density)) == pytest.approx(expected)
    assert np.isfinite(scores.log_score(np.full((3, 2), -1e4)))  # exp(-1e4) is 0


def test_crps_of_a_sample_is_that_of_its_distribution_function():
    draws = RNG.normal(size=(9, 3))
    y = np.array([-2.0, 0.1, 3.0])
    gaps = np.abs(draws[:, None] - draws[None])
    expected = np.mean(np.abs(draws - y).mean(axis=0) - 0.5 * gaps.mean(axis=(0, 1)))
    assert scores.crps(y, draws) == pytest.approx(expected)


def test_crps_against_the_integral():
    """20,000 evenly spread normal quantiles: their discretisation error is below 1e-3."""
    draws = 1 + 2 * norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    for y in (-3.0, 1.0, 2.5):
        below = quad(lambda t: norm.cdf(t, 1, 2) ** 2, -30, y)[0]
        above = quad(lambda t: norm.sf(t, 1, 2) ** 2, y, 30)[0]
        assert scores.crps(np.array([y]), draws[:, None]) == pytest.approx(below + above, abs=1e-3)


def test_coverage_counts_the_ends_as_inside():
    y = np.array([0.0, 1.0, 2.0, 3.0])
    assert scores.coverage(y, np.array([0, 0, 0, 0]), np.array([0, 0.5, 2, 9])) == 0.75
