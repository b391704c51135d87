"""Gaussian with factor covariance: q = N(mean, B B' + D^2), rank p >= 0.

With ``P = (B B' + D^2)^-1``, ``C = P B`` and ``A = B' P B`` the Fisher information is::

    mean block   P
    B block      P_ij A_ab + C_ib C_ja      (the paper prints 2 P_ij A_ab, which is larger)
    B, d block   2 d_j P_ij C_ja
    d block      2 d_i d_j P_ij^2

Products with it cost O(m p^2), and no array larger than m x p is formed.

A full step ``F x = g`` changes the covariance by ``dS`` with ``K = P dS P``, ``K B = g_B`` and
``d o diag K = g_d``: these are the equations of the B and the d block. The changes of the
marginal variances need nothing else of ``K``, so no system is solved::

    diag dS = diag (B B' + D^2) K (B B' + D^2)
            = diag(B (B' g_B) B') + 2 d^2 o diag(B g_B') + d^3 o g_d

``g_B`` lacks the entries above the diagonal, which are not free. ``B`` is zero there, so the
second term does not need them. Neither does the first, which follows from the lower triangle of
``B' g_B`` because ``B' K B`` is symmetric.

If the posterior is N(mean, Sigma), the ELBO optimum minimises ``(tr(Sigma^-1 S) - log|S|) / 2``
over ``S = B B' + D^2``, which needs no gradient of the model (:func:`project`).
"""

import dataclasses
import numbers
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize

from nghvi._core.errors import InputError
from nghvi._core.variational import Family, RemainingError, Variational
from nghvi._linalg.lowrank import (
    FactorPrecision,
    factor_precision,
    pack_lower,
    packed_size,
    unpack_lower,
)
from nghvi._linalg.tree import SolveInfo, SolveOptions, damped_cg
from nghvi._programs import program
from nghvi._typing import Scalar

FISHER = ("exact", "printed")
"""Choices of the Fisher information: the exact one, and the one printed in the paper."""


