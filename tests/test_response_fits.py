"""Every response through everything after the fit: one contract, run over the registry.

Rows come from the response itself, at parameters that are known.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.stats import kstest

import nghvi
from nghvi import scores
from tests.registry import RESPONSES

FITTED = [
    name
    for name in RESPONSES
    if name
    not in ("gaussian", "student-t", "probit", "logit", "poisson", "negative-binomial", "gamma")
]
"""Those without tests of their own."""
FORMULA, SLOPE = "y ~ x + (1 | g)", 0.7
responses = pytest.mark.parametrize("name", FITTED)


def draw(name, groups, seed):
    """Rows of ten a group; eta = 0.5 + 0.7 x + effects of sd 0.5."""
    case, rng = RESPONSES[name], np.random.default_rng(seed)
    g = np.repeat(np.arange(groups), 10)
    x = rng.normal(size=g.size)
    eta = 0.5 + SLOPE * x + 0.5 * rng.normal(size=groups)[g]
    dispersion = jnp.asarray(case.dispersion, float)
    y = np.asarray(case.response.sample(jax.random.key(seed), jnp.asarray(eta), dispersion))
    return pd.DataFrame({"y": y, "x": x, "g": g.astype(str)})


@functools.cache
def fitted(name):
    rows = draw(name, 24, 1)
    return rows, nghvi.mixed(FORMULA, rows, response=RESPONSES[name].response.name)


@responses
def test_the_truth_is_in_the_posterior(name):
    case, (_, model) = RESPONSES[name], fitted(name)
    summary = model.summary(level=0.999)
    assert model.converged_
    own = case.response.reported(jnp.asarray(case.dispersion, float), 1.0)
    for parameter, truth in {"x": SLOPE, "effects_sd[intercept]": 0.5, **own}.items():
        low, high = summary.loc[parameter, ["q0.05", "q99.95"]]
        assert low < truth < high, parameter
    if case.response.ratio is not None:
        assert model.ratios().index.name == case.response.ratio


@responses
def test_intervals_end_on_the_support_and_cover(name):
    rows, model = fitted(name)
    rows = rows.iloc[::2]
    lower, upper = model.predict_interval(rows, draws=40)
    assert RESPONSES[name].response.support.holds(np.concatenate([lower, upper])).all()
    assert scores.coverage(rows["y"].to_numpy(), lower, upper) > 0.85


@responses
def test_probabilities_are_uniform(name):
    """False alarms: one in a thousand for each."""
    rows, model = fitted(name)
    checked = model.check_rows(rows, rows["y"], draws=200)
    assert kstest(checked["pit"], "uniform").pvalue > 0.001
    # Rows of a group share its effect: one of them is as good as independent.
    new = draw(name, 40, 2).assign(g=lambda d: "new " + d["g"]).iloc[::10]
    with pytest.warns(nghvi.DataWarning, match="known"):
        pit = model.pit(new, new["y"])
    assert kstest(pit, "uniform").pvalue > 0.001


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
        FORMULA,
        rows,
        response=RESPONSES[name].response.name,
        hidden=(4,),
        steps=20,
        n_starts=1,
        importance=False,
    )
    assert np.isfinite(model.elbo_)
    assert np.isfinite(model.log_score(rows, rows["y"]))
