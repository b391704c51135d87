"""What formulas and keywords state about every row: trials, exposures and bounds."""

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
from nghvi.cli import main
from nghvi.data.coding import Coding
from nghvi.estimators.response_columns import RowFacts
from nghvi.formula import learn, parse
from nghvi.interpret import followed, lek_profile
from nghvi.priors import Priors
from nghvi.responses import Interval, Logit, TobitResponse


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


def test_keywords_say_what_a_formula_says():
    data, written = rows(), fitted("s | trials(n)")
    keyword = nghvi.MixedRegressor("g", response="binomial", trials="n")
    keyword.fit(data[["n", "x", "g"]], data["s"])
    pd.testing.assert_frame_equal(keyword.summary(), written.summary())
    np.testing.assert_array_equal(keyword.predict(data[["g", "x", "n"]]), written.predict(data))
    # A number holds for all rows; the columns of an array have no names.
    numbers = data[["x", "g"]].astype(float).to_numpy()
    constant = nghvi.MixedRegressor(1, response="binomial", trials=5).fit(numbers, data["s"])
    np.testing.assert_array_equal(constant.summary(), written.summary())
    for model in (keyword, written):
        ten = lek_profile(model, "x", reference={"n": 10}, n_grid=3, draws=20)
        five = lek_profile(model, "x", n_grid=3, draws=20)
        np.testing.assert_allclose(ten["mean"], 2 * five["mean"], rtol=1e-12)
    assert "n" not in followed(keyword)
    # A setting that is changed after the fit applies to the next one.
    keyword.set_params(trials=None)
    np.testing.assert_array_equal(keyword.predict(data[["g", "x", "n"]]), written.predict(data))


@pytest.mark.parametrize(
    ("settings", "formula"),
    [
        ({"response": "poisson", "exposure": "time"}, "s ~ x + exposure(time) + (1 | g)"),
        ({"response": "tobit", "censored": ("low", None)}, "censored(f, low) ~ x + (1 | g)"),
    ],
)
def test_exposures_and_bounds_are_the_columns_of_a_formula(settings, formula):
    data = rows().assign(time=np.arange(1, 49.0), low=np.where(np.arange(48) % 2, 1.0, -np.inf))
    data["f"] = np.maximum(data["f"], data["low"])
    read = RowFacts.of(nghvi.MixedRegressor("g", **settings))
    given = data[["x", "g", *read.columns]]
    cells = read.cells(given, "g")
    coding = Coding.learn(cells, indicator=False, intercept=True, pool=False)
    table = read.beside(coding.table(cells, by_name=True), given)
    design = learn(formula, data)
    np.testing.assert_array_equal(table.values, design.table(data).values)
    assert (read.known_coef, read.names) == (design.known_coef, design.facts)


@pytest.mark.parametrize(
    ("settings", "columns", "message"),
    [
        ({"trials": "m"}, ["x", "g", "n"], "trials: there is no column 'm'.*'n'"),
        ({"trials": ["n"]}, ["x", "g", "n"], r"trials=\['n'\]: it must be the name of a column"),
        ({"trials": "g"}, ["x", "g"], "'g' is the group column"),
        ({"exposure": "tine"}, ["x", "g", "time"], r"Did you mean 'time'\?"),
        ({"censored": 3}, ["x", "g"], r"must be a pair \(lower, upper\)"),
        ({"trials": "n", "formula": "s ~ x"}, ["x", "n"], r"write 'y \| trials\(n\) ~ ...'"),
        ({"trials": "n", "response": "poisson"}, ["x", "g", "n"], "choose response='binomial'"),
    ],
)
def test_bad_keywords_are_refused_with_the_remedy(settings, columns, message):
    settings = {"group": "g", "response": "binomial", **settings}
    with pytest.raises(DataError, match=message):
        nghvi.MixedRegressor(**settings).fit(rows()[columns], rows()["s"])


def test_the_command_line_reads_facts_as_well(tmp_path, capsys):
    table, run = tmp_path / "rows.csv", tmp_path / "run"
    rows()[["s", "n", "x", "g"]].to_csv(table, index=False)
    what = ["--target", "s", "--group", "g", "--response", "binomial"]
    arguments = ["fit", str(table), *what, "--out", str(run), "--quiet"]
    assert main([*arguments, "--trials", "m"]) == 2
    assert "'m'" in capsys.readouterr().err
    assert main([*arguments, "--trials", "n"]) == 0
    assert main(["predict", str(run), str(table), "-o", str(tmp_path / "found.csv")]) == 0
    found = pd.read_csv(tmp_path / "found.csv")
    np.testing.assert_allclose(found["mean"], fitted("s | trials(n)").predict(rows()), rtol=1e-9)
    assert found["upper"].le(5).all()