class FactorGaussian(Variational):
    """The Gaussian N(mean, B B' + diag(scale)^2), B packed as the entries of a lower trapezoid.

    ``signed_scale`` lets an update carry ``scale`` through zero, as the published rules do;
    otherwise the update is multiplicative and the scale keeps its sign.
    """

    mean: Float[Array, " m"]
    packed_loadings: Float[Array, " free"]
    scale: Float[Array, " m"]
    rank: int = eqx.field(static=True)
    signed_scale: bool = eqx.field(static=True, default=False)

    @staticmethod
    def start(
        mean: Float[Array, " m"],
        scale: Float[Array, " m"],
        rank: int,
        loading: float | Float[Array, "m 1"] = 0.01,
        *,
        signed_scale: bool = False,
    ) -> "FactorGaussian":
        """Return a start with all free loadings equal to ``loading``, since F is singular at 0."""
        dense = jnp.broadcast_to(jnp.asarray(loading, mean.dtype), (mean.size, rank))
        return FactorGaussian(mean, pack_lower(dense), scale, rank, signed_scale)

    @property
    def dim(self) -> int:
        return self.mean.size

    @property
    def noise_dim(self) -> int:
        return self.rank + self.mean.size

    @property
    def loadings(self) -> Float[Array, "m p"]:
        """B as a matrix."""
        return unpack_lower(self.packed_loadings, self.mean.size, self.rank)

    @property
    def centre(self) -> Float[Array, " m"]:
        return self.mean

    def transport(self, noise: Float[Array, " e"]) -> Float[Array, " m"]:
        return self.mean + self.loadings @ noise[: self.rank] + self.scale * noise[self.rank :]

    def log_density(self, theta: Float[Array, " m"]) -> Scalar:
        precision = factor_precision(self.loadings, self.scale)
        deviation = theta - self.mean
        square = deviation @ precision.matvec(deviation)
        return -0.5 * (self.dim * np.log(2 * np.pi) + precision.log_det_covariance + square)

    def natural_gradient(
        self, gradient: Self, damping: float, fisher: str, options: SolveOptions
    ) -> tuple[Self, SolveInfo]:
        precision = factor_precision(self.loadings, self.scale)
        mean = _solve_mean_block(precision, gradient.mean, damping)
        diagonal = self._fisher_diagonal(precision, fisher)
        right = (gradient.packed_loadings, gradient.scale)

        def product(x: tuple[Array, Array]) -> tuple[Array, Array]:
            return self._fisher_product(precision, fisher, x)

        (loadings, scale), info = damped_cg(product, diagonal, right, damping, options)
        return self._like(mean, loadings, scale), info

    def retract(self, update: Self) -> Self:
        added = self.scale + update.scale
        kept = self.scale * jnp.exp(update.scale / self.scale)
        return self._like(
            self.mean + update.mean,
            self.packed_loadings + update.packed_loadings,
            added if self.signed_scale else kept,
        )

    def rescale(self, tangent: Self, unit: Float[Array, " m"]) -> Self:
        loadings = unpack_lower(tangent.packed_loadings, self.dim, self.rank) * unit[:, None]
        return self._like(unit * tangent.mean, pack_lower(loadings), self.scale * tangent.scale)

    def remaining_error(self, gradient: Self) -> RemainingError:
        loadings, variance, slope = self.loadings, self.scale**2, gradient.mean
        displacement = loadings @ (loadings.T @ slope) + variance * slope
        pulled = unpack_lower(gradient.packed_loadings, self.dim, self.rank)
        lower = jnp.tril(loadings.T @ pulled)
        inner = lower + jnp.tril(lower, -1).T
        change = jnp.sum((loadings @ inner + 2 * variance[:, None] * pulled) * loadings, axis=1)
        change = change + variance * self.scale * gradient.scale
        sd = self.standard_deviation()
        return RemainingError(displacement / sd, 0.5 * change / sd**2)

    def standard_deviation(self) -> Float[Array, " m"]:
        return jnp.sqrt(jnp.sum(self.loadings**2, axis=1) + self.scale**2)

    def covariance(self) -> Float[Array, "m m"]:
        return self.loadings @ self.loadings.T + jnp.diag(self.scale**2)

    def fisher_product(self, tangent: Self, fisher: str = "exact") -> Self:
        """Return F times a tangent vector, without damping."""
        precision = factor_precision(self.loadings, self.scale)
        loadings, scale = self._fisher_product(
            precision, fisher, (tangent.packed_loadings, tangent.scale)
        )
        return self._like(precision.matvec(tangent.mean), loadings, scale)

    def _like(self, mean: Array, packed_loadings: Array, scale: Array) -> Self:
        return type(self)(mean, packed_loadings, scale, self.rank, self.signed_scale)

    def _fisher_product(
        self, precision: FactorPrecision, fisher: str, x: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        s, w, c, a = (
            precision.inverse_variance,
            precision.root,
            precision.projected,
            precision.gram,
        )
        tangent = unpack_lower(x[0], self.dim, self.rank)
        v = self.scale * x[1]
        # P X and P (v o C), and W W' (v o W) for (P o P) v, which with P = diag(s) - W W' needs no
        # m x m array. Side by side they take two products instead of six.
        beside = jnp.concatenate([tangent, v[:, None] * c, v[:, None] * w], axis=1)
        inner = w @ (w.T @ beside)
        direct = s[:, None] * beside[:, : 2 * self.rank]
        image, of_scale = jnp.split(direct - inner[:, : 2 * self.rank], 2, axis=1)
        turned = image @ a if fisher == "printed" else c @ (tangent.T @ c)
        loadings = image @ a + turned + 2 * of_scale
        hadamard = s**2 * v + jnp.sum(
            (inner[:, 2 * self.rank :] - 2 * s[:, None] * v[:, None] * w) * w, axis=1
        )
        scale = 2 * self.scale * (jnp.sum(c * image, axis=1) + hadamard)
        return pack_lower(loadings), scale

    def _fisher_diagonal(self, precision: FactorPrecision, fisher: str) -> tuple[Array, Array]:
        p_diagonal = precision.diagonal()
        outer = p_diagonal[:, None] * jnp.diagonal(precision.gram)
        loadings = 2 * outer if fisher == "printed" else outer + precision.projected**2
        return pack_lower(loadings), 2 * self.scale**2 * p_diagonal**2


def _solve_mean_block(precision: FactorPrecision, right: Array, damping: float) -> Array:
    """Return (P + damping diag P)^-1 right, in closed form."""
    w = precision.root
    n = (1 + damping) * precision.inverse_variance - damping * jnp.sum(w**2, axis=1)
    scaled = w / n[:, None]
    inner = jnp.eye(w.shape[1]) - w.T @ scaled
    return right / n + scaled @ jnp.linalg.solve(inner, scaled.T @ right)


def factor_size(dim: int, rank: int) -> int:
    """Return the number of free parameters of the family."""
    return 2 * dim + packed_size(dim, rank)


def project(q: Variational, rank: int) -> FactorGaussian:
    """Return the Gaussian with ``rank`` factors that is closest to q, starting from components."""
    sd = np.asarray(q.standard_deviation())
    correlation = np.asarray(q.covariance()) / np.outer(sd, sd)
    m = sd.size
    rank = min(rank, m)
    precision = jnp.asarray(np.linalg.inv(correlation))
    free = packed_size(m, rank)

    @jax.jit
    def divergence(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def value(x: jax.Array) -> jax.Array:
            loadings, scale = unpack_lower(x[:free], m, rank), jnp.exp(x[free:])
            covariance = loadings @ loadings.T + jnp.diag(scale**2)
            log_det = factor_precision(loadings, scale).log_det_covariance
            return 0.5 * (jnp.sum(precision * covariance) - log_det)

        return jax.value_and_grad(value)(x)

    values, vectors = np.linalg.eigh(correlation)
    leading = vectors[:, m - rank :] * np.sqrt(np.maximum(values[m - rank :] - values[0], 1e-4))
    # A rotation to lower trapezoidal form leaves B B' unchanged.
    rotation = np.linalg.qr(leading[:rank].T)[0] if rank else np.zeros((0, 0))
    loadings = leading @ rotation
    unique = np.maximum(1 - np.sum(loadings**2, axis=1), 0.05)
    start = np.concatenate([np.asarray(pack_lower(jnp.asarray(loadings))), 0.5 * np.log(unique)])

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = divergence(jnp.asarray(x))
        return float(value), np.asarray(gradient)

    best = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 2000}).x
    loadings = np.asarray(unpack_lower(jnp.asarray(best[:free]), m, rank)) * sd[:, None]
    return FactorGaussian(
        q.centre, pack_lower(jnp.asarray(loadings)), jnp.asarray(sd * np.exp(best[free:])), rank
    )


@dataclasses.dataclass(frozen=True)
class Factor(Family):
    """Gaussians with ``rank`` factors plus a diagonal, for networks or to save memory."""

    member = FactorGaussian
    gaussian = True
    rank: int = 3

    def __post_init__(self) -> None:
        rank = self.rank
        if isinstance(rank, bool) or not isinstance(rank, numbers.Integral) or rank < 0:
            raise InputError(f"rank={rank!r}: give a number of factors >= 0.")

    def at(self, centre: Float[Array, " m"], scale: Float[Array, " m"]) -> FactorGaussian:
        return _start(centre, scale, self.rank)

    def closest(self, q: Variational) -> FactorGaussian:
        return project(q, self.rank)


@program
def _start(centre: Array, scale: Array, rank: int) -> FactorGaussian:
    return FactorGaussian.start(centre, scale, rank, 0.01 * scale[:, None])
