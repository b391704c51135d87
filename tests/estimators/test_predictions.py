"""Predictions against brute force given the same draws of the posterior.

Seeds are fixed, so every test is deterministic. Where predictive draws are compared with exact
moments, tolerances are 5 standard errors: one seed in a thousand, at most, would fail.
"""

import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

import nghvi
from nghvi import DataError, scores
from tests.conftest import panel_frame

COLUMNS = ["g", "a", "b"]
FRAME, BINARY = panel_frame(), panel_frame(binary=True)
NEW = FRAME[COLUMNS][:12].assign(g=np.repeat([700, 500, 600], 4))
"""Rows of three unseen groups, not in order."""
BOTH = pd.concat([FRAME[COLUMNS][:30], NEW], ignore_index=True)
DRAWS = 200


@pytest.fixture(scope="module")
def deep(fitted_case):
    return fitted_case("deep")[0]


def design(frame):
    return np.column_stack([np.ones(len(frame)), frame[["a", "b"]]])


def conditional(drawn, rows, y):
    """Return moments of a group's effects, (S, 2) and (S, 2, 2), given each draw and its rows."""
    x, precision = design(rows), np.linalg.inv(drawn["effects_cov"])
    noise = drawn["noise_var"][:, None]
    z = x[:, :2]
    covariance = np.linalg.inv(precision + z.T @ z / noise[:, :, None])
    residual = y - drawn["coef"] @ x.T
    return np.einsum("sij,sj->si", covariance, residual @ z / noise), covariance


def oracle(drawn, x, groups=None):
    """Location and sd of every row's response given each draw, (S, n).

    ``groups``: rows and responses by known label; the others come from the population.
    """
    z, location = design(x)[:, :2], drawn["coef"] @ design(x).T
    variance = np.einsum("ni,sij,nj->sn", z, drawn["effects_cov"], z)
    for label, (rows, y) in (groups or {}).items():
        mean, covariance = conditional(drawn, rows, y)
        own = (x["g"] == label).to_numpy()
        location[:, own] += mean @ z[own].T
        variance[:, own] = np.einsum("ni,sij,nj->sn", z[own], covariance, z[own])
    return location, np.sqrt(variance + drawn["noise_var"][:, None])


def known_groups(frame=FRAME):
    return {k: (rows, rows["y"].to_numpy()) for k, rows in frame.groupby("g")}


def moments(location, sd):
    mean = location.mean(axis=0)
    return mean, np.sqrt((sd**2).mean(axis=0) + location.var(axis=0))


@pytest.fixture(scope="module")
def given(fitted):
    """Return the draws of theta that predictions use if they are not moved."""
    return oracle(fitted.posterior_draws(DRAWS, seed=0), BOTH, known_groups())


def test_moments_and_densities_are_the_mixture_s(fitted, given, unmoved):
    """Given the same draws of theta, results are exact up to rounding, far below 1e-8."""
    mean, sd = fitted.predict(BOTH, return_std=True)
    np.testing.assert_allclose(mean, moments(*given)[0], atol=1e-8)
    np.testing.assert_allclose(sd, moments(*given)[1], rtol=1e-8)
    y = np.linspace(-3, 3, len(BOTH))
    density = logsumexp(norm.logpdf(y, *given), axis=0) - np.log(DRAWS)
    np.testing.assert_allclose(fitted.log_densities(BOTH, y), density, rtol=1e-8)
    assert fitted.log_score(BOTH, y) == pytest.approx(density.mean(), rel=1e-8)
    assert fitted.log_score(BOTH, y) == pytest.approx(scores.log_score(norm.logpdf(y, *given)))


def test_intervals_hold_their_level_and_nest(fitted, given, unmoved):
    """Bisection stops at a millionth of an sd."""
    ends = {level: fitted.predict_interval(BOTH, level) for level in (0.5, 0.9, 0.99)}
    for level, (lower, upper) in ends.items():
        for end, tail in ((lower, 0.5 - level / 2), (upper, 0.5 + level / 2)):
            np.testing.assert_allclose(norm.cdf(end, *given).mean(axis=0), tail, atol=1e-5)
    assert (ends[0.9][0] < ends[0.5][0]).all()
    assert (ends[0.99][1] > ends[0.9][1]).all()
    drawn = fitted.sample_predictive(BOTH, draws=4000)
    lower, upper = fitted.predict_interval(BOTH, 0.9, draws=4000)
    inside = ((lower <= drawn) & (drawn <= upper)).mean(axis=0)
    np.testing.assert_allclose(inside, 0.9, atol=5 * np.sqrt(0.09 / 4000))
    for level in (0, 1, 90):
        with pytest.raises(DataError, match="level="):
            fitted.predict_interval(BOTH, level)


