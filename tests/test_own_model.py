"""The documented example of a user's own model runs and gives the right answer."""

import dataclasses
import importlib.util
import pathlib

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import nghvi
from nghvi.storage import StorageError, classes
from tests.core.test_fit import DATA, NormalMean

EXAMPLE = pathlib.Path(__file__).parent.parent / "docs" / "extending" / "tobit.py"


@pytest.fixture(scope="module")
def tobit():
    spec = importlib.util.spec_from_file_location("tobit", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(tobit):
    return tobit.simulate()


@pytest.fixture(scope="module")
def integrated(tobit, data):
    return nghvi.infer(tobit.IntegratedTobit(), data)


@pytest.fixture(scope="module")
def posterior(integrated):
    return nghvi.Posterior(integrated)


def test_sampled_and_integrated_tobit_agree(tobit, data, integrated):
    sampled = nghvi.infer(tobit.Tobit(), data)
    assert sampled.converged
    assert integrated.converged
    ours, theirs = sampled.draws(4000), integrated.draws(4000)
    np.testing.assert_array_less(
        np.abs(ours.beta.mean(0) - theirs.beta.mean(0)) / theirs.beta.std(0), 0.12
    )
    np.testing.assert_allclose(ours.beta.std(0), theirs.beta.std(0), rtol=0.12)
    assert np.isnan(sampled.elbo)
    assert integrated.elbo <= integrated.log_evidence


def test_summary_is_that_of_the_draws_in_the_columns_of_every_summary(posterior, tobit):
    table = posterior.summary()
    assert list(table.columns) == ["mean", "sd", "q5", "q50", "q95"]
    assert list(table.index) == ["beta[0]", "beta[1]", "beta[2]", "sd"]
    draws = posterior.draws(20_000, seed=3)
    np.testing.assert_allclose(table["mean"][:3], draws.beta.mean(0), atol=0.002)
    sd = np.exp(0.5 * np.asarray(draws.log_variance))
    expected = [sd.mean(), sd.std(), *np.quantile(sd, [0.05, 0.5, 0.95])]
    np.testing.assert_allclose(table.loc["sd"], expected, rtol=0.03)
    assert list(posterior.summary(level=0.5).columns) == ["mean", "sd", "q25", "q50", "q75"]
    with pytest.raises(nghvi.InputError, match="level=90"):
        posterior.summary(level=90)


def test_parameters_are_named_by_their_paths_unless_a_model_says_more():
    class Nested(NormalMean):
        def init_params(self, key, data):
            return {"a": jnp.zeros(2), "b": [jnp.zeros(()), jnp.zeros((1, 1))]}

        def log_marginal(self, params, data):
            return -sum(jnp.sum(leaf**2) for leaf in (params["a"], *params["b"]))

    index = nghvi.Posterior(nghvi.infer(Nested(), DATA)).summary().index
    assert list(index) == ["a[0]", "a[1]", "b.0", "b.1[0,0]"]
    bare = nghvi.Posterior(nghvi.infer(NormalMean(), DATA))
    assert list(bare.summary().index) == [f"theta[{i}]" for i in range(4)]


def test_latents_are_drawn_given_the_parameters():
    """z given theta is N((y + theta) / 2, 1 / 2), theta is N(2 y / 3, 4 / 3): all is known."""
    posterior = nghvi.Posterior(nghvi.infer(NormalMean(), DATA))
    theta, z = (np.asarray(f(8000, seed=2)) for f in (posterior.draws, posterior.latent_draws))
    residual = z - (DATA + theta) / 2
    np.testing.assert_allclose(residual.mean(0), 0, atol=0.03)
    np.testing.assert_allclose(residual.var(0), 0.5, rtol=0.06)
    table = posterior.latent_summary(draws=8000)
    assert list(table.index) == [f"latents[{i}]" for i in range(4)]
    np.testing.assert_allclose(table["mean"], 5 * DATA / 6, atol=0.05)
    np.testing.assert_allclose(table["sd"], np.sqrt(0.5 + 1 / 3), rtol=0.04)


def test_predictions_are_those_of_the_model_averaged_over_its_posterior(posterior):
    new = jnp.array([[1.0, 0.0, 0.0], [1.0, 1.0, -1.0]])
    table = posterior.predict(new, draws=8000)
    draws = posterior.draws(8000)
    mean, sd = draws.beta @ new.T, jnp.exp(0.5 * draws.log_variance)[:, None]
    white = mean / sd  # E max(Y, 0) of a normal Y
    exact = np.mean(mean * stats.norm.cdf(white) + sd * stats.norm.pdf(white), axis=0)
    np.testing.assert_allclose(table["mean"], exact, atol=0.03)
    assert list(table.index) == [0, 1]
    assert table["q5"][0] == 0  # censored
    assert posterior.predictive_draws(new, draws=7).shape == (7, 2)


def test_a_model_that_does_not_say_how_cannot_predict():
    posterior = nghvi.Posterior(nghvi.infer(NormalMean(), DATA))
    with pytest.raises(nghvi.InputError, match="NormalMean does not say how to predict"):
        posterior.predict(DATA)


def test_a_posterior_comes_back_from_a_file_as_it_was(posterior, tmp_path):
    path, new = tmp_path / "tobit.nghvi", jnp.array([[1.0, 0.5, 0.0]])
    posterior.save(path)
    again = nghvi.load(path)
    pd.testing.assert_frame_equal(again.summary(), posterior.summary(), check_exact=True)
    pd.testing.assert_frame_equal(again.predict(new), posterior.predict(new), check_exact=True)
    assert again.inference.verdict == posterior.inference.verdict
    assert again.inference.elbo == posterior.inference.elbo


def test_a_file_runs_no_code_and_names_the_class_that_is_missing(posterior, tmp_path, monkeypatch):
    path = tmp_path / "tobit.nghvi"
    posterior.save(path)
    known = {k: v for k, v in classes._CLASSES.items() if k not in ("IntegratedTobit", "Data")}
    monkeypatch.setattr(classes, "_CLASSES", known)
    with pytest.raises(StorageError, match=r"'IntegratedTobit' is not known.*register"):
        nghvi.load(path)
    with pytest.raises(StorageError, match=r"model: .*IntegratedTobit cannot be saved.*register"):
        posterior.save(path)


def test_parts_that_do_not_fit_together_are_refused(posterior, tmp_path):
    pool = posterior.inference.pool
    short = dataclasses.replace(posterior.inference, pool=pool._replace(theta=pool.theta[:, :3]))
    nghvi.Posterior(short).save(tmp_path / "short.nghvi")
    with pytest.raises(StorageError, match="differ in size"):
        nghvi.load(tmp_path / "short.nghvi")


def test_the_example_runs(tobit, tmp_path, capsys):
    tobit.main(tmp_path)
    printed = capsys.readouterr().out
    assert printed.count("Converged") == 2
    assert "beta[0]" in printed
