"""Log densities of many draws do not depend on how the draws are divided."""

import threading

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


@pytest.mark.parametrize("most", [evaluation.AT_ONCE, 24])
def test_several_cores_return_the_bits_of_one(most, monkeypatch):
    theta = np.random.default_rng(0).normal(size=(19, 4))
    monkeypatch.setattr(evaluation, "AT_ONCE", most)
    monkeypatch.setattr(evaluation, "WORTH_A_THREAD", 0)
    found, used = [], set()
    wrapped = evaluation._log_targets

    def noted(*arguments):
        used.add(threading.get_ident())
        return wrapped(*arguments)

    monkeypatch.setattr(evaluation, "_log_targets", noted)
    for cores in (1, 3):
        monkeypatch.setattr(evaluation, "num_cores", lambda cores=cores: cores)
        values = log_targets(NormalMean(), DATA, theta, 1)
        found.append((values, *evaluation.values_and_scores(NormalMean(), DATA, theta)))
    assert used - {threading.get_ident()}
    for one, several in zip(*found, strict=True):
        np.testing.assert_array_equal(one, several)
