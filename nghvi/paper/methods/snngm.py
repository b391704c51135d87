"""Natural gradient steps of normalised length for blocks of Gaussians with Cholesky factors.

At one draw x = mean + C z of a block N(mean, C C'), with the whitened gradient
v = C'(grad log target - grad log q) = C'grad log target + z, the natural gradient (Tan 2025) is::

    mean: C v,     C: C M,   M = tril(v z') - diag(v z') / 2
    (C M)_ij = z_j (sum_{l > j} C_il v_l + C_ij v_j / 2)

SNNGM: divide by the norm over all blocks, average with momentum 0.9 (bias corrected), go a given
length rho. As published C <- C + rho C M, which can carry a diagonal entry through zero, where
its gradient vanishes. Corrected C <- C (strict(rho M) + diag(exp(rho M_ii))): signs never change.

In either form a draw with a huge gradient has no more say than any other. Where draws differ
much, as in networks, the expected step need not climb: q widens until rare draws spoil the ELBO.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from nghvi._core.variational import RemainingError
from nghvi._linalg.tree import tree_norm
from nghvi._typing import PyTree, Scalar


class Tangent(NamedTuple):
    """A direction of a block, the diagonal of C in relative terms."""

    mean: Float[Array, "d ..."]
    strict: Float[Array, "d d ..."]
    """C strict(M)."""
    relative: Float[Array, "d ..."]
    """Diagonal of M."""


class Block(NamedTuple):
    """N(mean, C C') with C lower triangular; locals have a last axis, their groups."""

    mean: Float[Array, "d ..."]
    factor: Float[Array, "d d ..."]

    @property
    def diagonal(self) -> Float[Array, "d ..."]:
        """Diagonal of C."""
        return jnp.einsum("ii...->i...", self.factor)

    @property
    def size(self) -> int:
        """Number of free parameters."""
        d = self.mean.shape[0]
        return self.mean.size + self.mean.size * (d + 1) // 2

    def transport(self, noise: Float[Array, "d ..."]) -> Float[Array, "d ..."]:
        """The draw made of this noise."""
        return self.mean + jnp.sum(self.factor * noise[None], axis=1)

    def log_density(self, noise: Float[Array, "d ..."]) -> Scalar:
        """Log density of that draw. Needs no inverse of C, which may be all but singular."""
        return log_standard_normal(noise) - jnp.sum(jnp.log(jnp.abs(self.diagonal)))

    def natural_gradient(
        self, noise: Float[Array, "d ..."], slope: Float[Array, "d ..."]
    ) -> Tangent:
        """Natural gradient of the ELBO at one draw, where the log target has gradient ``slope``."""
        white = jnp.sum(self.factor * slope[:, None], axis=0) + noise
        terms = self.factor * white[None]
        beyond = jnp.flip(jnp.cumsum(jnp.flip(terms, 1), axis=1), 1) - terms
        return Tangent(jnp.sum(terms, axis=1), beyond * noise[None], 0.5 * white * noise)

    def push(self, tangent: Tangent) -> "Block":
        """The tangent as a change of mean and C."""
        return Block(tangent.mean, tangent.strict + self.factor * tangent.relative[None])

    def retract(self, update: Tangent) -> "Block":
        """The corrected update."""
        return Block(
            self.mean + update.mean, update.strict + self.factor * jnp.exp(update.relative[None])
        )

    def remaining_error(self, natural_gradient: Tangent) -> RemainingError:
        """What a full step along it would move."""
        change = self.push(natural_gradient)
        variance = jnp.sum(self.factor**2, axis=1)
        return RemainingError(
            change.mean / jnp.sqrt(variance),
            jnp.sum(self.factor * change.factor, axis=1) / variance,
        )


Blocks = tuple[Block, ...]


def log_standard_normal(x: Float[Array, "..."]) -> Scalar:
    """Summed over all entries."""
    return -0.5 * (jnp.sum(x**2) + x.size * np.log(2 * np.pi))


_average = optax.ema(0.9, debias=True)


def init(blocks: Blocks, published: bool) -> PyTree:
    """No momentum yet."""
    if published:
        return _average.init(blocks)
    return _average.init(tuple(Tangent(b.mean, b.factor, b.mean) for b in blocks))


def step(
    blocks: Blocks,
    directions: tuple[Tangent, ...],
    state: PyTree,
    length: Scalar,
    published: bool,
) -> tuple[Blocks, PyTree, Scalar]:
    """One step along the natural gradients of all blocks, and their norm."""
    changes = tuple(b.push(d) for b, d in zip(blocks, directions, strict=True))
    norm = tree_norm(changes)
    unit = jax.tree.map(lambda x: x / norm, changes if published else directions)
    # Momentum of the diagonal is kept in relative terms: that of C itself, divided by a C that
    # has shrunk since, would throw the exponential out of range.
    average, state = _average.update(unit, state)
    update = jax.tree.map(lambda x: length * x, average)
    if published:
        return jax.tree.map(jnp.add, blocks, update), state, norm
    return tuple(b.retract(u) for b, u in zip(blocks, update, strict=True)), state, norm
