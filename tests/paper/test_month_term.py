"""The asset pricing study with months as a second factor."""

import io

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import nghvi
from nghvi.paper import studies
from nghvi.paper.finance import synthetic_panel
from nghvi.paper.studies import Options, asset_pricing, asset_pricing_views, month_term
from nghvi.posterior.mixed_posterior import params_at


@pytest.fixture(scope="module")
def panel():
    return synthetic_panel(1, num_firms=24, num_groups=6)


def test_joint_density_of_a_month_is_the_dense_one(panel, monkeypatch):
    monkeypatch.setattr(month_term, "JOINT_DRAWS", 20)
    train, test = (
        part.assign(month=part["month"].astype(str)) for part in (panel.train, panel.test)
    )
    names = list(asset_pricing.FF3)
    model = nghvi.MixedRegressor(
        ["group", "month"], random={"group": "all", "month": "intercept"}, standardize=False
    ).fit(train[[*names, "group", "month"]], train["ret"])
    found = month_term.joint_scores(model, test, names)
    posterior = model.posterior_
    theta, (effects, _) = posterior.joint(20, seed=0)
    rows = test[test["month"] == "2016-03"]
    h = np.column_stack([np.ones(len(rows)), rows[names]])
    group = np.searchsorted(model.groups_["group"], rows["group"])
    drawn = []
    for each, own in zip(theta, effects, strict=True):
        params = params_at(posterior.model, posterior.data, each)
        mean = h @ np.asarray(posterior.model.coef(params)) + np.sum(h * own[group], axis=1)
        variance = float(posterior.model.precision_factors(params)[1][0, 0]) ** -2
        covariance = variance + np.exp(float(params.dispersion[0])) * np.eye(len(rows))
        drawn.append(multivariate_normal(mean, covariance).logpdf(rows["ret"]))
    expected = (logsumexp(drawn) - np.log(20)) / len(rows)
    month = sorted(test["month"].unique()).index("2016-03")
    assert found["joint_scores_test"][month] == pytest.approx(expected, abs=1e-6)


def test_study_compares_with_random_coefficients(panel, tmp_path, monkeypatch):
    monkeypatch.setattr(asset_pricing, "panel_of", lambda *chosen: (panel, "synthetic"))
    monkeypatch.setattr(asset_pricing, "FACTOR_SETS", {"FF3": asset_pricing.FF3})
    models = [model for model in month_term.MODELS if model.name == month_term.COEFFICIENTS]
    monkeypatch.setattr(month_term, "MODELS", models)
    console = Console(file=io.StringIO())
    options = Options(quick=True, replicates=1)
    rows = studies.reproduce(month_term.STUDY, tmp_path, options, console)
    assert [row["month"] for row in rows] == [True, False]
    shown = pd.read_csv(tmp_path / "months_models.csv", dtype=str)
    assert shown["jointly, difference"].str.contains("±").tolist() == [False, True]
    # Returns of the synthetic panel have no common shocks: months are worth nothing.
    gain, _, low, high = asset_pricing_views.compared(rows[1], rows[0], "log")
    assert abs(gain) < 0.02
    assert low <= gain <= high
    assert len(rows[0]["months_test"]) == len(rows[0]["joint_scores_test"]) == 60
