"""Every response through everything that follows a fit, without groups, so that fits are quick.

This is one contract, run over the registry; tests/contracts/test_response_fits.py has groups.
"""

import functools

import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi import plots
from nghvi.interpret import lek_profile, partial_dependence
from tests.contracts.test_response_fits import LEFT, bound, draw
from tests.registry import RESPONSES

ALWAYS = ("poisson", "ordered-logit", "tobit", "lognormal")
"""A count, classes, a number with facts and a positive one; ``make test-slow`` fits the others."""
responses = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ALWAYS else pytest.mark.slow) for n in RESPONSES],
)


@functools.cache
def fitted(name):
    response = RESPONSES[name].response
    rows = draw(name, 6, 1)
    return rows, nghvi.mixed(f"{LEFT[response.facts]} ~ x", rows, response=response.name)


@responses
def test_everything_after_the_fit_knows_the_support(name, tmp_path):
    response, (rows, model) = RESPONSES[name].response, fitted(name)
    assert model.converged_, model.verdict_
    support, new = bound(response, rows).support, rows.assign(x=rows["x"] + 0.01)
    drawn = model.sample_predictive(rows, draws=20)
    assert support.holds(drawn).all() or response.classes
    if not response.classes:
        lower, upper = model.predict_interval(rows, draws=40)
        assert support.holds(lower).all()
        assert support.holds(upper).all()
        assert np.mean((lower <= rows["y"]) & (rows["y"] <= upper)) > 0.8
        mean, sd = model.predict(rows, return_std=True, draws=40)
        assert np.isfinite(mean).all()
        assert np.all(sd > 0)
        pit = model.pit(new, rows["y"], draws=40)
        assert np.all((pit >= 0) & (pit <= 1))
    checked = model.check_rows(rows, rows["y"], draws=100)
    assert np.isfinite(checked["predicted"]).all()
    assert checked["pit"].between(0, 1).all()
    assert np.isfinite(model.loo(rows, rows["y"], draws=100).elpd)
    assert set(model.prior_summary().index) == set(model.summary().index)
    assert np.isfinite(model.prior_sensitivity()[["prior", "likelihood"]]).all(axis=None)
    if response.ratio is None:
        with pytest.raises(nghvi.DataError, match="not log ratios"):
            model.ratios()
    else:
        np.testing.assert_allclose(
            model.ratios().loc["x", "q50"], np.exp(model.summary().loc["x", "q50"]), rtol=1e-6
        )
    for curve in (
        lek_profile(model, "x", n_grid=3, draws=20),
        partial_dependence(model, "x", rows, n_grid=3, draws=20),
    ):
        assert np.isfinite(curve[["mean", "lower", "upper"]]).all(axis=None)
    model.save(tmp_path / "model.nghvi")
    again = nghvi.load(tmp_path / "model.nghvi")
    pd.testing.assert_frame_equal(again.summary(), model.summary())
    np.testing.assert_array_equal(again.predict(new), model.predict(new))
    page = again.report(tmp_path / "page.html", rows, rows["y"]).read_text()
    assert response.name in page
    if response.ratio is not None:
        assert response.ratio in page.lower()
    tree = again.to_arviz(20, X=rows, y=rows["y"])
    assert np.isfinite(tree["log_likelihood"].to_dataset().to_array()).all()
    plots.posterior(again)
