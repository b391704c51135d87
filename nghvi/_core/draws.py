"""How the standard normals behind a batch of draws of theta are made.

Every scheme returns an array (draws, noise dimension). Its rows are standard normal, or their first
moments match those of the standard normal exactly.
"""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nghvi._typing import Key


class DrawScheme(eqx.Module):
    """A rule that makes the noise of one step."""

    @abc.abstractmethod
    def count(self, dim: int) -> int:
        """Return the number of draws made in ``dim`` dimensions."""

    @abc.abstractmethod
    def __call__(self, key: Key, dim: int) -> Float[Array, "s e"]:
        """Return the noise, one draw per row."""


class IndependentDraws(DrawScheme):
    """Independent standard normals; one per step is the paper's choice."""

    number: int = eqx.field(static=True, default=1)

    def count(self, dim: int) -> int:
        return self.number

    def __call__(self, key: Key, dim: int) -> Float[Array, "s e"]:
        return flat_normal(key, (self.number, dim))


class AntitheticDraws(DrawScheme):
    """``pairs`` orthogonal directions and their negatives, all of length sqrt(dim)."""

    pairs: int = eqx.field(static=True)

    def count(self, dim: int) -> int:
        return 2 * min(self.pairs, dim)

    def __call__(self, key: Key, dim: int) -> Float[Array, "s e"]:
        half = np.sqrt(dim) * _orthonormal(key, 1, dim, min(self.pairs, dim))[0]
        return jnp.concatenate([half, -half])


class OrthogonalDraws(DrawScheme):
    """Two random orthonormal bases, both signs, at radii^2 = dim -+ sqrt(2 dim): 4 dim draws.

    The first three moments and E|z|^4 are exactly those of the standard normal. Hence the natural
    gradient has no noise if the log posterior is quadratic, and the step of the mean has none if
    it is cubic.
    """

    def count(self, dim: int) -> int:
        return 6 if dim == 1 else 4 * dim

    def __call__(self, key: Key, dim: int) -> Float[Array, "s e"]:
        if dim == 1:  # three-point Gauss-Hermite, its weights 1/6, 4/6, 1/6 as repetitions
            return np.sqrt(3.0) * jnp.array([[1.0], [-1.0], [0.0], [0.0], [0.0], [0.0]])
        radii = np.sqrt(dim + np.array([-1.0, 1.0]) * np.sqrt(2 * dim))
        half = (radii[:, None, None] * _orthonormal(key, 2, dim, dim)).reshape(2 * dim, dim)
        return jnp.concatenate([half, -half])


def flat_normal(key: Key, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Return standard normals, drawn as one vector: several axes compile four times slower."""
    return jax.random.normal(key, (math.prod(shape),)).reshape(shape)


def _orthonormal(key: Key, bases: int, dim: int, rows: int) -> Float[Array, "b rows dim"]:
    """Return uniformly distributed sets of orthonormal rows."""
    q, r = jnp.linalg.qr(flat_normal(key, (bases, dim, rows)))
    signs = jnp.sign(jnp.diagonal(r, axis1=1, axis2=2))
    return jnp.swapaxes(q * signs[:, None, :], 1, 2)