@pytest.mark.parametrize(
    ("name", "which"),
    [("fitted", "known"), ("fitted", "zero"), ("fitted_binary", "known"), ("deep", "population")],
)
def test_draws_have_the_predicted_moments(name, which, request):
    model, number = request.getfixturevalue(name), DRAWS
    if name == "fitted_binary":
        mean = model.predict_proba(BOTH, which=which, draws=number)[:, 1]
        sd = np.sqrt(mean * (1 - mean))
    else:
        mean, sd = model.predict(BOTH, return_std=True, which=which, draws=number)
    drawn = model.sample_predictive(BOTH, draws=number, which=which)
    assert drawn.shape == (number, len(BOTH))
    # A classifier's predictions rest on drawn effects as well: two errors.
    assert (np.abs(drawn.mean(axis=0) - mean) < 5 * np.sqrt(2 / number) * sd).all()
    if name == "fitted_binary":
        assert set(np.unique(drawn)) == {0, 1}
    else:
        np.testing.assert_allclose(drawn.std(axis=0), sd, rtol=5 / np.sqrt(2 * number))


def test_rows_of_a_new_group_share_its_effects(fitted):
    """Checks covariances of the first new row with a row of its own group and of another."""
    number = 4000
    x = NEW.iloc[[0, 1, 4]]
    drawn = fitted.sample_predictive(x, draws=number)
    theta = fitted.posterior_draws(number)
    location, sd = oracle(theta, x)
    z = design(x)[:, :2]
    shared = np.einsum("i,sij,j->s", z[0], theta["effects_cov"], z[1]).mean()
    spread = moments(location, sd)[1]
    fixed = np.cov(location.T)
    expected = np.array([shared + fixed[0, 1], fixed[0, 2]]) / spread[0] / spread[1:]
    found = np.corrcoef(drawn.T)[0, 1:]
    np.testing.assert_allclose(found, expected, atol=5 / np.sqrt(number))
    assert expected[0] - expected[1] > 15 / np.sqrt(number)  # the test can tell them apart


def test_which_effects_are_used(fitted, unmoved):
    theta = fitted.posterior_draws(DRAWS)
    zero = theta["coef"] @ design(BOTH).T
    mean, sd = fitted.predict(BOTH, return_std=True, which="zero")
    expected = moments(zero, np.sqrt(theta["noise_var"])[:, None])
    np.testing.assert_allclose([mean, sd], expected, atol=1e-8)
    population = fitted.predict(BOTH, return_std=True, which="population")
    np.testing.assert_allclose(population, moments(*oracle(theta, BOTH)), atol=1e-8)
    np.testing.assert_allclose(
        population, fitted.predict(BOTH.assign(g=9999), return_std=True), atol=1e-8
    )
    with pytest.raises(DataError, match="which='all'"):
        fitted.predict(BOTH, which="all")


@pytest.mark.parametrize("name", ["fitted", "fitted_binary", "deep"])
def test_a_row_s_prediction_does_not_depend_on_the_others(name, request):
    """Permuted, alone, or with a few others; known groups and new ones."""
    model = request.getfixturevalue(name)
    order = np.random.default_rng(0).permutation(len(BOTH))

    def predictions(x):
        density = model.log_densities(x, np.ones(len(x)))
        if name == "fitted_binary":
            return np.array([density, model.predict_proba(x)[:, 1]])
        interval = model.predict_interval(x) if name == "fitted" else ()
        return np.array([density, *model.predict(x, return_std=True), *interval])

    whole = predictions(BOTH)
    for part in (order, [0], [35]):
        np.testing.assert_allclose(
            predictions(BOTH.iloc[part]), whole[:, part], rtol=1e-7, atol=1e-9
        )


def test_intervals_do_not_depend_on_chunks(fitted, monkeypatch):
    whole = fitted.predict_interval(BOTH)
    monkeypatch.setattr("nghvi.posterior.predictive.NUMBERS_AT_ONCE", 20 * DRAWS)
    np.testing.assert_allclose(fitted.predict_interval(BOTH), whole, rtol=1e-7)


def test_spread_survives_a_large_mean():
    """No digits cancel if y is far from 0 relative to its variation."""
    x, far = FRAME[COLUMNS], nghvi.priors.Priors(coef_sd=1e10)
    model = nghvi.MixedRegressor("g", standardize=False, priors=far)
    near = model.fit(x, FRAME["y"]).predict(x, return_std=True)[1]
    sd = model.fit(x, FRAME["y"] + 1e8).predict(x, return_std=True)[1]
    np.testing.assert_allclose(sd, near, rtol=0.02)


