"""Power scaling agrees with conjugate posteriors, and tells good priors from bad ones."""

import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi.posterior.prior_influence import (
    THRESHOLD,
    diagnosis,
    power_weights,
    powers,
    sensitivity,
)
from nghvi.priors import InverseGamma, Priors


@pytest.mark.parametrize("power", [0.8, 0.99, 1.01, 1.25])
def test_weighted_draws_have_the_means_of_the_scaled_posterior(power):
    """N(m, 1 / p) prior to the power a: precision a p. Likelihood to the power b: precision b n."""
    rng = np.random.default_rng(0)
    prior_mean, prior_precision, data_mean, data_precision = 1.5, 2.0, -1.0, 3.0

    def mean(a, b):
        total = a * prior_precision + b * data_precision
        return (a * prior_precision * prior_mean + b * data_precision * data_mean) / total

    half = rng.standard_normal(20_000) / np.sqrt(prior_precision + data_precision)
    theta = mean(1, 1) + np.concatenate([half, -half])
    log_prior = -0.5 * prior_precision * (theta - prior_mean) ** 2
    log_likelihood = -0.5 * data_precision * (theta - data_mean) ** 2
    for log_density, exact in ((log_prior, mean(power, 1)), (log_likelihood, mean(1, power))):
        found = power_weights(log_density, power) @ theta
        assert abs(found - exact) < 0.05 * abs(exact - mean(1, 1)) + 1e-4


def test_a_flat_component_and_a_constant_change_nothing():
    values = np.random.default_rng(1).normal(size=500)
    assert sensitivity(values, np.zeros(500)) < 1e-6
    assert sensitivity(np.ones(500), values) == 0.0


def test_words():
    low, high = 0.5 * THRESHOLD, 2 * THRESHOLD
    assert diagnosis(low, high) == "the prior hardly matters"
    assert "decides" in diagnosis(high, low)
    assert "contradict" in diagnosis(high, high)
    assert diagnosis(np.nan, high) == "unknown"


def plain(seed=0, groups=30, rows=8):
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), rows)
    x = rng.normal(size=len(group))
    y = 1 + 2 * x + rng.normal(size=groups)[group] + rng.normal(size=len(group))
    return pd.DataFrame({"g": group, "x": x, "y": y})


FORMULA = "y ~ x + (1 | g)"


@pytest.fixture(scope="module")
def usual():
    return nghvi.mixed(FORMULA, plain())


@pytest.fixture(scope="module")
def tight():
    return nghvi.mixed(FORMULA, plain(), priors=Priors(coef_sd=0.05))


def test_the_default_is_not_flagged_and_a_prior_against_the_data_is(usual, tight):
    found = usual.prior_sensitivity()
    assert list(found.index) == ["intercept", "x", "noise_var", "effects_sd[intercept]"]
    assert (found["prior"] < THRESHOLD).all()
    assert (found["likelihood"] > THRESHOLD).all()
    assert (found["diagnosis"] == "the prior hardly matters").all()
    assert "contradict" in tight.prior_sensitivity().loc["x", "diagnosis"]


def test_a_fitted_model_agrees_with_the_exact_scaled_posterior():
    """With noise fixed by its prior, the coefficients are conjugate."""
    data, power, sd = plain(rows=4, groups=10), 1.25, 0.3
    known = Priors(coef_sd=sd, noise=InverseGamma(1e7, 1e7))
    model = nghvi.MixedRegressor(standardize=False, priors=known)
    model.fit(data[["x"]], data["y"])
    x, y = np.column_stack([np.ones(len(data)), data["x"]]), data["y"].to_numpy()

    def exact(a, b):
        precision = b * x.T @ x + a * np.eye(2) / sd**2
        return np.linalg.solve(precision, b * x.T @ y)

    found = powers(model.posterior_, draws=20_000)
    for log_density, scaled in (
        (found.log_prior, exact(power, 1)),
        (found.log_likelihood, exact(1, power)),
    ):
        coef = power_weights(log_density, power) @ found.theta[:, :2]
        np.testing.assert_allclose(coef, scaled, atol=0.15 * np.abs(scaled - exact(1, 1)).max())


def test_the_report_speaks_of_priors_only_where_they_matter(usual, tight, tmp_path):
    silent, said = (m.report(tmp_path / "page.html").read_text() for m in (usual, tight))
    assert "Priors that matter" not in silent
    assert "Priors that matter" in said
    assert "may contradict the data" in said
