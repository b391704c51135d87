"""What formulas state about every row: trials, exposures and bounds; and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import nghvi
from nghvi._core.errors import DataError, FormulaError
from nghvi._core.response import ResponseError
from nghvi.formula import parse
from nghvi.responses import Logit, TobitResponse


def rows(n=5):
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(6), 8)
    x = rng.normal(size=g.size)
    s = rng.binomial(n, 1 / (1 + np.exp(-x - 0.5 * rng.normal(size=6)[g])))
    return pd.DataFrame({"s": s, "f": n - s, "n": n, "x": x, "g": g.astype(str), "time": 1.0})


@functools.cache
def fitted(left):
    return nghvi.mixed(f"{left} ~ x + (1 | g)", rows(), response="binomial")


def test_both_ways_to_write_trials_are_one_and_successes_are_rows_of_a_binary_response():
    one, other = fitted("cbind(s, f)"), fitted("s | trials(n)")
    pd.testing.assert_frame_equal(one.summary(), other.summary())
    data = rows()
    apart = pd.concat([data.assign(y=1), data.assign(y=0)], ignore_index=True)
    counts = np.concatenate([data["s"], data["f"]])
    binary = nghvi.MixedClassifier("g", response=Logit()).fit(
        apart[["x", "g"]], apart["y"], counts=counts
    )
    away = one.summary()["mean"] - binary.summary()["mean"]
    assert np.all(np.abs(away) < 0.1 * binary.summary()["sd"])


def test_predictions_are_about_the_trials_of_their_rows():
    model, new = fitted("s | trials(n)"), rows().head(4)
    once, twice = (model.predict(new.assign(n=k), which="zero") for k in (5, 10))
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-12)
    with pytest.raises(DataError, match="'n'"):
        model.predict(new.drop(columns="n"))


def test_an_exposure_is_an_offset_of_its_logarithm():
    assert parse("y ~ x + exposure(time)").offsets == ("log(time)",)
    assert parse("y ~ x + exposure(time)").offsets == parse("y ~ x + offset(log(time))").offsets


def test_calculations_on_the_left_side_are_about_numbers():
    syntax = parse("cbind(size - healthy, healthy) ~ x")
    assert syntax.response == "{size - healthy}"
    assert syntax.facts == (("trials", "(size - healthy) + (healthy)"),)
    assert parse("censored(y, 0) ~ x").facts == (("lower", "0"), ("upper", "inf"))


@pytest.mark.parametrize(
    ("left", "response", "change", "error", "message"),
    [
        ("s | trials(n)", "binomial", {"n": 1}, ResponseError, r"successes of 1 trials in row \d+"),
        ("s | trials(n)", "binomial", {"n": 0}, ResponseError, r"0 in row 0.*one trial at least"),
        ("s | trials(n)", "binomial", {"n": 5.5}, ResponseError, r"5.5 in row 0.*whole numbers"),
        ("s | trials(n)", "binomial", {"s": 0}, ResponseError, "every trial of s failed"),
        ("s | trials(n)", "binomial", {"s": -1}, ResponseError, "-1 in row 0"),
        ("s", "binomial", {}, ResponseError, r"successes of 1 trials.*trials\(n\)"),
        ("s | trials(n)", "poisson", {}, DataError, "choose response='binomial' or"),
        ("x", "tobit", {}, DataError, r"needs lower and upper.*censored\(y"),
        ("censored(f, 2)", "tobit", {}, ResponseError, "f holds .* beyond its bounds.*clip"),
        ("censored(f, 9, 2)", "tobit", {}, ResponseError, "lower bound of f is 9 in row 0"),
        ("censored(n, 5)", "tobit", {}, ResponseError, "every row of n is censored"),
        ("s | n", "binomial", {}, FormulaError, r"successes \| trials\(n\)"),
        ("cbind(s)", "binomial", {}, FormulaError, r"cbind\(successes, failures\)"),
        ("censored(s)", "tobit", {}, FormulaError, r"censored\(y, lower"),
    ],
)
def test_bad_facts_are_named_with_row_and_remedy(left, response, change, error, message):
    inputs = "time + (1 | g)" if left == "x" else "x + (1 | g)"
    with pytest.raises(error, match=message):
        nghvi.mixed(f"{left} ~ {inputs}", rows().assign(**change), response=response)


def test_no_exposure_is_named_with_row_and_remedy():
    data = rows()
    data.loc[3, "time"] = 0.0
    with pytest.raises(DataError, match=r"log\(time\) is not finite.*3.*above 0"):
        nghvi.mixed("s ~ x + exposure(time) + (1 | g)", data, response="poisson")


def test_censored_numbers_have_the_probabilities_and_moments_of_a_cut_normal():
    """Against ten thousand quantiles of the latent normal, each cut to the bounds."""
    eta, dispersion = jnp.array([-1.5, 0.2, 3.0]), jnp.array([0.7])
    sd = np.exp(0.35)
    tobit = TobitResponse().given(np.array([[-1.0, 1.0]] * 3))
    z = norm.ppf((np.arange(100_000) + 0.5) / 100_000)
    cut = np.clip(np.asarray(eta) + sd * z[:, None], -1, 1)
    mean, variance = tobit.moments(eta, jnp.zeros(3), dispersion)
    np.testing.assert_allclose(mean, cut.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(variance, cut.var(axis=0), atol=1e-5)
    for y in (-2.0, -1.0, 0.3, 1.0):
        known = jnp.full(3, y), eta, jnp.zeros(3), dispersion
        np.testing.assert_allclose(tobit.cdf(*known), np.mean(cut <= y, axis=0), atol=1e-5)
        np.testing.assert_allclose(tobit.below(*known), np.mean(cut < y, axis=0), atol=1e-5)
    ends = [tobit.log_prob(jnp.full(3, y), eta, dispersion) for y in (-1.0, 1.0)]
    np.testing.assert_allclose(np.exp(ends[0]), norm.cdf((-1 - eta) / sd), rtol=1e-10)
    np.testing.assert_allclose(np.exp(ends[1]), norm.sf((1 - eta) / sd), rtol=1e-10)
    inside = tobit.log_prob(jnp.full(3, 0.3), eta, dispersion)
    np.testing.assert_allclose(inside, norm.logpdf(0.3, eta, sd), rtol=1e-10)
    drawn = tobit.sample(jax.random.key(0), jnp.broadcast_to(eta, (20_000, 3)), dispersion)
    np.testing.assert_allclose(np.mean(drawn, axis=0), mean, atol=0.03)
