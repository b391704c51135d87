"""Counts through everything that follows a fit: each part asks the response for its support."""

import functools
import math

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.special import gammaln
from scipy.stats import kstest, nbinom, poisson

import nghvi
from nghvi import plots, scores
from nghvi._core import near_zero
from nghvi._core.response import ResponseError
from nghvi.responses import RESPONSES, NegativeBinomial, Poisson

COUNTS = ["poisson", "negative-binomial"]
FORMULA = "n ~ x + offset(log(time)) + (1 | g)"
counts = pytest.mark.parametrize("name", COUNTS)


def draw(name, groups, rng):
    """Twelve rows per group; the rate is 1.5, and the rate ratio of x is 2."""
    g = np.repeat(np.arange(groups), 12)
    x, time = rng.normal(size=g.size), rng.uniform(0.5, 2, g.size)
    mean = time * np.exp(np.log(1.5) + np.log(2) * x + 0.5 * rng.normal(size=groups)[g])
    rate = mean * rng.gamma(4.0, size=g.size) / 4.0 if "negative" in name else mean
    return pd.DataFrame({"n": rng.poisson(rate), "x": x, "time": time, "g": g.astype(str)})


@functools.cache
def table(name):
    return draw(name, 24, np.random.default_rng(3))


@functools.cache
def fitted(name):
    return nghvi.mixed(FORMULA, table(name), response=name)


@counts
def test_the_truth_is_in_the_posterior(name):
    summary, ratios = fitted(name).summary(), fitted(name).ratios(level=0.99)
    assert fitted(name).converged_
    assert ratios.index.name == "rate ratio"
    assert ratios.loc["x", "q0.5"] < 2 < ratios.loc["x", "q99.5"]
    np.testing.assert_allclose(np.log(ratios["q50"]), summary.loc[ratios.index, "q50"], atol=0.01)
    assert abs(summary.loc["effects_sd[intercept]", "q50"] - 0.5) < 0.3


@counts
def test_intervals_end_on_counts_and_cover(name):
    rows = table(name)
    lower, upper = fitted(name).predict_interval(rows, level=0.9)
    assert RESPONSES[name]().support.holds(np.concatenate([lower, upper])).all()
    assert scores.coverage(rows["n"].to_numpy(), lower, upper) >= 0.88
    # The ends are quantiles of the predictive distribution: those of many draws, but for noise.
    drawn = fitted(name).sample_predictive(rows, 4000)
    above = np.mean(drawn > upper, axis=0)
    assert above.max() < 0.075
    assert np.mean(drawn >= upper, axis=0).min() > 0.035


@counts
def test_probabilities_of_held_out_counts_are_uniform(name):
    new = draw(name, 40, np.random.default_rng(4)).assign(g=lambda d: "new " + d["g"])
    with pytest.warns(nghvi.DataWarning, match="known"):
        pit = fitted(name).pit(new, new["n"])
    # Rows of a group share its effect, so only a twelfth of them count as independent.
    assert kstest(pit[::12], "uniform").pvalue > 0.01
    assert len(np.unique(pit)) == len(pit)


@counts
def test_rows_are_judged_without_themselves(name):
    rows = table(name)
    checked = fitted(name).check_rows(rows, rows["n"])
    assert kstest(checked["pit"], "uniform").pvalue > 0.01
    loo = fitted(name).loo(rows, rows["n"], draws=500)
    assert -4 < loo.elpd / len(rows) < -1
    drawn, y = fitted(name).sample_predictive(rows, 200), rows["n"].to_numpy()
    mixed_up = np.random.default_rng(0).permutation(drawn, axis=1)
    assert scores.crps(y, drawn) < 0.8 * scores.crps(y, mixed_up)


@counts
def test_an_exposure_is_an_offset(name):
    rows = table(name).head(5)
    once = fitted(name).predict(rows, which="zero")
    twice = fitted(name).predict(rows.assign(time=2 * rows["time"]), which="zero")
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-9)


@counts
def test_report_and_pictures_know_counts(name, tmp_path):
    rows = table(name)
    page = fitted(name).report(tmp_path / "page.html", rows, rows["n"]).read_text()
    assert "Rate ratios" in page
    assert ("Variance components and other parameters" in page) == (name != "poisson")
    assert "log scale" in page
    ax = plots.predictive_check(fitted(name), rows, rows["n"])
    assert 10 < len(ax.patches) <= 41
    assert sum(bar.get_height() for bar in ax.patches) == len(rows)


