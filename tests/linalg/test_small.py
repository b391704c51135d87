"""Batches of larger matrices: right, differentiable, and never so large that jaxlib may hang."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import solve_triangular

from nghvi._linalg import small
from nghvi.data import Rows
from nghvi.models.mixed import MixedModel
from nghvi.networks import Identity
from nghvi.priors import Priors
from nghvi.responses import RESPONSES

R, DRAWS, GROUPS = 12, 3, 50
"""Two pieces and a rest."""


@pytest.fixture(scope="module")
def matrices():
    root = np.random.default_rng(0).normal(size=(DRAWS, GROUPS, R, R))
    return jnp.asarray(root @ root.swapaxes(-1, -2) + R * np.eye(R))


def plain_inverse(lower):
    eye = jnp.broadcast_to(jnp.eye(lower.shape[-1]), lower.shape)
    return solve_triangular(lower, eye, lower=True)


@pytest.mark.parametrize(
    ("ours", "plain"),
    [(small.lapack_cholesky, jnp.linalg.cholesky), (small.lapack_inverse_lower, plain_inverse)],
)
def test_values_and_gradients_under_vmap_equal_jax_own(ours, plain, matrices):
    weight = jnp.asarray(np.random.default_rng(1).normal(size=(R, R)))
    given = jnp.tril(matrices)

    def value_and_gradient(of):
        def total(batch):
            return jnp.sum(of((batch + batch.mT) / 2 if of in SYMMETRIC else batch) * weight)

        return jax.jit(jax.vmap(jax.value_and_grad(total)))(given)

    found, expected = value_and_gradient(ours), value_and_gradient(plain)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-10)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-8, atol=1e-12)


SYMMETRIC = (small.lapack_cholesky, jnp.linalg.cholesky)


def largest_batch(compiled_text):
    """Operations of the largest batched LAPACK call, by jaxlib's count."""
    shapes = re.findall(r"f64\[([\d,]*)\][^=\n]*custom-call\([^\n]*lapack_d", compiled_text)
    sizes = [tuple(map(int, shape.split(","))) for shape in shapes]
    return max((math.prod(s[:-2]) * s[-1] * s[-2] ** 2 for s in sizes if len(s) > 2), default=0)


def test_the_count_sees_a_batch_that_is_too_large(matrices):
    compiled = jax.jit(jax.vmap(jnp.linalg.cholesky)).lower(matrices).compile()
    assert largest_batch(compiled.as_text()) == DRAWS * GROUPS * R**3 > small.LARGEST_PIECE


@pytest.mark.parametrize("effects", [3, small.UNROLL, R])
def test_no_batch_of_a_models_draws_is_shared_between_threads(effects):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(4 * GROUPS, effects))
    rows = Rows.from_arrays(x, rng.normal(size=len(x)), np.arange(len(x)) % GROUPS, GROUPS)
    model = MixedModel(Identity(effects), RESPONSES["gaussian"](), Priors(), tuple(range(effects)))

    def everything(key):
        params = model.init_params(key, rows)
        effects = model.draw_effects(key, params, rows)
        value = jax.value_and_grad(model.log_marginal)(params, rows)
        return value, effects, model.effect_moments(key, params, rows)

    keys = jax.random.split(jax.random.key(0), 40)
    compiled = jax.jit(jax.vmap(everything)).lower(keys).compile()
    assert largest_batch(compiled.as_text()) < small.LARGEST_PIECE