def test_the_command_line_reads_intervals(tmp_path, capsys):
    """Some rows are known exactly, some only from one side, by columns with infinite numbers."""
    rng, table, run = np.random.default_rng(3), tmp_path / "rows.csv", tmp_path / "run"
    data = rows()[["x", "g"]].assign(y=lambda d: 2 + d["x"] + rng.normal(size=48))
    data["low"] = np.floor(data["y"]).mask(data.index < 8, -np.inf)
    data["high"] = np.ceil(data["y"]).mask(data.index >= 40, np.inf)
    data.loc[20:24, ["low", "high"]] = data.loc[20:24, ["y", "y"]].to_numpy()
    data.to_csv(table, index=False)
    what = ["fit", str(table), "--response", "interval", "--quiet", "--out", str(run)]
    settings = ["--target", "y", "--group", "g"]
    assert main([*what, *settings, "--censored", "low"]) == 2
    assert "must be a pair (lower, upper)" in capsys.readouterr().err
    assert main([*what, *settings, "--censored", "low,high"]) == 0
    assert main([*what, "--formula", "censored(y, low, high) ~ x + (1 | g)", "--force"]) == 0
    ours = nghvi.MixedRegressor("g", response="interval", censored=("low", "high"))
    ours.fit(data.drop(columns="y"), data["y"])
    assert f"{ours.summary().loc['x', 'mean']:.3f}" in capsys.readouterr().out
    assert main(["predict", str(run), str(table), "-o", str(tmp_path / "found.csv")]) == 0
    found = pd.read_csv(tmp_path / "found.csv")
    np.testing.assert_allclose(found["mean"], ours.predict(data.drop(columns="y")), rtol=1e-9)


def test_probabilities_of_censored_rows_have_no_unit():
    data = rows().assign(low=1.0)
    data["f"] = np.maximum(data["f"] + 0.3 * data["x"], 1)
    seen = (data["f"] > 1).to_numpy()
    small = data.assign(f=1000 * data["f"], low=1000.0)
    one, other = (
        nghvi.mixed("censored(f, low) ~ x + (1 | g)", each, response="tobit")
        for each in (data, small)
    )
    away = one.log_densities(data, data["f"]) - other.log_densities(small, small["f"])
    np.testing.assert_allclose(away, np.where(seen, np.log(1000), 0), atol=1e-6)
    elpd = [m.loo(each, each["f"]).elpd for m, each in ((one, data), (other, small))]
    for ours, theirs in ((one.elbo_, other.elbo_), elpd):
        np.testing.assert_allclose(ours - theirs, seen.sum() * np.log(1000), atol=1e-5)
    assert 0 < seen.mean() < 1


def test_observations_that_cannot_be_are_refused_after_the_fit_too():
    model, data = fitted("s | trials(n)"), rows()
    with pytest.raises(ResponseError, match=r"s holds 6 in row 0, .*binomial"):
        model.log_score(data, data["s"] * 0 + 6)
    with pytest.raises(ResponseError, match=r"s holds -1 in row 0"):
        model.add_groups(data.assign(g="new"), data["s"] * 0 - 1)
    with pytest.raises(ResponseError, match=r"trials\(n\) holds 0 in row 0"):
        model.predict(data.assign(n=0))
    with pytest.raises(DataError, match=r"'n' .*never filled in"):
        model.predict(data.assign(n=np.nan))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"response": "binomial", "trials": "n"}, "trials='n': rows on disk .*read_parquet"),
        ({"response": "tobit", "censored": (0, None)}, "censored=.*rows on disk"),
        ({"response": "poisson", "exposure": "time"}, "exposure='time': rows on disk"),
        ({"weights": "n"}, "weights='n': rows on disk"),
        ({"response": "ordered-logit"}, "'ordered-logit': rows on disk .* two classes"),
    ],
)
def test_rows_on_disk_come_without_facts(settings, message, tmp_path):
    rows().to_parquet(tmp_path / "rows.parquet")
    kind = nghvi.MixedClassifier if "ordered" in str(settings) else nghvi.MixedRegressor
    with pytest.raises(DataError, match=message):
        kind("g", **settings).fit(nghvi.GroupedDataset(tmp_path / "rows.parquet"), "s")


