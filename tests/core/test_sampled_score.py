"""Scores at drawn effects: unbiased in any coordinates, less noisy in good ones; and at rest."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import stats

from nghvi._core.score import Integrated, Sampled
from nghvi.models import MixedModel
from nghvi.networks import Identity
from nghvi.priors import Priors
from tests.latents.test_latents import (
    FINE,
    GAUSSIAN,
    LOG_CDF,
    LOGIT,
    PROBIT,
    SIZES,
    X,
    Y,
    binary_facts,
    cases,
    data_for,
    model_for,
    params_for,
    z_scores,
)


@cases(
    ("response", "gibbs", "moving"),
    (GAUSSIAN, None, True),
    (PROBIT, None, True),
    (PROBIT, 5, False),
    (LOGIT, 5, True),
)
def test_the_average_sampled_score_is_the_integrated_score(response, gibbs, moving):
    """Fisher's identity. At most 6 comparisons at 4 standard errors (1.2e-4 each, t with 99
    degrees of freedom): false alarm rate 7e-4 per case with a new seed."""
    data, (theta, _) = data_for(response), ravel_pytree(params_for(response, 2))
    model = MixedModel(Identity(2), response, Priors(), (0, 1), gibbs)

    @jax.jit
    def scores(theta, start, keys, data):
        def step(latents, key):
            _, score, latents = Sampled(moving)(key, theta, latents, model, data)
            return latents, score

        return jax.lax.scan(step, start, keys)[1]

    keys = jax.random.split(jax.random.key(4), 10_000)
    if response.classes:
        exact = binary_facts(response, 2, FINE[2])[1]
    else:
        exact = jax.jit(lambda t, d: Integrated()(keys[0], t, (), model, d)[1])(theta, data)
    assert z_scores(scores(theta, jnp.zeros((SIZES.size, 2)), keys, data), exact).max() < 4


@cases(("log_variance", "calmer"), (-6.0, 0.1), (6.0, 1.05))
def test_moving_coordinates_calm_the_score_of_the_effects(log_variance, calmer):
    """There is far less noise if groups tell little, and no more if they tell much."""
    params = params_for(PROBIT, 2)._replace(effects=jnp.array([-log_variance / 2, 0.0, 1.0]))
    data, (theta, unravel) = data_for(PROBIT), ravel_pytree(params)
    model = model_for(PROBIT, 2)

    @functools.partial(jax.jit, static_argnums=0)
    def noise(moving, keys):
        start = model.draw_effects(keys[0], params, data)

        def step(latents, key):
            _, score, latents = Sampled(moving)(key, theta, latents, model, data)
            return latents, unravel(score).effects[0]

        return jnp.std(jax.lax.scan(step, start, keys)[1])

    keys = jax.random.split(jax.random.key(5), 2000)
    assert noise(True, keys) < calmer * noise(False, keys)


@cases(("response",), (PROBIT,), (LOGIT,))
def test_at_rest_the_effects_are_zero(response):
    params, data = params_for(response, 2), data_for(response)
    sign = 2 * (Y > 0) - 1
    expected = np.sum(LOG_CDF[response.name](sign * (X @ np.asarray(params.coef))))
    expected += stats.norm.logpdf(params.coef, scale=Priors().coef_sd).sum()
    found = jax.jit(model_for(response, 2).log_at_rest)(params, data)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert model_for(GAUSSIAN, 2).log_at_rest(params_for(GAUSSIAN, 2), data) is None


def test_the_value_at_drawn_effects_is_the_integrated_one():
    """log g - log p(z | theta, y) = log p(y, theta), whatever the draw."""
    model, data = model_for(GAUSSIAN, 2), data_for(GAUSSIAN)
    theta, _ = ravel_pytree(params_for(GAUSSIAN, 2))
    start = jnp.zeros((SIZES.size, 2))
    sampled = jax.jit(lambda key: Sampled(moving=False)(key, theta, start, model, data)[0])
    integrated = jax.jit(lambda: Integrated()(jax.random.key(0), theta, (), model, data)[0])()
    for seed in (1, 2):
        np.testing.assert_allclose(sampled(jax.random.key(seed)), integrated, rtol=1e-10)
