"""Gaussian with full covariance: q = N(mean, C C'), C lower triangular.

The Fisher metric at C of a tangent dC = C M is ``sum_{i>j} M_ij^2 + 2 sum_i M_ii^2``, so the
natural gradient has a closed form (Tan 2025): ``mean: C C' g``, ``C: C dbar(C' G)`` with
``dbar(H) = tril(H) - diag(H) / 2``. No system has to be solved, and no damping is needed.

The retraction moves the precision: with ``M = C^-1 dC`` the new precision in whitened units is
``I - (M + M')``, eigenvalues clipped. One step of length 1 then lands exactly on a Gaussian
target, which an additive update of C does not.
"""

import dataclasses
from typing import Self, cast

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from nghvi._core.variational import Family, RemainingError, Variational
from nghvi._linalg.lowrank import diagonal, pack_lower, unpack_lower
from nghvi._linalg.tree import SolveInfo, SolveOptions, exact_solve
from nghvi._typing import Scalar

LARGEST_SCALING = 4.0
"""Factor by which one step may change a precision at most."""


class WithTriangularScale(Variational):
    """A family with a location and a scale matrix C C'; the free entries of C are packed by row."""

    mean: Float[Array, " m"]
    packed_factor: Float[Array, " free"]

    @property
    def dim(self) -> int:
        return self.mean.size

    @property
    def factor(self) -> Float[Array, "m m"]:
        """C as a matrix."""
        return unpack_lower(self.packed_factor, self.dim, self.dim)

    @property
    def centre(self) -> Float[Array, " m"]:
        return self.mean


class CholeskyGaussian(WithTriangularScale):
    """The Gaussian N(mean, C C')."""

    @staticmethod
    def from_covariance_factor(mean: Array, factor: Array) -> "CholeskyGaussian":
        """Return the Gaussian with this mean and any square root of its covariance."""
        triangular = jnp.linalg.qr(factor.T, mode="r").T
        signs = jnp.where(diagonal(triangular) < 0, -1.0, 1.0)
        return CholeskyGaussian(mean, pack_lower(triangular * signs))

    @property
    def noise_dim(self) -> int:
        return self.dim

    def transport(self, noise: Float[Array, " e"]) -> Float[Array, " m"]:
        return self.mean + self.factor @ noise

    def log_density(self, theta: Float[Array, " m"]) -> Scalar:
        factor = self.factor
        white = solve_triangular(factor, theta - self.mean, lower=True)
        log_det = jnp.sum(jnp.log(jnp.abs(diagonal(factor))))
        return -0.5 * (self.dim * np.log(2 * np.pi) + white @ white) - log_det

    def pull_back(self, noise: Float[Array, "s e"], score: Float[Array, "s m"]) -> Self:
        factor = self.factor
        whitened = (factor.T @ score.T) @ noise / noise.shape[0]
        # Its expectation, C' E[hessian] C, is symmetric, so averaging both halves reduces noise.
        symmetric = 0.5 * (whitened + whitened.T)
        gradient = solve_triangular(factor, symmetric, lower=True, trans=1)
        return type(self)(jnp.mean(score, axis=0), pack_lower(gradient))

    def natural_gradient(
        self, gradient: Self, damping: float, fisher: str, options: SolveOptions
    ) -> tuple[Self, SolveInfo]:
        factor = self.factor
        # Damping by delta F instead of delta diag F keeps the closed form: it shortens the step.
        shorten = 1 / (1 + damping)
        mean = factor @ (factor.T @ gradient.mean)
        tangent = factor @ _half_lower(factor.T @ gradient.factor)
        return type(self)(shorten * mean, pack_lower(shorten * tangent)), exact_solve()

    def retract(self, update: Self) -> Self:
        factor = self.factor
        tangent = solve_triangular(factor, update.factor, lower=True)
        eigenvalues, vectors = jnp.linalg.eigh(tangent + tangent.T)
        precision = jnp.clip(1 - eigenvalues, 1 / LARGEST_SCALING, LARGEST_SCALING)
        # The mean moves by the new covariance, whose eigenvectors are those of the old one
        # rescaled, times the gradient; with the old one it would miss a Gaussian target's mean.
        step = solve_triangular(factor, update.mean, lower=True)
        step = vectors @ ((vectors.T @ step) / precision)
        longest = max(1.0, np.sqrt(self.dim) / 2)
        step = step * jnp.minimum(1.0, longest / jnp.maximum(jnp.linalg.norm(step), 1e-300))
        root = factor @ (vectors / jnp.sqrt(precision))
        return cast(Self, self.from_covariance_factor(self.mean + factor @ step, root))

    def rescale(self, tangent: Self, unit: Float[Array, " m"]) -> Self:
        return type(self)(unit * tangent.mean, pack_lower(unit[:, None] * tangent.factor))

    def remaining_error(self, gradient: Self) -> RemainingError:
        factor = self.factor
        half = _half_lower(factor.T @ gradient.factor)
        change = diagonal(factor @ (half + half.T) @ factor.T)
        displacement = factor @ (factor.T @ gradient.mean)
        sd = self.standard_deviation()
        return RemainingError(displacement / sd, 0.5 * change / sd**2)

    def standard_deviation(self) -> Float[Array, " m"]:
        return jnp.sqrt(jnp.sum(self.factor**2, axis=1))

    def covariance(self) -> Float[Array, "m m"]:
        return self.factor @ self.factor.T


@dataclasses.dataclass(frozen=True)
class Full(Family):
    """Gaussians with full covariance, for up to 300 parameters."""

    member = CholeskyGaussian
    gaussian = True

    def at(self, centre: Float[Array, " m"], scale: Float[Array, " m"]) -> CholeskyGaussian:
        return CholeskyGaussian.from_covariance_factor(centre, jnp.diag(scale))

    def closest(self, q: Variational) -> Variational:
        return q


def _half_lower(matrix: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """Return tril(matrix) with its diagonal halved."""
    return jnp.tril(matrix) - 0.5 * jnp.diag(diagonal(matrix))
