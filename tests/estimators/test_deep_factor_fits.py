"""Networks with several grouping factors through formulas, estimators and files."""

import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi import interpret
from nghvi.data.panel import CrossedPanel
from nghvi.estimators.assembly import assemble
from nghvi.estimators.reader import read_to_fit
from nghvi.estimators.spec import GROUPS_OF_LEARNT
from nghvi.networks import Identity, Skip
from nghvi.posterior.mixed_posterior import params_at
from nghvi.responses import Gaussian

FORMULA = "y ~ x + z + (. | firm) + (1 | month)"
QUICK = {"hidden": (4,), "activation": "tanh", "steps": 400, "n_starts": 1}


def curve(seed=0, firms=12, months=10, bend=1.5):
    rng = np.random.default_rng(seed)
    firm, month = (each.ravel() for each in np.meshgrid(range(firms), range(months)))
    x, z = rng.standard_normal((2, len(firm)))
    y = 2 + 0.5 * z + bend * np.tanh(2 * x) + rng.standard_normal(firms)[firm]
    y += 0.7 * rng.standard_normal(months)[month] + 0.2 * rng.standard_normal(len(firm))
    named = {"firm": firm + 100, "month": [f"m{k}" for k in month]}
    return pd.DataFrame({"y": y, "x": x, "z": z, **named})


@pytest.fixture(scope="module")
def rows():
    return curve()


@pytest.fixture(scope="module")
def fitted(rows):
    with pytest.warns(nghvi.DataWarning, match="learns .h1 to h4. with 12 groups"):
        return nghvi.mixed(FORMULA, rows, **QUICK)


def test_the_network_is_found_beside_both_factors(fitted, rows):
    posterior = fitted.posterior_
    assert isinstance(posterior.model.trunk, Skip)
    assert isinstance(posterior.data, CrossedPanel)
    assert fitted.status_ in ("settled", "not_settled")
    assert list(fitted.groups_) == ["firm", "month"]
    assert posterior.names.factors[0].effects == ("intercept", "x", "z", "h1", "h2", "h3", "h4")
    assert posterior.names.factors[1].effects == ("intercept",)
    sds = fitted.summary()["mean"]
    assert 0.3 < sds["effects_sd[intercept | firm]"] < 2
    assert 0.3 < sds["effects_sd[intercept | month]"] < 1.5
    truth = 0.5 * rows["z"] + 1.5 * np.tanh(2 * rows["x"])
    assert np.corrcoef(fitted.predict(rows, which="zero"), truth)[0, 1] > 0.95


def dense_prediction(estimator, rows, new, draws=100):
    """Return means and sds of rows, by solving with all rows of the fit for every theta."""
    posterior = estimator.posterior_
    theta = posterior.inference.pool.resample(draws, np.random.default_rng(1))
    both = pd.concat([rows, new], ignore_index=True)
    x = (both[["x", "z"]].to_numpy() - posterior.scaling.centre) / posterior.scaling.scale
    y = posterior.scaling.apply_response(rows["y"].to_numpy())
    same = [both[f].to_numpy()[:, None] == both[f].to_numpy() for f in ("firm", "month")]
    n, means, squares, model = len(rows), [], [], posterior.model
    for each in theta:
        params = params_at(model, posterior.data, each)
        h, total = np.asarray(model.features(params, x)), 0.0
        lowers = model.precision_factors(params)
        for equal, columns, lower in zip(same, model.by_factor, lowers, strict=True):
            lower, own = np.asarray(lower), h[:, columns]
            total = total + equal * (own @ np.linalg.inv(lower @ lower.T) @ own.T)
        fixed, noise = h @ np.asarray(model.coef(params)), float(np.exp(params.dispersion[0]))
        gain = np.linalg.solve(total[:n, :n] + noise * np.eye(n), total[:n, n:])
        means.append(fixed[n:] + gain.T @ (y - fixed[:n]))
        squares.append(np.diagonal(total[n:, n:] - total[n:, :n] @ gain) + noise)
    sd = np.sqrt(np.mean(squares, 0) + np.var(means, 0))
    return posterior.scaling.raw_response(np.mean(means, 0)), posterior.scaling.y_scale * sd


