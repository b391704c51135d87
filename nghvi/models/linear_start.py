"""Where a network with the inputs beside it begins: least squares, and an analysis of variance."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nghvi._programs import program
from nghvi._typing import Scalar
from nghvi.data import Moments, Panel, Rows
from nghvi.data.panel import CrossedPanel


class LinearStart(NamedTuple):
    """Where a network begins that has the inputs beside it: least squares without the network."""

    coef: Float[Array, " q"]
    """Of the intercept and the inputs."""
    noise: Scalar
    between: Scalar | Float[Array, " r"]
    """Variances within groups and of their intercepts, by analysis of variance; the second of
    several factors for every effect, as if its factor were the only one."""

    @staticmethod
    @program
    def of(data: Rows | Panel) -> "LinearStart":
        """From all rows."""
        q = data.x.shape[1] + 1
        sums = data.moments(_with_ones, jnp.zeros(q), tuple(range(q)))
        return LinearStart._of_moments(sums, data.variance)

    @staticmethod
    def of_factors(data: CrossedPanel, effects: tuple[int, ...]) -> "LinearStart":
        """From rows with several factors, of which each has so many effects."""
        q = data.x.shape[1] + 1
        each = [
            LinearStart._of_moments(sums, data.variance)
            for sums in data.moments(_with_ones, jnp.zeros(q), tuple(range(q)))
        ]
        between = jnp.repeat(jnp.stack([start.between for start in each]), np.array(effects))
        noise = jnp.min(jnp.stack([start.noise for start in each]))
        return LinearStart(each[0].coef, noise, between)

    @staticmethod
    def _of_moments(sums: Moments, variance: Scalar) -> "LinearStart":
        """Of a column of ones and all inputs, about zero."""
        q = len(sums.cross)
        gram, cross = jnp.sum(sums.gram, axis=-1), jnp.sum(sums.cross, axis=-1)
        coef = jnp.linalg.solve(gram + 1e-6 * sums.num_rows * jnp.eye(q), cross)
        square = sums.square - 2 * coef @ cross + coef @ gram @ coef
        sizes, left = sums.gram[0, 0], sums.cross[0] - coef @ sums.gram[0]
        present = jnp.sum(sizes > 0)
        by_group = jnp.sum(left**2 / jnp.maximum(sizes, 1e-300))
        total, floor = square / sums.num_rows, 0.01 * variance + 1e-300
        noise = (square - by_group) / jnp.maximum(sums.num_rows - present, 1)
        noise = jnp.clip(noise, 0.05 * total, total)
        spare = sums.num_rows - jnp.sum(sizes**2) / sums.num_rows
        between = (by_group - (present - 1) * noise) / jnp.maximum(spare, 1e-300)
        return LinearStart(
            coef,
            jnp.maximum(noise, floor),
            jnp.clip(between, 0.02 * total + floor, total + floor),
        )


def _with_ones(x: Float[Array, "n d"]) -> Float[Array, "n q"]:
    return jnp.concatenate([jnp.ones((len(x), 1)), x], axis=1)