def test_probabilities_of_classes(fitted_binary):
    probability = fitted_binary.predict_proba(BOTH)
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    np.testing.assert_array_equal(fitted_binary.predict(BOTH), probability[:, 1] > 0.5)
    y = np.arange(len(BOTH)) % 2
    assert fitted_binary.log_score(BOTH, y) == pytest.approx(
        -scores.pce(y, probability[:, 1]), rel=1e-9
    )
    # Unseen groups get the population's probabilities, which effects pull towards 1/2.
    population = fitted_binary.predict_proba(BOTH, which="population")[:, 1]
    np.testing.assert_allclose(probability[30:, 1], population[30:], rtol=1e-9)
    assert np.abs(probability[:30, 1] - population[:30]).mean() > 0.01
    zero = fitted_binary.predict_proba(BOTH, which="zero")[:, 1]
    assert (np.abs(population - 0.5) < np.abs(zero - 0.5) + 0.01).all()
    with pytest.raises(DataError, match="not a class"):
        fitted_binary.log_score(BOTH, y + 1)


def test_unseen_probit_probabilities_are_exact(fitted_binary):
    """E Phi(eta) = Phi(location / sqrt(1 + variance)), averaged over all draws of theta."""
    pool = fitted_binary.posterior_.inference.pool
    at = fitted_binary.posterior_.globals_at(pool.theta)
    scale = np.sqrt(1 + at["effects_cov"][:, 0])
    expected = pool.weight @ norm.cdf(at["coef"] @ design(BOTH).T / scale)
    found = fitted_binary.predict_proba(BOTH.assign(g=-1))[:, 1]
    np.testing.assert_allclose(found, expected, atol=0.002)


def test_known_probit_probabilities_are_exact(fitted_binary):
    """Given the draws of theta, a fine grid integrates the effect of each group."""
    posterior, x = fitted_binary.posterior_, BOTH[:30]
    theta = posterior.inference.pool.matched(DRAWS, np.random.default_rng(0))
    at = posterior.globals_at(theta)
    sd, standard = np.sqrt(at["effects_cov"][:, 0, 0]), np.linspace(-8, 8, 801)
    effect = sd * standard[:, None]  # (nodes, draws)
    expected = np.empty(len(x))
    for label, rows in x.groupby("g"):
        fit = BINARY[BINARY["g"] == label]
        eta = (at["coef"] @ design(fit).T).T[:, None] + effect  # (rows, nodes, draws)
        sign = np.where(fit["y"] == 1, 1, -1)[:, None, None]
        log_share = norm.logcdf(sign * eta).sum(axis=0) + norm.logpdf(standard)[:, None]
        share = np.exp(log_share - logsumexp(log_share, axis=0))
        of_rows = norm.cdf((at["coef"] @ design(rows).T).T[:, None] + effect)
        expected[rows.index] = (of_rows * share).sum(axis=1).mean(axis=1)
    np.testing.assert_allclose(fitted_binary.predict_proba(x)[:, 1], expected, atol=1e-4)


def test_predictions_hardly_depend_on_the_seed(fitted, fitted_binary):
    """Two hundred draws as they are leave means that differ by a fourteenth of a posterior sd;
    moved to the mean and covariance of all draws, they leave a tenth of that."""
    draws = fitted.posterior_draws(2000)["coef"] @ design(BOTH).T
    first, other = (fitted.predict(BOTH, which="zero", seed=seed) for seed in (1, 2))
    np.testing.assert_array_less(np.abs(first - other), 0.01 * draws.std(axis=0))
    first, other = (fitted_binary.predict_proba(BOTH, seed=seed)[:, 1] for seed in (1, 2))
    np.testing.assert_allclose(first, other, atol=0.005)


def test_pit_at_a_predictive_quantile_is_its_level(fitted, panel):
    inputs = panel[["g", "a", "b"]]
    lower, upper = fitted.predict_interval(inputs, level=0.8)
    np.testing.assert_allclose(fitted.pit(inputs, lower), 0.1, atol=1e-6)
    np.testing.assert_allclose(fitted.pit(inputs, upper), 0.9, atol=1e-6)


def test_repeated_rows_are_predicted_like_single_ones(fitted, panel):
    inputs, y = panel[["g", "a", "b"]][:20], panel["y"][:20]
    again = pd.concat([inputs[::-1], inputs])
    densities = fitted.log_densities(again, np.concatenate([y[::-1], y + 1]))
    np.testing.assert_allclose(densities[:20][::-1], fitted.log_densities(inputs, y))
    np.testing.assert_allclose(densities[20:], fitted.log_densities(inputs, y + 1))
    np.testing.assert_allclose(fitted.predict(again)[20:], fitted.predict(inputs))
    ends = fitted.predict_interval(again)
    np.testing.assert_allclose(ends[1][20:], fitted.predict_interval(inputs)[1], rtol=1e-6)
