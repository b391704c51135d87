"""Trunks: the part of a model that turns inputs into features h(x).

``Identity`` makes a linear mixed model; ``Perceptron`` a deep one, with
``h^(l) = (1, act(W_l h^(l-1)))`` and the bias in the first column of ``W_l``. ``Skip`` adds the
inputs to the features of a network, ``(1, x, size h(x) / sqrt(width))``: the deep model then
contains the linear one, and ``size`` says how much the network contributes. ``Tamed`` lets a
network see heavy-tailed inputs through asinh; the added inputs stay as they are.
"""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._typing import Key, PyTree

FIRST_SIZE = 0.5
"""Size of the network at the start, if its inputs are added: half the sd of its prior N(0, 1)."""
LEAST_SIZE = 0.1
"""Size below which a network counts as adding nothing."""
ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh, "silu": jax.nn.silu}
"""Activation functions by name."""


class Trunk(eqx.Module):
    """A map from inputs to features, given weights."""

    @abc.abstractmethod
    def init_weights(self, key: Key) -> PyTree:
        """Return random weights to start from."""

    @abc.abstractmethod
    def __call__(self, weights: PyTree, x: Float[Array, "n d"]) -> Float[Array, "n q"]:
        """Return the features of the rows of x, offset column included."""

    @property
    @abc.abstractmethod
    def num_features(self) -> int:
        """Number of features, offset included."""

    @property
    def linear(self) -> bool:
        """Whether the features are the inputs themselves, so that nothing is learnt about them."""
        return False

    @property
    def sized(self) -> bool:
        """Whether one of the weights scales all features that are learnt."""
        return False

    @property
    def num_learnt(self) -> int:
        """Number of features that are scaled like this, the last ones."""
        return 0

    def size_of(self, weights: PyTree) -> float:
        """Return the absolute value of this scale; infinity if there is none."""
        return math.inf

    def rough(self) -> "Trunk":
        """Return a faster trunk with the same features to fewer digits, if there is one."""
        return self


class Identity(Trunk):
    """The trunk of a linear model, whose features are the input columns themselves."""

    num_inputs: int = eqx.field(static=True)

    @property
    def linear(self) -> bool:
        return True

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
            bound = math.sqrt(6 / fan_in)
            drawn = jax.random.uniform(k, (fan_out, fan_in), minval=-bound, maxval=bound)
            weights.append(jnp.concatenate([jnp.zeros((fan_out, 1)), drawn], axis=1))
        return tuple(weights)

    def __call__(self, weights: PyTree, x: Float[Array, "n d"]) -> Float[Array, "n q"]:
        activation = ACTIVATIONS[self.activation]
        for w in weights:
            x = activation(x @ w[:, 1:].T + w[:, 0])
        return _with_offset(x)

    @property
    def num_features(self) -> int:
        return self.hidden[-1] + 1

    def rough(self) -> "RoughPerceptron":
        return RoughPerceptron(self.num_inputs, self.hidden, self.activation)


class RoughPerceptron(Perceptron):
    """A perceptron in single precision, with rows side by side, which halves the time of gradients.

    It is meant for noisy steps, whose noise far exceeds the effect of the missing digits.
    """

    def __call__(self, weights: PyTree, x: Float[Array, "n d"]) -> Float[Array, "n q"]:
        activation, columns = ACTIVATIONS[self.activation], x.T.astype(jnp.float32)
        for w in weights:
            single = w.astype(jnp.float32)
            columns = activation(single[:, 1:] @ columns + single[:, :1])
        return _with_offset(columns.T.astype(x.dtype))


