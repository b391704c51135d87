"""The estimators give right answers on the user's scale, for any kind of table."""

import signal

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone

import nghvi
from nghvi.paper.methods.gibbs import gibbs
from nghvi.priors import InverseGamma, Priors, WishartPrecision

COLUMNS = ["g", "a", "b"]


def test_posterior_agrees_with_gibbs(panel, fitted, key):
    """Means agree within 0.1 sd and sds within 8 %; 10,000 Gibbs draws have 0.03 sd of noise."""
    posterior = fitted.posterior_
    from nghvi.data.grouped import Rows

    x = np.column_stack([np.ones(len(panel)), panel[["a", "b"]]])
    rows = Rows.from_arrays(
        posterior.scaling.apply(x),
        posterior.scaling.apply_response(panel["y"].to_numpy()),
        panel["g"].to_numpy(),
        30,
    )
    chain = gibbs(key, posterior.model, rows, draws=2500, burn_in=500, chains=4)
    theirs = np.asarray(chain.coef).reshape(-1, 3) @ posterior.maps()[0].T
    theirs[:, 0] += posterior.scaling.y_centre
    ours = fitted.posterior_draws(4000)
    np.testing.assert_array_less(np.abs(ours["coef"].mean(0) - theirs.mean(0)) / theirs.std(0), 0.1)
    np.testing.assert_allclose(ours["coef"].std(0), theirs.std(0), rtol=0.08)
    noise = np.log(np.asarray(chain.noise_var).ravel() * posterior.scaling.y_scale**2)
    assert abs(np.log(ours["noise_var"]).mean() - noise.mean()) < 0.1 * noise.std()
    cov = (
        posterior.maps()[1]
        @ np.asarray(chain.effects_cov).reshape(-1, 2, 2)
        @ posterior.maps()[1].T
    )
    for j in range(2):
        own, other = np.log(ours["effects_cov"][:, j, j]), np.log(cov[:, j, j])
        assert abs(own.mean() - other.mean()) < 0.1 * other.std()
        assert own.std() == pytest.approx(other.std(), rel=0.08)


def test_draws_have_the_promised_shapes_and_agree_with_the_tables(panel, fitted):
    drawn = fitted.posterior_draws(draws=3000, seed=1)
    assert drawn["coef"].shape == (3000, 3)
    assert drawn["noise_var"].shape == (3000,)
    assert drawn["effects_cov"].shape == (3000, 2, 2)
    assert drawn["effects"].shape == (3000, 30, 2)
    summary = fitted.summary()
    assert list(summary.columns) == ["mean", "sd", "q5", "q50", "q95"]
    assert list(summary.index[:4]) == ["intercept", "a", "b", "noise_var"]
    np.testing.assert_allclose(summary["mean"][:3], drawn["coef"].mean(0), atol=0.02)
    covariance = fitted.effects_covariance()
    np.testing.assert_allclose(
        covariance["mean"].loc[[("intercept", "a"), ("a", "a")]],
        drawn["effects_cov"][:, 1].mean(0),
        rtol=0.1,
    )
    effects = fitted.group_effects()
    assert list(effects.index) == list(fitted.groups_)
    np.testing.assert_allclose(effects["a_mean"], drawn["effects"][:, :, 1].mean(0), atol=0.03)
    np.testing.assert_allclose(effects["a_sd"], drawn["effects"][:, :, 1].std(0), rtol=0.1)


def test_fit_reports_itself(fitted):
    assert fitted.converged_
    assert fitted.verdict_.startswith("Converged")
    assert fitted.elbo_ <= fitted.log_evidence_
    assert np.isfinite(fitted.k_hat_)
    assert {"stage", "elbo"} <= set(fitted.trace_.columns)
    assert fitted.n_iter_ == len(fitted.trace_)


def test_effects_are_those_of_the_right_groups(panel):
    """Groups of very unequal size with unordered labels each keep their own effect."""
    rng = np.random.default_rng(1)
    shift = {"z": 3.0, "m": -3.0, "a": 0.5, "q": -0.5}
    labels = np.repeat(list(shift), [40, 7, 90, 3])
    y = np.array([shift[s] for s in labels]) + 0.1 * rng.normal(size=labels.size)
    frame = pd.DataFrame({"who": labels, "x": rng.normal(size=labels.size)})
    order = rng.permutation(len(frame))
    fitted = nghvi.MixedRegressor("who").fit(frame.iloc[order], y[order])
    effects = fitted.group_effects()["intercept_mean"] + fitted.summary()["mean"]["intercept"]
    for label, value in shift.items():
        assert effects[label] == pytest.approx(value, abs=0.2)
    np.testing.assert_allclose(fitted.predict(frame), [shift[s] for s in labels], atol=0.25)


