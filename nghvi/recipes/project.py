"""The factor Gaussian closest to a full covariance Gaussian, without a gradient of the model.

Minimises ``KL(q || p) = (tr(Sigma^-1 S) - log|S|) / 2 + const`` over ``S = B B' + D^2``: the
ELBO optimum of the factor family if the posterior were N(mean, Sigma). Solved in correlation
units from a principal component start.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from nghvi._linalg.lowrank import factor_precision, pack_lower, packed_size, unpack_lower
from nghvi.variational.cholesky import CholeskyGaussian
from nghvi.variational.factor import FactorGaussian


def project(q: CholeskyGaussian, rank: int) -> FactorGaussian:
    """Project to a factor covariance of this rank."""
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
    # A rotation to lower trapezoidal form leaves B B' alone.
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
        q.mean, pack_lower(jnp.asarray(loadings)), jnp.asarray(sd * np.exp(best[free:])), rank
    )
