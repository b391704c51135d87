"""Where the published algorithms start."""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from nghvi._core.variational import Start
from nghvi.models.mixed import GroupedData, MixedModel


def published_start(model: MixedModel, data: GroupedData, seed: int) -> Start:
    """The authors' start: random weights with zero biases, everything else 0.01, sds of 1.

    Their weights are uniform up to sqrt(6) / (n_in + n_out), not up to the root of the ratio. A
    network of binary rows starts at 0 with sds of 0.01 instead: with those of 1 the ordinary
    gradient's units die before they have learnt anything.
    """
    params = model.init_params(jax.random.key(seed), data)

    def narrow(w: Array) -> Array:
        fan_out, fan_in = w.shape[0], w.shape[1] - 1
        return w * jnp.sqrt(fan_in) / (fan_in + fan_out)

    binary_network = model.response.classes and not model.trunk.linear
    rest = jax.tree.map(lambda x: jnp.full_like(x, 0.0 if binary_network else 0.01), params)
    theta = ravel_pytree(rest._replace(weights=jax.tree.map(narrow, params.weights)))[0]
    return Start(theta, 0.01 if binary_network else 1.0)
