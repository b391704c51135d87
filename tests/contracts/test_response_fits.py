"""Every response through everything that follows a fit: one contract, run over the registry.

Rows are drawn from the response itself, at known parameters.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.stats import kstest, nbinom, poisson

import nghvi
from nghvi import scores
from nghvi.posterior.predictive import around, between
from tests.registry import RESPONSES

FITTED = [
    name
    for name in RESPONSES
    if name
    not in ("gaussian", "student-t", "probit", "logit", "poisson", "negative-binomial", "gamma")
]
"""Those without tests of their own."""
ALWAYS = ("zero-inflated-poisson", "ordered-logit", "tobit")
"""A count, classes and a number with facts of its own; ``make test-slow`` fits the others."""
RIGHT, INTERCEPT, SLOPE = "x + (1 | g)", 0.5, 0.7
LEFT = {
    (): "y",
    ("trials",): "y | trials(n)",
    ("weights",): "y | weights(n)",
    ("lower", "upper"): "censored(y, low, high)",
}
"""The left-hand side of a formula by what the response knows about a row."""


def over(names):
    marks = {name: () if name in ALWAYS else (pytest.mark.slow,) for name in names}
    return pytest.mark.parametrize("name", [pytest.param(n, marks=m) for n, m in marks.items()])


responses = over(FITTED)
of_numbers = over(name for name in FITTED if not RESPONSES[name].response.classes)
of_classes = over(name for name in FITTED if RESPONSES[name].response.classes)


def draw(name, groups, seed):
    """Ten rows per group; eta = 0.5 + 0.7 x + effects of sd 0.5."""
    case, rng = RESPONSES[name], np.random.default_rng(seed)
    g = np.repeat(np.arange(groups), 10)
    x = rng.normal(size=g.size)
    eta = INTERCEPT + SLOPE * x + 0.5 * rng.normal(size=groups)[g]
    n, low = rng.integers(1, 12, g.size), np.where(rng.random(g.size) < 0.5, -0.5, 0.0)
    high = np.full(g.size, 2.0)
    response = bound(case.response, {"n": n, "low": low, "high": high})
    dispersion = jnp.asarray(case.dispersion, float)
    y = np.asarray(response.sample(jax.random.key(seed), jnp.asarray(eta), dispersion))
    if case.response.classes:
        y = y.astype(int) + 1
    if case.response.name == "interval":  # whole units, but exactly where there is one trial
        low, high = (np.where(n == 1, y, edge) for edge in (np.floor(y), np.floor(y) + 1))
    columns = {"y": y, "x": x, "g": g.astype(str), "n": n, "low": low, "high": high}
    return pd.DataFrame(columns)


def bound(response, rows):
    """The response that knows the facts of these rows."""
    facts = {
        "trials": rows["n"],
        "weights": rows["n"],
        "lower": rows["low"],
        "upper": rows["high"],
    }
    known = [np.asarray(facts[name], float) for name in response.facts]
    return response.given(np.column_stack(known) if known else None)


def formula(name):
    return f"{LEFT[RESPONSES[name].response.facts]} ~ {RIGHT}"


@functools.cache
def fitted(name):
    rows = draw(name, 24, 1)
    return rows, nghvi.mixed(formula(name), rows, response=RESPONSES[name].response.name)


@responses
def test_the_truth_is_in_the_posterior(name):
    case, (_, model) = RESPONSES[name], fitted(name)
    summary = model.summary(level=0.999)
    assert model.converged_
    own = case.response.reported(jnp.asarray(case.dispersion, float), 1.0, INTERCEPT)
    for parameter, truth in {"x": SLOPE, "effects_sd[intercept]": 0.5, **own}.items():
        low, high = summary.loc[parameter, ["q0.05", "q99.95"]]
        assert low < truth < high, parameter
    if case.response.ratio is not None:
        assert model.ratios().index.name == case.response.ratio


@of_numbers
def test_intervals_end_on_the_support_and_cover(name):
    rows, model = fitted(name)
    rows = rows.iloc[::2]
    lower, upper = model.predict_interval(rows, draws=40)
    support = bound(RESPONSES[name].response, rows).support
    assert support.holds(lower).all()
    assert support.holds(upper).all()
    assert scores.coverage(rows["y"].to_numpy(), lower, upper) > 0.85


@of_classes
def test_probabilities_of_classes_are_those_of_the_rows(name):
    rows, model = fitted(name)
    probability = model.predict_proba(rows, draws=100)
    np.testing.assert_array_equal(model.classes_, np.unique(rows["y"]))
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    seen = rows["y"].to_numpy()[:, None] == model.classes_
    # Sums over rows of Bernoulli variables, within four sds.
    error = np.abs((seen - probability).sum(axis=0))
    assert np.all(error < 4 * np.sqrt((probability * (1 - probability)).sum(axis=0)))
    assert scores.rps(seen, probability) < scores.rps(seen, seen.mean(axis=0))
    np.testing.assert_allclose(
        model.log_score(rows, rows["y"], draws=100),
        np.mean(np.log(probability[seen])),
        rtol=1e-9,
    )


@responses
def test_probabilities_are_uniform(name):
    """The false alarm rate is one in a thousand for each response."""
    rows, model = fitted(name)
    checked = model.check_rows(rows, rows["y"], draws=200)
    assert kstest(checked["pit"], "uniform").pvalue > 0.001
    if RESPONSES[name].response.classes:
        return
    # Rows of a group share its effect, so only one of them counts as independent.
    new = draw(name, 40, 2).assign(g=lambda d: "new " + d["g"]).iloc[::10]
    with pytest.warns(nghvi.DataWarning, match="known"):
        pit = model.pit(new, new["y"])
    assert kstest(pit, "uniform").pvalue > 0.001


@over(("zero-inflated-poisson", "zero-inflated-negative-binomial"))
def test_probabilities_of_counts_with_extra_zeros_are_those_of_the_draws_by_scipy(name):
    """P(Y < y) and P(Y <= y) of known and new groups, by two sets of draws.

    Within five standard errors of their difference: false alarms in less than one run of 1,000.
    """
    number, (_, model) = 2000, fitted(name)
    drawn, rng = model.posterior_draws(number, 5), np.random.default_rng(6)
    extra, sd = drawn["zi_prob"][:, None], np.sqrt(drawn["effects_cov"][:, 0, 0])[:, None]
    size = drawn["1/sqrt(size)"][:, None] ** -2.0 if "1/sqrt(size)" in drawn else None

    def up_to(y, mean):
        plain = poisson.cdf(y, mean) if size is None else nbinom.cdf(y, size, size / (size + mean))
        return np.where(y < 0, 0.0, extra + (1 - extra) * plain)

    held_out = draw(name, 24, 1).assign(y=draw(name, 24, 8)["y"], x=lambda d: d["x"] + 0.1)
    of_groups = model.groups_.searchsorted(held_out["g"])
    in_new = sd * rng.standard_normal((number, 24))
    for labels, effects in [
        (held_out["g"], drawn["effects"][:, of_groups, 0]),
        ("5" + held_out["g"].str[0], in_new[:, held_out["g"].str[0].astype(int)]),
    ]:
        there = held_out.assign(g=labels)
        mean = np.exp(drawn["coef"] @ np.vstack([np.ones(len(there)), there["x"]]) + effects)
        request, y = model._observed(there, there["y"], draws=number, seed=7)
        for ours, at in zip(around(model.posterior_, request, y), (y - 1, y), strict=True):
            by_draw = up_to(at, mean)
            error = np.sqrt(2 / number) * by_draw.std(axis=0) + 1 / number
            assert np.all(np.abs(ours - by_draw.mean(axis=0)) < 5 * error)


def test_where_a_count_falls_within_its_step_is_not_known_to_who_simulates_with_the_seed():
    """A correlation of 2,000 pairs within four standard errors: one false alarm in 16,000."""
    drawn = between(np.zeros(2000), np.ones(2000), 0)
    assert abs(np.corrcoef(drawn, np.random.default_rng(0).random(2000))[0, 1]) < 4 / np.sqrt(2000)


@responses
def test_new_groups_files_and_reports(name, tmp_path):
    _, model = fitted(name)
    new = draw(name, 2, 3).assign(g=lambda d: "new " + d["g"])
    more = model.add_groups(new, new["y"])
    more.save(tmp_path / "model.nghvi")
    again = nghvi.load(tmp_path / "model.nghvi")
    np.testing.assert_array_equal(again.predict(new), more.predict(new))
    assert np.isfinite(again.log_score(new, new["y"]))
    page = model.report(tmp_path / "page.html").read_text()
    assert RESPONSES[name].response.name in page


@responses
def test_networks_take_it(name):
    rows = draw(name, 6, 4)
    model = nghvi.mixed(
        formula(name),
        rows,
        response=RESPONSES[name].response.name,
        hidden=(4,),
        steps=20,
        n_starts=1,
        importance=False,
    )
    assert np.isfinite(model.elbo_)
    assert np.isfinite(model.log_score(rows, rows["y"]))