def test_standardising_changes_the_scale_of_the_fit_not_the_answer(panel):
    """With priors that are flat on both scales, the two posteriors agree."""
    flat = Priors(coef_sd=1e3, noise=InverseGamma(1e-3, 1e-3), effects=WishartPrecision(1e6))
    frame = panel.assign(a=5 + 10 * panel["a"])
    fits = [
        nghvi.MixedRegressor("g", random=["intercept", "a"], priors=flat, standardize=s).fit(
            frame[COLUMNS], 100 + 7 * panel["y"]
        )
        for s in (True, False)
    ]
    one, two = (f.summary() for f in fits)
    names = ["intercept", "a", "b", "noise_var", "effects_sd[a]", "effects_corr[intercept,a]"]
    away = np.abs(one["mean"] - two["mean"]) / two["sd"]
    assert (away[names] < 0.1).all()
    np.testing.assert_allclose(one["sd"][names], two["sd"][names], rtol=0.07)
    np.testing.assert_allclose(
        fits[0].predict(frame[COLUMNS]), fits[1].predict(frame[COLUMNS]), rtol=0.01
    )


def test_elbo_is_a_density_of_the_raw_response(panel):
    """Rescaling y by c moves the log evidence by -n log c, whatever the standardisation."""
    one = nghvi.MixedRegressor("g").fit(panel[COLUMNS], panel["y"])
    two = nghvi.MixedRegressor("g").fit(panel[COLUMNS], 10 * panel["y"])
    assert two.log_evidence_ == pytest.approx(one.log_evidence_ - len(panel) * np.log(10), abs=0.1)


def test_unseen_groups_get_the_population(panel, fitted):
    new = pd.DataFrame({"g": [999, 999], "a": [0.0, 1.0], "b": [0.0, 0.0]})
    coef = fitted.summary()["mean"]
    np.testing.assert_allclose(
        fitted.predict(new), [coef["intercept"], coef["intercept"] + coef["a"]], atol=0.02
    )


def test_tables_of_every_kind_give_the_same_fit(panel):
    reference = nghvi.MixedRegressor("g").fit(panel[COLUMNS], panel["y"])
    polars = pl.from_pandas(panel)
    nullable = panel.convert_dtypes()
    for x, y, group in [
        (polars.select(COLUMNS), polars["y"], "g"),
        (nullable[COLUMNS], nullable["y"], "g"),
        (panel[COLUMNS].to_numpy(), panel["y"].to_numpy(), 0),
        (panel[["a", "b", "g"]].to_numpy(), panel["y"].to_numpy(), -1),
        (panel[COLUMNS].assign(g=panel["g"].astype("category")), panel["y"], "g"),
    ]:
        other = nghvi.MixedRegressor(group).fit(x, y)
        np.testing.assert_allclose(
            other.summary()["mean"], reference.summary()["mean"], rtol=1e-9, atol=1e-12
        )
        np.testing.assert_allclose(other.predict(x), reference.predict(panel[COLUMNS]), rtol=1e-9)


def test_probit_recovers_probabilities(binary_panel, fitted_binary):
    probability = fitted_binary.predict_proba(binary_panel[COLUMNS])
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    assert fitted_binary.score(binary_panel[COLUMNS], binary_panel["y"]) > 0.7
    assert fitted_binary.converged_
    assert abs(probability[:, 1].mean() - binary_panel["y"].mean()) < 0.03
    labels = np.where(binary_panel["y"] == 1, "yes", "no")
    named = nghvi.MixedClassifier("g").fit(binary_panel[COLUMNS], labels)
    assert set(named.predict(binary_panel[COLUMNS])) <= {"no", "yes"}
    np.testing.assert_allclose(named.predict_proba(binary_panel[COLUMNS]), probability, atol=1e-9)


@pytest.mark.slow
def test_probit_with_four_effects_is_integrated_and_converges(binary_panel):
    few = binary_panel[binary_panel["g"] < 12]
    frame = few[COLUMNS].assign(c=np.sin(np.arange(len(few))))
    fitted = nghvi.MixedClassifier("g", random="all", covariance="diagonal").fit(frame, few["y"])
    assert fitted.converged_, fitted.verdict_
    assert np.isfinite(fitted.summary().to_numpy()).all()
    assert np.isfinite(fitted.elbo_)


