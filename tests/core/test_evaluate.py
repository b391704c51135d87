"""Log densities of many draws do not depend on how the draws are divided."""

import numpy as np
import pytest

from nghvi._core import evaluate as evaluation
from nghvi._core.evaluate import log_targets
from nghvi.recipes import smooth
from tests.core.test_fit import DATA, NormalMean


@pytest.mark.parametrize("number", [1, 15, 16, 501])
@pytest.mark.parametrize("batch", [None, 1])
def test_log_targets_in_any_number_of_calls(number, batch, monkeypatch):
    theta = np.random.default_rng(0).normal(size=(number, 4))
    theta[-1, 0] = np.nan
    squares = np.sum((np.asarray(DATA) - theta) ** 2, 1) / 4 + np.sum(theta**2, 1) / 8
    expected = np.where(np.isnan(squares), -np.inf, -squares)
    for most in (evaluation.AT_ONCE, 300):
        monkeypatch.setattr(evaluation, "AT_ONCE", most)
        found = log_targets(NormalMean(), DATA, theta, batch)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_scores_in_any_number_of_calls(monkeypatch):
    theta = np.random.default_rng(0).normal(size=(19, 4))
    for most in (evaluation.AT_ONCE, 12):
        monkeypatch.setattr(evaluation, "AT_ONCE", most)
        _, scores = evaluation.values_and_scores(NormalMean(), DATA, theta)
        np.testing.assert_allclose(scores, (np.asarray(DATA) - theta) / 2 - theta / 4, rtol=1e-12)
    curvature = smooth.negative_hessian(NormalMean(), DATA, theta[0], np.eye(4))
    np.testing.assert_allclose(curvature, 0.75 * np.eye(4), atol=1e-8)