def test_weights_are_precisions():
    """The model equals that of rows multiplied by the roots of their weights."""
    rng = np.random.default_rng(2)
    weight = rng.uniform(0.3, 1.8, 60)
    data = pd.DataFrame({"x": rng.normal(size=60), "w": weight})
    y = 1 + 0.5 * data["x"].to_numpy() + rng.normal(size=60) / np.sqrt(weight)
    settings = {"priors": Priors(), "standardize": False}
    model = nghvi.MixedRegressor(weights="w", **settings).fit(data, y)
    root = np.sqrt(weight)
    scaled = pd.DataFrame({"one": root, "x": root * data["x"]})
    exact = nghvi.MixedRegressor(fit_intercept=False, **settings).fit(scaled, root * y)
    ours, theirs = model.summary().loc[["intercept", "x"]], exact.summary().loc[["one", "x"]]
    constant = np.log(root).sum()
    np.testing.assert_allclose(model.log_evidence_, exact.log_evidence_ + constant, atol=0.05)
    np.testing.assert_allclose(ours["mean"], theirs["mean"], atol=0.1 * theirs["sd"].min())
    np.testing.assert_allclose(ours["sd"], theirs["sd"], rtol=0.1)
    sd = [model.predict(data.assign(w=w), return_std=True)[1] for w in (1e-4, 1e-2)]
    np.testing.assert_allclose(sd[0] / sd[1], 10, rtol=0.01)
    with pytest.raises(ResponseError, match=r"weights\(w\) holds 0 in row 0.*above 0"):
        model.fit(data.assign(w=0.0), y)
    with pytest.raises(DataError, match=r"student-t.*does not support weights"):
        nghvi.MixedRegressor(weights="w", response="student-t").fit(data, y)


def test_predictions_are_about_the_trials_of_their_rows():
    model, new = fitted("s | trials(n)"), rows().head(4)
    once, twice = (model.predict(new.assign(n=k), which="zero") for k in (5, 10))
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-12)
    with pytest.raises(DataError, match="'n'"):
        model.predict(new.drop(columns="n"))
    assert np.all(model.predict_interval(new.assign(n=1))[1] <= 1)


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
        ("s | trials(n)", "binomial", {"n": 0}, ResponseError, r"0 in row 0.*at least one"),
        ("s | trials(n)", "binomial", {"n": 5.5}, ResponseError, r"5.5 in row 0.*whole number"),
        ("s | trials(n)", "binomial", {"s": 0}, ResponseError, "every trial of s failed"),
        ("s | trials(n)", "binomial", {"s": -1}, ResponseError, "-1 in row 0"),
        ("s", "binomial", {}, ResponseError, r"successes of 1 trials.*trials\(n\)"),
        ("s | trials(n)", "poisson", {}, DataError, "choose response='binomial' or"),
        ("x", "tobit", {}, DataError, r"needs lower and upper.*censored\(y"),
        ("censored(f, 2)", "tobit", {}, ResponseError, "f holds .* beyond its bounds.*clip"),
        ("censored(f, 9, 2)", "tobit", {}, ResponseError, r"lower\(9\) holds 9 in row 0"),
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


def test_intervals_have_the_probability_of_a_normal_between_their_ends():
    eta, sd = jnp.array([-0.4, 0.3, 2.0, 0.5]), 0.8
    dispersion = jnp.array([2 * np.log(sd)])
    ends = np.array([[-1.0, 0.5], [0.2, 0.2], [-np.inf, 1.0], [30.0, 31.0]])
    y = jnp.array([0.1, 0.2, -7.0, 30.4])
    interval = Interval().given(np.clip(ends, -1e50, 1e50))
    found = interval.log_prob(y, eta, dispersion)
    low, high = (ends.T - np.asarray(eta)) / sd
    mass = np.log(norm.cdf(high[0]) - norm.cdf(low[0]))
    far = norm.logsf(low[3]) + np.log1p(-np.exp(norm.logsf(high[3]) - norm.logsf(low[3])))
    expected = [mass, norm.logpdf(0.2, 0.3, sd), norm.logcdf(high[2]), far]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    # Any number in the interval means the same.
    other = jnp.array([-0.9, 0.2, 1.0, 30.9])
    np.testing.assert_array_equal(interval.log_prob(other, eta, dispersion), found)
    one = jnp.ones(4)

    def slope(eta):
        return jax.jvp(lambda e: interval.log_prob(y, e, dispersion), (eta,), (one,))[1]

    np.testing.assert_allclose(
        interval.slopes(y, eta, dispersion), jax.jvp(slope, (eta,), (one,)), rtol=1e-7
    )
    below, up_to = interval.around(y, eta, jnp.zeros(4), dispersion)
    mass = np.where(ends.T[0] < ends.T[1], np.exp(found), 0)
    np.testing.assert_allclose(up_to - below, mass, atol=1e-15)


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