def test_without_a_group_it_is_a_bayesian_regression(panel):
    fitted = nghvi.MixedRegressor(standardize=False).fit(panel[["a", "b"]], panel["y"])
    x = np.column_stack([np.ones(len(panel)), panel[["a", "b"]]])
    ols = np.linalg.lstsq(x, panel["y"], rcond=None)[0]
    np.testing.assert_allclose(fitted.summary()["mean"][:3], ols, atol=0.02)
    assert fitted.posterior_draws(10)["effects"].shape == (10, 1, 0)


def test_correlated_and_independent_effects(panel):
    full = nghvi.MixedRegressor("g", random="all").fit(panel[COLUMNS], panel["y"])
    assert np.abs(full.posterior_draws(100)["effects_cov"][:, 0, 1]).min() > 0
    diagonal = nghvi.MixedRegressor("g", random="all", covariance="diagonal").fit(
        panel[COLUMNS], panel["y"]
    )
    off = diagonal.posterior_draws(100)["effects_cov"][:, 0, 1:]
    np.testing.assert_allclose(off[:, 0], 0, atol=1e-9)
    assert full.converged_
    assert diagonal.converged_


def test_clone_and_parameters():
    model = nghvi.MixedRegressor("g", random=["intercept"], priors=Priors.paper(), rank=2)
    again = clone(model)
    assert again.get_params() == model.get_params()
    assert Priors.paper().effects == WishartPrecision(0.01)


def test_arviz_tree_is_labelled(fitted):
    tree = fitted.to_arviz(draws=50)
    posterior = tree["posterior"]
    assert posterior["effects"].dims == ("chain", "draw", "group", "effect")
    assert list(posterior["coef"].coords["feature"].values) == ["intercept", "a", "b"]
    assert posterior.attrs["inference_library"] == "nghvi"


def test_an_interrupted_fit_is_usable_and_resumes(panel, monkeypatch):
    from nghvi.estimators import fitting

    whole = nghvi.MixedRegressor("g").fit(panel[COLUMNS], panel["y"])

    class Interrupting(fitting.FitProgress):
        def __call__(self, *state):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(fitting, "FitProgress", Interrupting)
    part = nghvi.MixedRegressor("g", verbose=True).fit(panel[COLUMNS], panel["y"])
    assert not part.converged_
    assert part.status_ == "interrupted"
    assert "resume()" in part.verdict_
    assert np.isfinite(part.predict(panel[COLUMNS])).all()
    part.set_params(verbose=False).resume()
    assert part.converged_
    assert part.elbo_ == whole.elbo_


def test_summary_has_intervals_of_a_level_and_is_shown_whole(fitted):
    wide = fitted.summary(level=0.95)
    assert list(wide.columns) == ["mean", "sd", "q2.5", "q50", "q97.5"]
    assert (wide["q2.5"] < fitted.summary()["q5"]).all()
    assert list(fitted.summary(0.5).columns[2:]) == ["q25", "q50", "q75"]
    assert not wide.index.str.startswith("effects_cov").any()
    assert wide.index[-1] == "effects_corr[intercept,a]"
    for level in (0, 1, 90, "all", None):
        with pytest.raises(nghvi.DataError, match="level="):
            fitted.summary(level)
    with pd.option_context("display.width", 20, "display.max_columns", 2, "display.max_rows", 2):
        for table in (wide, wide.round(2), wide[["mean", "sd"]]):
            assert "..." not in str(table)
            assert "..." not in table._repr_html_()
            assert "effects_sd[a]" in str(table)


def test_effects_at_zero_need_no_group(panel, fitted):
    rows = panel[["a", "b"]].head(5)
    expected = fitted.predict(panel.head(5)[["g", "a", "b"]], which="zero")
    np.testing.assert_allclose(fitted.predict(rows, which="zero"), expected, rtol=1e-9)
    with pytest.raises(nghvi.DataError, match="'g' is not in the data"):
        fitted.predict(rows)
    by_formula = nghvi.mixed("y ~ a + b + (1 + a | g)", panel)
    np.testing.assert_allclose(by_formula.predict(rows, which="zero"), expected, rtol=1e-9)
    numbered = nghvi.MixedRegressor(0, random=["intercept", "x1"])
    numbered.fit(panel[["g", "a", "b"]].to_numpy(), panel["y"])
    np.testing.assert_allclose(numbered.predict(rows.to_numpy(), which="zero"), expected, rtol=1e-9)
