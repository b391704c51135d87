"""The prior of NAGVAC, and the point it starts from.

Weights and coefficients other than biases are N(0, 1/gamma), one gamma for each of the two;
biases, intercept and log noise variance are flat; variances of effects are Exponential(0.1)::

    log p(theta) = -sum_g gamma_g |theta_g|^2 / 2 + sum_j (t_j - 0.1 exp(t_j)),   t = log variance

Every few iterations gamma_g becomes ``d_g / E_q |theta_g|^2``, which maximises E_q[log p].
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from nghvi._core.model import parameter_dimension, unraveller
from nghvi._typing import Key, Scalar
from nghvi.data import Rows
from nghvi.families.factor import FactorGaussian
from nghvi.models.mixed import MixedModel
from nghvi.networks import Identity, Perceptron

FIRST_PRECISION = 50.0
RATE = 0.1
SMALL = 0.01
"""Spread of everything at the start but the layers' weights."""


class Ridge(eqx.Module):
    """Which coordinates of theta are shrunk, and which are log variances of effects."""

    shrunk: Float[Array, "2 m"]
    """1 for the weights (first row) and the coefficients (second row) that are not biases."""
    variances: Float[Array, " m"]
    """1 for the log variances of the effects."""

    @staticmethod
    def of(model: MixedModel, rows: Rows) -> "Ridge":
        """The prior for this model's parameters."""
        nothing = unraveller(model, rows)(jnp.zeros(parameter_dimension(model, rows)))
        biased = isinstance(model.trunk, Perceptron)

        def slopes(w: Array) -> Array:
            if w.ndim < 2:  # a bias of a network of the user's
                return w
            return jnp.ones_like(w).at[:, 0].set(0.0) if biased else jnp.ones_like(w)

        intercept = not isinstance(model.trunk, Identity) or np.ptp(rows.x[:, 0]) == 0
        coef = jnp.ones_like(nothing.coef).at[0].add(-float(intercept))
        weights = nothing._replace(weights=jax.tree.map(slopes, nothing.weights))
        variances = nothing._replace(effects=jnp.ones_like(nothing.effects))
        flat = [ravel_pytree(p)[0] for p in (weights, nothing._replace(coef=coef), variances)]
        return Ridge(jnp.stack(flat[:2]), flat[2])

    def log_prior(self, theta: Float[Array, " m"], precisions: Float[Array, " 2"]) -> Scalar:
        """log p(theta) without constants, Jacobians of the variances included."""
        square = 0.5 * (precisions @ self.shrunk) @ theta**2
        # exp only where it counts: a weight is not a log variance and may be large.
        exponential = jnp.sum(self.variances * (theta - RATE * jnp.exp(theta * self.variances)))
        return exponential - square

    def adapt(self, q: FactorGaussian) -> Float[Array, " 2"]:
        """gamma_g = d_g / E_q |theta_g|^2."""
        square = self.shrunk @ (q.mean**2 + q.standard_deviation() ** 2)
        return jnp.sum(self.shrunk, axis=1) / jnp.where(square > 0, square, 1.0)


def start(key: Key, model: MixedModel, rows: Rows) -> FactorGaussian:
    """Layers uniform up to sqrt(6) / (n_in + n_out), biases too; all else near zero."""
    keys = jax.random.split(key, 4)
    nothing = unraveller(model, rows)(jnp.zeros(parameter_dimension(model, rows)))
    leaves, structure = jax.tree.flatten(nothing.weights)

    def layer(key: Key, w: Array, neurons: int) -> Array:
        bound = np.sqrt(6) / max(neurons, 1)
        return jax.random.uniform(key, w.shape, minval=-bound, maxval=bound)

    layers = [
        layer(jax.random.fold_in(keys[0], i), w, sum(w.shape) - 1) for i, w in enumerate(leaves)
    ]
    small = SMALL * jax.random.normal(keys[1], (ravel_pytree(nothing)[0].size,))
    params = unraveller(model, rows)(small)._replace(
        weights=jax.tree.unflatten(structure, layers),
        coef=layer(keys[2], nothing.coef, nothing.coef.size),
    )
    mean = ravel_pytree(params)[0]
    loadings = SMALL * jax.random.normal(keys[3], mean.shape)
    return FactorGaussian(mean, loadings, jnp.full_like(mean, SMALL), 1, signed_scale=True)