@counts
def test_new_groups_and_files(name, tmp_path):
    new = draw(name, 2, np.random.default_rng(5)).assign(g=lambda d: "new " + d["g"])
    more = fitted(name).add_groups(new, new["n"])
    assert len(more.groups_) == 26
    more.save(tmp_path / "model.nghvi")
    again = nghvi.load(tmp_path / "model.nghvi")
    np.testing.assert_array_equal(again.predict(new), more.predict(new))
    np.testing.assert_array_equal(again.predict_interval(new), more.predict_interval(new))


def test_an_object_is_as_good_as_its_name():
    found = nghvi.mixed(FORMULA, table("poisson"), response=Poisson())
    pd.testing.assert_frame_equal(found.summary(), fitted("poisson").summary())


@pytest.mark.parametrize("name", [*COUNTS, *(f"zero-inflated-{name}" for name in COUNTS)])
def test_the_distribution_function_is_right_however_large_the_counts(name):
    response = RESPONSES[name]()
    dispersion = jnp.full(response.num_dispersion, 0.8)
    extra = float(response.reported(dispersion, 1.0).get("zi_prob", 0.0))
    for mean in (0.3, 40.0, 600.0, 3e4):
        sd = np.sqrt(response.moments(jnp.log(mean), jnp.zeros(()), dispersion)[1])
        y = np.array([-1, *np.floor(mean + sd * np.array([-2, 0.2, 3])).clip(0), mean // 1 + 0.5])
        found = response.cdf(y, jnp.full(5, np.log(mean)), jnp.zeros(5), dispersion)
        size = float(response.size(dispersion)) if "negative" in name else np.inf
        known = poisson(mean) if np.isinf(size) else nbinom(size, size / (size + mean))
        inflated = np.where(y < 0, 0, extra + (1 - extra) * known.cdf(y))
        np.testing.assert_allclose(found, inflated, atol=1e-9)


@pytest.mark.parametrize("spread", [1.3, 0.12, 0.08, 1e-3, 1e-5])
def test_the_density_keeps_its_digits_however_small_the_spread(spread):
    """Gamma(k + y) / (Gamma(k) k^y) is the product of 1 + j / k over j < y."""
    response, mean = NegativeBinomial(), 1e5
    u = near_zero.coordinate(jnp.full(1, np.log(spread / response.unit)))
    k, y = float(response.size(u)), np.array([0.0, 3.0, 99_000.0, 1e5, 2e5])
    found = response.log_prob(jnp.asarray(y), jnp.full(5, np.log(mean)), u)
    rising = np.array([math.fsum(np.log1p(np.arange(n) / k)) for n in y])
    known = rising - gammaln(y + 1) + y * np.log(mean) - (y + k) * np.log1p(mean / k)
    np.testing.assert_allclose(found, known, rtol=1e-11, atol=1e-8)


@pytest.mark.parametrize("level", [1e-4, 1e7])
def test_rates_far_from_one_are_found(level):
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(10), 20)
    time = np.full(200, 1e4 if level < 1 else 1.0)
    effects = 0.3 * rng.normal(size=10)
    n = rng.poisson(time * level * np.exp(effects[g]))
    rows = pd.DataFrame({"n": n, "time": time, "g": g})
    found = nghvi.mixed("n ~ 1 + offset(log(time)) + (1 | g)", rows, response="poisson")
    assert found.converged_
    row = found.summary().loc["intercept"]
    assert abs(row["mean"] - np.log(level)) < 4 * row["sd"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([-1, 2, 3], r"n holds -1 in row 0.*whole numbers from 0.*exposure"),
        ([0.5, 2, 3], r"n holds 0.5 in row 0"),
        ([0, 0, 0], r"every count in n is 0"),
        ([1, 1e9, 3], r"n holds 1e\+09 in row 1.*missing"),
    ],
)
@counts
def test_bad_counts_are_named_with_row_and_remedy(name, values, message):
    rows = pd.DataFrame({"n": values * 4, "x": np.arange(12.0), "g": list("abcd") * 3})
    with pytest.raises(ResponseError, match=message):
        nghvi.mixed("n ~ x + (1 | g)", rows, response=name)
