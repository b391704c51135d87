"""Independent computations that several test files compare with."""

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from nghvi._core.score import Integrated

STEP = 1e-3


def marginal_facts(model, params, data):
    """log p(y | theta), the gradient of log p(y, theta), and the latter by differences."""
    theta, unravel = ravel_pytree(params)
    shifts = np.array([[1], [-1], [2], [-2]]) * STEP
    around = theta + np.kron(shifts, np.eye(theta.size))

    @jax.jit
    def compute(theta, around, data):
        value, gradient, _ = Integrated()(jax.random.key(0), theta, (), model, data)
        near = jax.lax.map(lambda t: model.log_marginal(unravel(t), data), around)
        return value - model.log_prior(unravel(theta)), gradient, near

    value, gradient, near = compute(theta, around, data)
    up, down, far_up, far_down = np.asarray(near).reshape(4, -1)
    return value, gradient, (8 * (up - down) - (far_up - far_down)) / (12 * STEP)


def by_one_program(function, *args):
    """Return ``function(*args)`` by one program; step by step it would take hundreds of small ones.

    It is traced anew, so constants that a test has replaced are seen.
    """
    return jax.jit(lambda given: function(*given))(args)
