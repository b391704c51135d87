"""Polya-Gamma draws against closed forms and long sums, and the logit fit they belong to.

With z(t) = sqrt((c^2 / 2 + t) / 2) the Laplace transform of PG(1, c) is cosh(c / 2) / cosh z(t).
The Gibbs kernel built on the draws is tested with the other kernels in ``test_latents``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import expit, gammaln, log_expit, logsumexp

import nghvi
from nghvi.data import Rows
from nghvi.latents.augment import _remainder_moments, _scales, sample_polya_gamma
from nghvi.models import MixedModel
from nghvi.networks import Identity
from nghvi.priors import InverseGamma, Priors
from nghvi.responses import Gaussian

TILTS = np.array([0.0, 0.3, -2.0, 6.2, 6.4, -25.0])
DRAWS = 200_000
draw = jax.jit(sample_polya_gamma)


def laplace_transform(t, tilt):
    def log_cosh(z):
        return np.logaddexp(z, -z) - np.log(2)

    return np.exp(log_cosh(tilt / 2) - log_cosh(np.sqrt((tilt**2 / 2 + t) / 2)))


def cumulants(tilt):
    """Mean and variance, in their closed form or its limit."""
    if tilt == 0:
        return 1 / 4, 1 / 24
    scale = 4 * tilt**3 * np.cosh(tilt / 2) ** 2
    return np.tanh(tilt / 2) / (2 * tilt), (np.sinh(tilt) - tilt) / scale


@pytest.fixture(scope="module")
def draws():
    """Draws, one column per tilt."""
    return np.asarray(draw(jax.random.key(0), jnp.broadcast_to(TILTS, (DRAWS, TILTS.size))))


def test_draws_have_the_moments_and_the_laplace_transform_of_polya_gamma(draws):
    """30 comparisons at 4.5 standard errors: false alarm rate 2e-4 with a new seed."""
    for tilt, sample in zip(TILTS, draws.T, strict=True):
        mean, variance = cumulants(tilt)
        facts = [(sample, mean), ((sample - mean) ** 2, variance)]
        # Times of the order of one over the mean, where the transform tells most.
        times = np.array([0.3, 1.0, 5.0]) / mean
        facts += [(np.exp(-t * sample), laplace_transform(t, tilt)) for t in times]
        for values, exact in facts:
            error = values.std() / np.sqrt(DRAWS)
            assert abs(values.mean() - exact) < 4.5 * error, tilt


def test_draws_are_distributed_like_a_long_sum_of_exponentials(draws):
    """Three Kolmogorov-Smirnov tests at level 1e-4: false alarm rate 3e-4 with a new seed.

    The reference draws 300 terms and adds the mean of the others, whose sd is below 3e-5.
    """
    rng, size = np.random.default_rng(1), 20_000
    halves = np.arange(300) + 0.5
    for column in (0, 2, 5):
        scales = 0.5 / ((np.pi * halves) ** 2 + TILTS[column] ** 2 / 4)
        rest = cumulants(TILTS[column])[0] - scales.sum()
        reference = rng.exponential(size=(size, 300)) @ scales + rest
        assert stats.ks_2samp(draws[:, column], reference).pvalue > 1e-4, TILTS[column]


def test_the_lognormal_remainder_changes_the_laplace_transform_by_less_than_3e_5():
    """No randomness: the transform of what is drawn, by quadrature, against the closed form."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    times = np.geomspace(0.1, 1e4, 40)
    for tilt in [*np.abs(TILTS), 50.0, 200.0]:
        mean, variance = (float(m) for m in _remainder_moments(jnp.asarray(tilt)))
        log_variance = np.log1p(variance / mean**2)
        remainder = mean * np.exp(np.sqrt(log_variance) * nodes - log_variance / 2)
        ours = np.exp(-np.outer(times, remainder)) @ weights / weights.sum()
        ours /= np.prod(1 + np.outer(times, _scales(jnp.asarray(tilt))), axis=1)
        np.testing.assert_allclose(ours, laplace_transform(times, tilt), atol=3e-5)


