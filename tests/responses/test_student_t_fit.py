"""Fits with Student-t noise against MCMC, against the truth and against the Gaussian twin."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import nghvi
from nghvi.priors import HalfT, Priors

COLUMNS = ["g", "a", "b"]
SIGMA, NU = 0.6, 4.0


def simulate(noise, size=8, seed=2):
    """A random intercept and a random slope of a; the same 25 groups for every seed."""
    effects = np.random.default_rng(0).normal(size=(25, 2)) * [0.8, 0.5]
    group = np.repeat(np.arange(25), size)
    x = np.random.default_rng(seed).normal(size=(group.size, 2))
    eta = 5 + x @ [2.0, -1.0] + effects[group, 0] + effects[group, 1] * x[:, 0]
    error = noise.rvs(group.size, random_state=seed)
    return pd.DataFrame({"g": group, "a": x[:, 0], "b": x[:, 1], "y": eta + error})


HEAVY, NORMAL = simulate(stats.t(NU, 0, SIGMA)), simulate(stats.norm(0, SIGMA))


def slopes(frame, **settings):
    # The default prior of the noise would widen it: it is small compared with the variance of y.
    priors = Priors(noise=HalfT())
    model = nghvi.MixedRegressor("g", random=["intercept", "a"], priors=priors, **settings)
    return model.fit(frame[COLUMNS], frame["y"])


@pytest.fixture(scope="module")
def heavy():
    return slopes(HEAVY, response="student-t")


MCMC = {
    "intercept": (4.8944, 0.1817),
    "a": (2.2109, 0.1248),
    "b": (-1.0646, 0.0592),
    "noise_scale": (0.6479, 0.0695),
    "degrees": (8.9850, 6.8061),
    "effects_sd[intercept]": (0.8547, 0.1466),
    "effects_sd[a]": (0.5358, 0.1114),
    "effects_corr[intercept,a]": (0.3474, 0.2054),
}
"""Means and sds by 120,000 draws of ``paper.methods.gibbs``, with errors of 0.01 sd or less."""


def test_the_posterior_is_that_of_mcmc(heavy):
    """Means within 0.1 sd and sds within 10 %, five times the noise of 2700 effective draws."""
    assert heavy.converged_, heavy.verdict_
    ours = heavy.summary().loc[list(MCMC)]
    mean, sd = np.array(list(MCMC.values())).T
    np.testing.assert_array_less(np.abs(ours["mean"] - mean) / sd, 0.1)
    np.testing.assert_allclose(ours["sd"], sd, rtol=0.1)


def test_scale_and_degrees_are_reported(heavy):
    assert list(heavy.summary().index[3:5]) == ["noise_scale", "degrees"]
    drawn = heavy.posterior_draws(50)
    assert drawn["noise_scale"].shape == drawn["degrees"].shape == (50,)
    assert "noise_var" not in drawn
    tree = heavy.to_arviz(draws=50)
    assert {"noise_scale", "degrees", "effects"} <= set(tree["posterior"].data_vars)


def test_normal_noise_gives_many_degrees_and_the_gaussian_model_s_coefficients():
    student, gaussian = slopes(NORMAL, response="student-t"), slopes(NORMAL)
    assert student.converged_
    assert student.summary().loc["degrees", "q50"] > 12
    names = ["intercept", "a", "b", "effects_sd[intercept]", "effects_sd[a]"]
    ours, theirs = student.summary().loc[names], gaussian.summary().loc[names]
    np.testing.assert_array_less(np.abs(ours["mean"] - theirs["mean"]) / theirs["sd"], 0.35)
    np.testing.assert_allclose(ours["sd"], theirs["sd"], rtol=0.15)


def test_predictions_of_heavy_tails(heavy):
    """Held-out rows of the same groups. Coverage within 5 standard errors."""
    test = simulate(stats.t(NU, 0, SIGMA), size=72, seed=7)
    x, y = test[COLUMNS], test["y"]
    lower, upper = heavy.predict_interval(x, level=0.9)
    covered = np.mean((lower < y) & (y < upper))
    # The posterior of 200 rows moves all intervals at once: 0.03 more than binomial noise.
    assert abs(covered - 0.9) < 5 * np.sqrt(0.09 / len(y)) + 0.03
    assert heavy.log_score(x, y) > slopes(HEAVY).log_score(x, y)
    mean, sd = heavy.predict(x, return_std=True)
    drawn = heavy.sample_predictive(x, draws=200)
    assert abs(np.mean((drawn > lower) & (drawn < upper)) - 0.9) < 0.02
    np.testing.assert_allclose(np.mean((drawn - mean) ** 2), np.mean(sd**2), rtol=0.1)


def test_without_effects_densities_and_intervals_are_the_mixture_s():
    large = simulate(stats.t(NU, 0, SIGMA), size=100)
    x, y = large[["a", "b"]], large["y"] - large.groupby("g")["y"].transform("median")
    model = nghvi.MixedRegressor(response="student-t").fit(x, y)
    assert model.converged_
    at = model.posterior_.globals_at(
        model.posterior_.inference.pool.matched(200, np.random.default_rng(0))
    )
    location = at["coef"] @ np.column_stack([np.ones(len(x)), x]).T
    law = stats.t(at["degrees"][:, None], location, at["noise_scale"][:, None])
    exact = np.log(np.mean(law.pdf(y.to_numpy()), axis=0))
    np.testing.assert_allclose(model.log_densities(x, y), exact, rtol=1e-8)
    lower, upper = model.predict_interval(x, level=0.98)
    np.testing.assert_allclose(law.cdf(lower).mean(axis=0), 0.01, atol=1e-5)
    np.testing.assert_allclose(law.cdf(upper).mean(axis=0), 0.99, atol=1e-5)


def test_scale_and_degrees_are_those_of_the_process():
    """Eight samples with the default priors: 16 errors in posterior sds, false alarm rate 1e-3."""
    errors = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(2500, 2))
        y = 5 + x @ [2.0, -1.0] + SIGMA * rng.standard_t(NU, 2500)
        found = nghvi.MixedRegressor(response="student-t").fit(x, y).summary()
        found = found.loc[["noise_scale", "degrees"]]
        assert found.loc["degrees", "sd"] < 1  # so that an error of 4 is not among these few
        errors.append((found["mean"] - [SIGMA, NU]) / found["sd"])
    assert np.abs(errors).max() < 4
    assert np.sum(np.square(errors)) < stats.chi2(16).isf(5e-4)


def test_new_groups_and_files(heavy, tmp_path):
    new = HEAVY[HEAVY["g"] < 2].assign(g=lambda f: f["g"] + 100)
    extended = heavy.add_groups(new[COLUMNS], new["y"])
    effects = extended.group_effects()
    np.testing.assert_allclose(effects.iloc[-2:], effects.iloc[:2], rtol=1e-6, atol=1e-9)
    extended.save(tmp_path / "model")
    again = nghvi.load(tmp_path / "model")
    pd.testing.assert_frame_equal(again.group_effects(), effects)
    pd.testing.assert_frame_equal(again.summary(), heavy.summary())


@pytest.mark.slow
def test_a_network_on_repeated_inputs_shrugs_off_outliers():
    """Three effects per group are drawn by Gibbs sweeps."""
    rng = np.random.default_rng(0)
    inputs, number = rng.normal(size=(12, 1)), 400
    index, group = rng.integers(0, 12, number), rng.integers(0, 10, number)
    truth = np.tanh(2 * inputs[:, 0])[index] + rng.normal(0, 0.3, 10)[group]
    y = truth + 0.1 * rng.normal(size=number)
    y[::20] += 30
    x = pd.DataFrame({"g": group, "x": inputs[index, 0]})
    model = nghvi.MixedRegressor(
        "g", response="student-t", hidden=(2,), activation="tanh", steps=600, n_starts=1
    ).fit(x, y)
    assert model.posterior_.data.x.shape[0] == 12  # the network runs on the distinct inputs
    # The sd of y is 6.6 and without its outliers 0.8: only a good fit leaves so little.
    summary = model.summary()["mean"]
    assert summary["noise_scale"] < 0.3
    assert summary["degrees"] < 4
