"""Fits by surfaces: the best Gaussian for a polynomial, its judge, and whole fits."""

import functools
import signal

import jax
import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi import inference
from nghvi._core.evaluate import Evaluation, log_targets, values_and_scores
from nghvi.recipes import by_surface, plan
from nghvi.recipes.by_surface import _best_gaussian, _judged, _Normal
from nghvi.recipes.refined_fit import _placed_at
from nghvi.recipes.surface import fitted_surface
from nghvi.recipes.verdict import Status

M = 3


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def density(theta):
    """A skewed log density, a polynomial of degree four, and its gradient."""
    a = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 0.5]])
    square = np.einsum("si,ij,sj->s", theta, a, theta)
    value = -0.5 * square + 0.15 * theta[:, 0] * theta[:, 1] ** 2 - 0.02 * theta[:, 1] ** 4
    score = -theta @ a
    score[:, 0] += 0.15 * theta[:, 1] ** 2
    score[:, 1] += 0.3 * theta[:, 0] * theta[:, 1] - 0.08 * theta[:, 1] ** 3
    return value, score


def surface_of_density(rng):
    theta = rng.normal(size=(300, M)) * [0.7, 1.0, 1.4]
    value, score = density(theta)
    weight = np.full(len(theta), 1 / len(theta))
    found = fitted_surface(theta, value, weight, score)
    assert found is not None
    return found


def test_surface_has_the_gradient_of_its_values(rng):
    surface = surface_of_density(rng)
    theta, step = rng.normal(size=(5, M)), 1e-5
    for j, unit in enumerate(np.eye(M)):
        slope = (surface(theta + step * unit) - surface(theta - step * unit)) / (2 * step)
        np.testing.assert_allclose(surface.scores(theta)[:, j], slope, rtol=1e-6, atol=1e-7)


def test_best_gaussian_solves_the_equations_of_the_optimum(rng):
    """At the optimum E[grad] = 0 and E[-hessian] = precision, here by 400,000 draws."""
    best = _best_gaussian(surface_of_density(rng), _Normal(np.full(M, 0.3), 1.5 * np.eye(M)))
    assert best is not None
    half = rng.normal(size=(200_000, M))
    z = np.concatenate([half, -half])
    whitened = density(best.mean + z @ best.root.T)[1] @ best.root
    np.testing.assert_allclose(whitened.mean(axis=0), 0, atol=0.01)
    np.testing.assert_allclose(-whitened.T @ z / len(z), np.eye(M), atol=0.03)


@pytest.mark.parametrize("away", [0.0, 0.3])
def test_judge_finds_a_gaussian_that_is_not_the_best(rng, away):
    surface = surface_of_density(rng)
    best = _best_gaussian(surface, _Normal(np.zeros(M), np.eye(M)))
    assert best is not None
    half = rng.normal(size=(25, M))
    theta = best.mean + np.concatenate([half, -half]) @ best.root.T
    value, score = density(theta)
    # The density is another one than the surface's: its mode lies elsewhere by ``away``.
    precision = np.linalg.inv(best.root @ best.root.T)
    shift = away * np.linalg.norm(best.root[0]) * precision[0] / precision[0, 0]
    found = Evaluation(theta, value, best.log_density(theta), score + shift)
    verdict, info = _judged(best, found, surface)
    assert verdict.converged == (away == 0)
    assert np.abs(np.asarray(info.remaining.mean)).max() == pytest.approx(away, abs=0.3)


def binary_table(groups=300, size=5):
    rng = np.random.default_rng(3)
    g = np.repeat(np.arange(groups), size)
    x = rng.normal(size=g.size)
    eta = 0.3 + 0.8 * x + rng.normal(size=groups)[g]
    return pd.DataFrame({"g": g, "x": x, "y": (rng.normal(size=g.size) < eta).astype(int)})


@functools.cache
def fits():
    """The same model by a surface and by steps."""
    with pytest.MonkeyPatch.context() as patch:
        ours = nghvi.mixed("y ~ x + (1 | g)", binary_table(), response="probit")
        patch.setattr(plan, "SLOW", 10**9)
        steps = nghvi.mixed("y ~ x + (1 | g)", binary_table(), response="probit")
    return ours, steps


def test_whole_fit_agrees_with_natural_gradient_steps():
    ours, steps = fits()
    assert ours.status_ == steps.status_ == "converged"
    assert list(ours.trace_["stage"].unique()) == ["surface"]
    a, b = ours.posterior_.inference, steps.posterior_.inference
    sd = np.asarray(b.q.standard_deviation())
    np.testing.assert_allclose((np.asarray(a.q.mean) - np.asarray(b.q.mean)) / sd, 0, atol=0.05)
    np.testing.assert_allclose(np.asarray(a.q.standard_deviation()) / sd, 1, atol=0.03)
    assert ours.elbo_ == pytest.approx(steps.elbo_, abs=0.1)
    assert ours.log_evidence_ == pytest.approx(steps.log_evidence_, abs=0.05)
    for name in steps.summary().index:
        one, other = ours.summary().loc[name], steps.summary().loc[name]
        assert abs(one["mean"] - other["mean"]) < 0.06 * other["sd"], name
        assert one["sd"] == pytest.approx(other["sd"], rel=0.05), name


def test_result_does_not_depend_on_where_the_search_for_modes_begins():
    found = fits()[0].posterior_.inference
    model = found.model.refinable()
    theta = found.pool.theta[:6]
    placed = _placed_at(model, found.data, jax.device_put(theta[0]))
    assert placed.near is not None
    assert placed.plain().near is None
    values, scores = values_and_scores(model, found.data, theta)
    near, near_scores = values_and_scores(placed, found.data, theta)
    np.testing.assert_allclose(near, values, atol=1e-3)
    unit = np.asarray(found.q.standard_deviation())
    np.testing.assert_allclose(unit * near_scores, unit * scores, atol=1e-3)
    np.testing.assert_allclose(log_targets(placed, found.data, theta), near, rtol=1e-12)


def test_interruption_leaves_a_usable_result(monkeypatch):
    def press(*args):
        signal.raise_signal(signal.SIGINT)
        return values_and_scores(*args)

    monkeypatch.setattr(by_surface, "values_and_scores", press)
    model = nghvi.mixed("y ~ x + (1 | g)", binary_table(), response="probit")
    assert model.status_ == Status.INTERRUPTED
    assert np.isfinite(model.elbo_)
    assert np.isfinite(model.predict_proba(binary_table().head(3))).all()


def test_no_surface_leaves_the_fit_to_steps(monkeypatch):
    monkeypatch.setattr(by_surface, "fitted_surface", lambda *args: None)
    model = nghvi.mixed("y ~ x + (1 | g)", binary_table(), response="probit")
    assert model.status_ == "converged"
    assert "natural gradient" in set(model.trace_["stage"])
    assert isinstance(model.posterior_.inference, inference.Inference)