def test_predictions_of_known_and_new_levels_are_those_of_all_rows(fitted, rows):
    new = pd.DataFrame(
        {
            "x": [0.0, 1.0, -1.0, 0.5],
            "z": [0.0, 1.0, 0.0, -1.0],
            "firm": [100, 105, 999, 998],
            "month": ["m1", "later", "m2", "later"],
        }
    )
    mean, sd = fitted.predict(new, return_std=True, draws=400)
    expected, spread = dense_prediction(fitted, rows, new)
    assert np.all(np.abs(mean - expected) < 0.15 * spread)
    np.testing.assert_allclose(sd, spread, rtol=0.1)
    drawn = fitted.sample_predictive(new, draws=1000)
    np.testing.assert_allclose(drawn.std(axis=0), spread, rtol=0.2)


def test_a_saved_network_is_the_same(fitted, rows, tmp_path):
    fitted.save(tmp_path / "model")
    again = nghvi.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(rows), fitted.predict(rows))
    assert again.group_effects("month").equals(fitted.group_effects("month"))


def test_what_can_be_asked_of_it(fitted, rows, tmp_path):
    drawn = fitted.posterior_draws(1000)["effects[month]"][:, :, 0]
    months = fitted.group_effects("month")
    np.testing.assert_allclose(months["intercept_mean"], drawn.mean(0), atol=0.2 * drawn.std())
    loo = fitted.loo(rows, rows["y"], draws=500)
    assert loo.elpd < fitted.log_score(rows, rows["y"]) * len(rows)
    profile = interpret.lek_profile(fitted, "x", grid=[-1.0, 0.0, 1.0])["mean"].to_numpy()
    assert np.all(np.diff(profile) > 0.5)
    shares = interpret.variance_share(fitted)
    np.testing.assert_allclose(shares["mean"].sum(), 1)
    assert list(shares.index) == list(fitted.posterior_.names.effects)
    other = interpret.variance_share(fitted, rows)
    np.testing.assert_allclose(other["mean"], shares["mean"], rtol=1e-6)
    page = fitted.report(tmp_path / "page.html", rows, rows["y"])
    assert "12 of firm, 10 of month" in page.read_text()


def test_a_network_without_use_becomes_the_linear_model_with_both_factors():
    flat = curve(1, bend=0.0)
    model = nghvi.MixedRegressor(["firm", "month"], **QUICK).fit(flat.drop(columns="y"), flat["y"])
    assert "The network adds nothing here" in model.verdict_
    assert isinstance(model.posterior_.model.trunk, Identity)
    assert model.posterior_.names.effects == ("intercept | firm", "intercept | month")
    assert model.status_ == "converged"


def effects_of(rows, **settings):
    """Return the names of the effects that an estimator would fit, by factor."""
    model = nghvi.MixedRegressor(**{"group": ["firm", "month"], **QUICK} | settings)
    response = Gaussian()
    reader, source = read_to_fit(model, rows.drop(columns="y"), rows["y"], None, response)
    names = assemble(model, reader.spec, source, response).names
    return {factor.name: factor.effects for factor in names.factors}


LEARNT = ("h1", "h2", "h3", "h4")


def test_which_features_have_effects(rows):
    few = {"firm": ("intercept", "x", "z"), "month": ("intercept",)}
    assert effects_of(rows) == few
    constant = rows.assign(z=rows["firm"] / 10.0)
    assert effects_of(constant)["firm"] == ("intercept", "x")
    many = curve(2, GROUPS_OF_LEARNT, 3)
    assert effects_of(many)["firm"] == ("intercept", "x", "z", *LEARNT)
    asked = {"random": {"firm": "intercept", "month": ["intercept", "h1"]}}
    with pytest.warns(nghvi.DataWarning, match="learns .h1. with 10 groups"):
        found = effects_of(rows, **asked)
    assert found == {"firm": ("intercept",), "month": ("intercept", "h1")}
    bare = effects_of(rows, skip=False)
    assert bare == {"firm": ("intercept", *LEARNT), "month": ("intercept",)}


def test_other_responses_and_other_effects_are_refused(rows):
    x = rows.drop(columns="y")
    model = nghvi.MixedRegressor(["firm", "month"], **QUICK, response="student-t")
    with pytest.raises(nghvi.InputError, match=r"need a Gaussian response .*, not 'student-t'"):
        model.fit(x, rows["y"])
    with pytest.raises(nghvi.InputError, match=r"with hidden layers write '\(1 \| group\)'"):
        nghvi.mixed("y ~ x + (1 + x | firm) + (1 | month)", rows, **QUICK)
