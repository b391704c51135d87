"""An equal mixture of the results of several starts: q = (q_1 + ... + q_K) / K.

Each member describes one mode of a posterior that has many. The first of the standard normals
behind a draw chooses the member, k = floor(K Phi(noise_1)), and the others are those of the member,
so that antithetic draws of a mixture of two come from both. Its ELBO is that of a distribution like
any other::

    ELBO(q) = E_q[log p(y, theta) - log q(theta)] = mean of ELBO(q_k) + log K    (modes far apart)
"""

from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp, ndtr
from jaxtyping import Array, Float, Int

from nghvi._core.variational import Variational
from nghvi._programs import program
from nghvi._typing import Scalar


class Mixture(Variational):
    """Members of any family, each with the same probability."""

    members: tuple[Variational, ...]

    @property
    def dim(self) -> int:
        return self.members[0].dim

    @property
    def noise_dim(self) -> int:
        return 1 + self.members[0].noise_dim

    @property
    def centre(self) -> Float[Array, " m"]:
        return self.members[0].centre

    def transport(self, noise: Float[Array, " e"]) -> Float[Array, " m"]:
        each = jnp.stack([member.transport(noise[1:]) for member in self.members])
        chosen = jnp.floor(len(self.members) * ndtr(noise[0])).astype(int)
        return each[jnp.minimum(chosen, len(self.members) - 1)]

    def log_density(self, theta: Float[Array, " m"]) -> Scalar:
        return logsumexp(self._log_densities(theta)) - jnp.log(len(self.members))

    def member_of(self, theta: Float[Array, "s m"]) -> Int[Array, " s"]:
        """Return the number of the member to which each theta belongs most probably."""
        return jnp.argmax(jax.vmap(self._log_densities)(theta), axis=1)

    def _log_densities(self, theta: Float[Array, " m"]) -> Float[Array, " k"]:
        return jnp.stack([member.log_density(theta) for member in self.members])

    def retract(self, update: Self) -> Self:
        pairs = zip(self.members, update.members, strict=True)
        return type(self)(tuple(member.retract(own) for member, own in pairs))

    def rescale(self, tangent: Self, unit: Float[Array, " m"]) -> Self:
        pairs = zip(self.members, tangent.members, strict=True)
        return type(self)(tuple(member.rescale(own, unit) for member, own in pairs))

    def _mean(self) -> Float[Array, " m"]:
        return jnp.mean(jnp.stack([member.centre for member in self.members]), axis=0)

    def standard_deviation(self) -> Float[Array, " m"]:
        away = [member.centre - self._mean() for member in self.members]
        each = [m.standard_deviation() ** 2 + d**2 for m, d in zip(self.members, away, strict=True)]
        return jnp.sqrt(jnp.mean(jnp.stack(each), axis=0))

    def covariance(self) -> Float[Array, "m m"]:
        away = [member.centre - self._mean() for member in self.members]
        each = [m.covariance() + jnp.outer(d, d) for m, d in zip(self.members, away, strict=True)]
        return jnp.mean(jnp.stack(each), axis=0)


def members_of(q: Variational, theta: np.ndarray) -> np.ndarray | None:
    """Return which member of a mixture each draw comes from; None if q is none."""
    return np.asarray(_members(q, jax.device_put(theta))) if isinstance(q, Mixture) else None


@program
def _members(q: Mixture, theta: Float[Array, "s m"]) -> Int[Array, " s"]:
    return q.member_of(theta)
