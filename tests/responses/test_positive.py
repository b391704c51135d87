"""Positive numbers through everything that follows a fit."""

import functools

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kstest

import nghvi
from nghvi import scores
from nghvi._core.response import ResponseError
from nghvi.posterior import predictive
from nghvi.priors import Priors
from nghvi.responses import GammaResponse

FORMULA = "y ~ x + (1 | g)"


def draw(groups, rng):
    """Twelve rows per group; coefficients 0.5 and 0.7, effects of sd 0.5."""
    g = np.repeat(np.arange(groups), 12)
    x = rng.normal(size=g.size)
    eta = 0.5 + 0.7 * x + 0.5 * rng.normal(size=groups)[g]
    y = np.exp(eta) * rng.gamma(5, size=g.size) / 5
    return pd.DataFrame({"y": y, "x": x, "g": g.astype(str)})


@functools.cache
def fitted():
    rows = draw(24, np.random.default_rng(1))
    return rows, nghvi.mixed(FORMULA, rows, response="gamma")


def test_the_truth_is_in_the_posterior():
    _, model = fitted()
    summary = model.summary(level=0.99)
    assert model.converged_
    assert summary.loc["x", "q0.5"] < 0.7 < summary.loc["x", "q99.5"]
    spread = summary.loc["cv"]
    assert spread["q0.5"] < 0.2**0.5 < spread["q99.5"]


def test_intervals_stay_in_the_support_and_cover():
    rows, model = fitted()
    lower, upper = model.predict_interval(rows)
    assert GammaResponse().support.holds(np.concatenate([lower, upper])).all()
    assert 0.84 < scores.coverage(rows["y"].to_numpy(), lower, upper) < 0.97
    assert kstest(model.check_rows(rows, rows["y"])["pit"], "uniform").pvalue > 0.01


def test_a_file_holds_the_model(tmp_path):
    rows, model = fitted()
    model.save(tmp_path / "model.nghvi")
    again = nghvi.load(tmp_path / "model.nghvi")
    np.testing.assert_array_equal(again.predict(rows), model.predict(rows))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.0, r"y holds 0 in row 3.*numbers above 0.*zeros"),
        (-2.0, r"y holds -2 in row 3"),
    ],
)
def test_values_outside_are_named_with_row_and_remedy(value, message):
    rows = draw(3, np.random.default_rng(0))
    rows.loc[3, "y"] = value
    with pytest.raises(ResponseError, match=message):
        nghvi.mixed(FORMULA, rows, response="gamma")


def test_ends_of_intervals_are_quantiles():
    rows, model = fitted()
    request = model.reader_.request(model.posterior_, rows, draws=50)
    ends = predictive.interval(model.posterior_, request, 0.9)
    for end, level in zip(ends, (0.05, 0.95), strict=True):
        np.testing.assert_allclose(predictive.cdf(model.posterior_, request, end), level, atol=1e-9)


def test_a_lognormal_response_is_a_gaussian_one_of_its_logarithm():
    """The same model once by quadrature and once exactly; densities differ by the Jacobian."""
    rng = np.random.default_rng(3)
    ward = np.repeat(np.arange(8), 6)
    age = rng.normal(size=48)
    log_days = 1 + 0.4 * age + 0.5 * rng.normal(size=8)[ward] + 0.3 * rng.normal(size=48)
    rows = pd.DataFrame({"age": age, "ward": ward})
    settings = {"priors": Priors(), "standardize": False}
    exact = nghvi.MixedRegressor("ward", **settings).fit(rows, log_days)
    days = np.exp(log_days)
    model = nghvi.MixedRegressor("ward", response="lognormal", **settings).fit(rows, days)
    assert model.converged_
    ours, theirs = model.summary(), exact.summary()
    np.testing.assert_allclose(model.log_evidence_, exact.log_evidence_ - log_days.sum(), atol=0.05)
    same = ["intercept", "age", "effects_sd[intercept]"]
    sd = theirs.loc[same, "sd"]
    assert np.all(np.abs(ours.loc[same, "mean"] - theirs.loc[same, "mean"]) < 0.1 * sd)
    np.testing.assert_allclose(ours.loc[same, "sd"], sd, rtol=0.1)
    known = model.predict_interval(rows, draws=500), exact.predict_interval(rows, draws=500)
    for found, of_log in zip(*known, strict=True):
        np.testing.assert_allclose(np.log(found), of_log, atol=0.1)
    scores = model.log_densities(rows, days), exact.log_densities(rows, log_days) - log_days
    np.testing.assert_allclose(*scores, atol=0.2)
    assert model.ratios().index.name == "ratio of medians"