def test_draws_are_finite_and_positive_at_any_tilt():
    tilt = np.array([0.0, 1e-300, -1e-8, 1e3, -1e8, 1e20, -1e200, np.inf])
    drawn = np.asarray(draw(jax.random.key(2), jnp.asarray(tilt)))
    assert np.all(np.isfinite(drawn))
    assert np.all(drawn > 0)
    # The coefficient of variation is sqrt(2 / |c|): the draw is its mean.
    np.testing.assert_allclose(drawn[4:6], 0.5 / np.abs(tilt[4:6]), rtol=1e-3)


def test_a_response_without_gibbs_sampler_says_so():
    model = MixedModel(Identity(1), Gaussian(), Priors(), (0,))
    rows = Rows.from_arrays(np.ones((4, 1)), np.arange(4.0), np.array([0, 0, 1, 1]), 2)
    problem = model.row_problem(model.init_params(jax.random.key(0), rows), rows)
    with pytest.raises(NotImplementedError, match=r"gaussian response .*gibbs=None"):
        model.response.gibbs(jax.random.key(0), problem, jnp.zeros((1, 2)), 1)


PRIOR = InverseGamma(2.0, 0.8)
COEF_SD = 2.0


def two_by_two(num_groups=25, size=12):
    """A logit panel whose covariate has two values, so that counts are sufficient."""
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(num_groups), size)
    x = rng.integers(0, 2, group.size)
    eta = -0.4 + 0.9 * x + rng.normal(size=num_groups)[group]
    return pd.DataFrame({"g": group, "x": x, "y": (rng.random(group.size) < expit(eta)) * 1})


def posterior_on_a_grid(frame):
    """Points (intercept, slope, log variance) and their posterior probabilities, by numpy alone."""
    # Half a posterior sd apart, five sds or more each way: exact to many digits.
    axes = np.arange(-1.5, 1.0, 0.12), np.arange(-0.6, 2.1, 0.13), np.arange(-4.0, 2.5, 0.25)
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    u = np.arange(-5.6, 5.7, 0.35)
    counts = frame.groupby(["g", "x", "y"]).size().unstack(["x", "y"], fill_value=0)
    log_prob = np.stack(
        [
            log_expit((2 * y - 1) * (points @ [[1], [x], [0]] + np.exp(points[:, 2:] / 2) * u))
            for x, y in counts.columns
        ]
    )
    log_value = sum(
        logsumexp(np.tensordot(cells, log_prob, 1) - 0.5 * u**2, axis=1)
        for cells in counts.to_numpy()
    )
    a, b, t = PRIOR.shape, PRIOR.scale, points[:, 2]
    log_value += a * np.log(b) - gammaln(a) - a * t - b * np.exp(-t)
    log_value -= 0.5 * np.sum(points[:, :2] ** 2, axis=1) / COEF_SD**2
    return points, np.exp(log_value - logsumexp(log_value))


def test_a_logit_fit_has_the_posterior_of_brute_force_integration():
    """Six comparisons; the 3700 effective draws behind the table leave 0.016 sd of noise in a mean
    and 1.2 % in an sd, six times less than is allowed: false alarm rate below 1e-7."""
    frame = two_by_two()
    points, weight = posterior_on_a_grid(frame)
    exact = np.column_stack([points[:, :2], np.exp(points[:, 2] / 2)])
    mean = weight @ exact
    sd = np.sqrt(weight @ (exact - mean) ** 2)
    fitted = nghvi.MixedClassifier(
        "g", response="logit", standardize=False, priors=Priors(coef_sd=COEF_SD, effects=PRIOR)
    ).fit(frame[["g", "x"]], frame["y"])
    assert fitted.converged_
    ours = fitted.summary().loc[["intercept", "x", "effects_sd[intercept]"]]
    np.testing.assert_array_less(np.abs(ours["mean"] - mean) / sd, 0.1)
    np.testing.assert_allclose(ours["sd"], sd, rtol=0.08)
