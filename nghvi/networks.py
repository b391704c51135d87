"""Trunks: the part of a model that turns inputs into features h(x).

``Identity`` makes a linear mixed model; ``Perceptron`` a deep one, with
``h^(l) = (1, act(W_l h^(l-1)))`` and the bias in the first column of ``W_l``.
"""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._typing import Key, PyTree

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh, "silu": jax.nn.silu}


class Trunk(eqx.Module):
    """Inputs to features, given weights."""

    @abc.abstractmethod
    def init_weights(self, key: Key) -> PyTree:
        """Starting weights."""

    @abc.abstractmethod
    def __call__(self, weights: PyTree, x: Float[Array, "n d"]) -> Float[Array, "n q"]:
        """Features of the rows of x, offset column included."""

    @property
    @abc.abstractmethod
    def num_features(self) -> int:
        """Number of features, offset included."""


class Identity(Trunk):
    """The columns themselves."""

    num_inputs: int = eqx.field(static=True)

    def init_weights(self, key: Key) -> PyTree:
        return ()

    def __call__(self, weights: PyTree, x: Float[Array, "n d"]) -> Float[Array, "n q"]:
        return x

    @property
    def num_features(self) -> int:
        return self.num_inputs


class Perceptron(Trunk):
    """A feed-forward network; its last hidden layer and a leading 1 are the features."""

    num_inputs: int = eqx.field(static=True)
    hidden: tuple[int, ...] = eqx.field(static=True)
    activation: str = eqx.field(static=True, default="relu")

    def init_weights(self, key: Key) -> PyTree:
        sizes = (self.num_inputs, *self.hidden)
        keys = jax.random.split(key, len(self.hidden))
        weights = []
        for k, fan_in, fan_out in zip(keys, sizes[:-1], sizes[1:], strict=True):
            # The authors' range: sqrt(6) / (n_in + n_out), not the root of the ratio.
            bound = math.sqrt(6) / (fan_in + fan_out)
            drawn = jax.random.uniform(k, (fan_out, fan_in), minval=-bound, maxval=bound)
            weights.append(jnp.concatenate([jnp.zeros((fan_out, 1)), drawn], axis=1))
        return tuple(weights)

    def __call__(self, weights: PyTree, x: Float[Array, "n d"]) -> Float[Array, "n q"]:
        activation = ACTIVATIONS[self.activation]
        for w in weights:
            x = activation(x @ w[:, 1:].T + w[:, 0])
        return jnp.concatenate([jnp.ones((x.shape[0], 1), x.dtype), x], axis=1)

    @property
    def num_features(self) -> int:
        return self.hidden[-1] + 1
