"""A point: the limit of a Gaussian without spread.

With it the algorithm climbs to a mode of p(theta | y), where the Gaussian of a network starts. Its
log density is 0 by convention, so that the noisy ELBO is log p(y, theta).
"""

from typing import Self

import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._core.variational import RemainingError, Variational
from nghvi._linalg.tree import SolveInfo, SolveOptions, exact_solve
from nghvi._typing import Scalar


class Point(Variational):
    """The distribution with all its mass at ``mean``."""

    mean: Float[Array, " m"]

    @property
    def dim(self) -> int:
        return self.mean.size

    @property
    def noise_dim(self) -> int:
        return 0

    @property
    def centre(self) -> Float[Array, " m"]:
        return self.mean

    def transport(self, noise: Float[Array, " e"]) -> Float[Array, " m"]:
        return self.mean

    def log_density(self, theta: Float[Array, " m"]) -> Scalar:
        return jnp.zeros(())

    def pull_back(self, noise: Float[Array, "s e"], score: Float[Array, "s m"]) -> Self:
        return type(self)(jnp.mean(score, axis=0))

    def natural_gradient(
        self, gradient: Self, damping: float, fisher: str, options: SolveOptions
    ) -> tuple[Self, SolveInfo]:
        return gradient, exact_solve()

    def retract(self, update: Self) -> Self:
        return type(self)(self.mean + update.mean)

    def rescale(self, tangent: Self, unit: Float[Array, " m"]) -> Self:
        return type(self)(unit * tangent.mean)

    def remaining_error(self, gradient: Self) -> RemainingError:
        return RemainingError(jnp.zeros_like(self.mean), jnp.zeros_like(self.mean))

    def standard_deviation(self) -> Float[Array, " m"]:
        return jnp.zeros_like(self.mean)

    def covariance(self) -> Float[Array, "m m"]:
        return jnp.zeros((self.dim, self.dim))