class Tamed(Trunk):
    """A network that sees some inputs as ``(asinh((x - centre) / unit) - mean) / sd``."""

    network: Trunk
    columns: tuple[int, ...] = eqx.field(static=True)
    centre: Float[Array, " c"]
    unit: Float[Array, " c"]
    mean: Float[Array, " c"]
    sd: Float[Array, " c"]

    def init_weights(self, key: Key) -> PyTree:
        return self.network.init_weights(key)

    def __call__(self, weights: PyTree, x: Float[Array, "n d"]) -> Float[Array, "n q"]:
        chosen = jnp.array(self.columns)
        seen = jnp.arcsinh((x[:, chosen] - self.centre) / self.unit)
        return self.network(weights, x.at[:, chosen].set((seen - self.mean) / self.sd))

    @property
    def num_features(self) -> int:
        return self.network.num_features

    def rough(self) -> "Tamed":
        return dataclasses.replace(self, network=self.network.rough())


class SkipWeights(NamedTuple):
    """Weights of the network, and the size that multiplies its features."""

    network: PyTree
    size: Float[Array, " 1"]


class Skip(Trunk):
    """A trunk whose features are a 1, the inputs, and those of a network times a learnt size."""

    network: Trunk
    num_inputs: int = eqx.field(static=True)

    def init_weights(self, key: Key) -> SkipWeights:
        return SkipWeights(self.network.init_weights(key), jnp.full(1, FIRST_SIZE))

    def __call__(self, weights: SkipWeights, x: Float[Array, "n d"]) -> Float[Array, "n q"]:
        learnt = self.network(weights.network, x)[:, 1:]
        return _with_offset(jnp.concatenate([x, self.unit * weights.size * learnt], axis=1))

    @property
    def num_features(self) -> int:
        return self.num_inputs + self.network.num_features

    @property
    def sized(self) -> bool:
        return True

    @property
    def num_learnt(self) -> int:
        return self.network.num_features - 1

    def rough(self) -> "Skip":
        return dataclasses.replace(self, network=self.network.rough())

    def size_of(self, weights: SkipWeights) -> float:
        return abs(weights.size.item())

    @property
    def unit(self) -> float:
        """Factor that keeps the sum of the network's features at the same scale for any width."""
        return 1 / math.sqrt(self.network.num_features - 1)


class OwnTrunk(Trunk):
    """A network given by the user, whose outputs and a leading 1 are the features.

    ``init(key)`` returns weights (a pytree of float arrays), and ``apply(weights, x)`` maps rows to
    outputs. ``width``: the number of outputs.
    """

    init: Callable[[Key], PyTree] = eqx.field(static=True)
    apply: Callable[[PyTree, Array], Array] = eqx.field(static=True)
    width: int = eqx.field(static=True)

    def init_weights(self, key: Key) -> PyTree:
        return self.init(key)

    def __call__(self, weights: PyTree, x: Float[Array, "n d"]) -> Float[Array, "n q"]:
        return _with_offset(self.apply(weights, x))

    @property
    def num_features(self) -> int:
        return self.width + 1


def as_trunk(network: Any, num_inputs: int) -> Trunk:
    """Return the trunk for a trunk, an equinox module for one row, or a pair (init, apply)."""
    if isinstance(network, Trunk):
        return network
    if isinstance(network, eqx.Module):
        start, rest = eqx.partition(network, eqx.is_inexact_array)
        # Arrays, which cannot be hashed, stay out of static fields; functions compare by identity.
        network = (
            lambda key: jax.tree.map(lambda w: jnp.asarray(w, float), start),
            lambda weights, x: jax.vmap(eqx.combine(weights, rest))(x),
        )
    if not (isinstance(network, tuple) and len(network) == 2 and all(map(callable, network))):
        raise TypeError("give a nghvi Trunk, an equinox module or a pair (init, apply).")
    init, apply = network
    rows = jax.ShapeDtypeStruct((2, num_inputs), float)
    outputs = jax.eval_shape(lambda x: apply(init(jax.random.key(0)), x), rows)
    if outputs.ndim != 2 or outputs.shape[0] != 2:
        raise ValueError(f"maps 2 rows to shape {outputs.shape}; it must return a row of features.")
    return OwnTrunk(init, apply, outputs.shape[1])


def _with_offset(outputs: Float[Array, "n w"]) -> Float[Array, "n q"]:
    return jnp.concatenate([jnp.ones((outputs.shape[0], 1), outputs.dtype), outputs], axis=1)
