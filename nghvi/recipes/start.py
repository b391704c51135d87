"""Where a fit starts; where a smooth model does: at its mode, by the curvature there."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize

from nghvi._core.model import LatentModel, MarginalModel, initial_theta, unraveller
from nghvi._core.variational import Start
from nghvi._programs import program
from nghvi._typing import Data, Key, Scalar
from nghvi.families.cholesky import CholeskyGaussian

SMALLEST_CURVATURE = 1e-2
"""A flatter direction starts with an sd of 10 units; the natural gradient widens it if need be."""


@program
def value_and_score(
    model: MarginalModel, data: Data, theta: Float[Array, " m"]
) -> tuple[Scalar, Float[Array, " m"]]:
    """log p(y, theta) and its gradient."""
    unravel = unraveller(model, data)
    return jax.value_and_grad(lambda t: model.log_marginal(unravel(t), data))(theta)


@program
def log_target(model: MarginalModel, data: Data, theta: Float[Array, " m"]) -> Scalar:
    """log p(y, theta) alone: half of what there is to compile."""
    return model.log_marginal(unraveller(model, data)(theta), data)


def negative_hessian(
    model: MarginalModel, data: Data, theta: np.ndarray, unit: np.ndarray
) -> np.ndarray:
    """Minus the second derivative of log p(y, theta + unit phi) in phi, at phi = 0.

    Central differences of the score: accurate to six digits, which is more than a start
    needs, and free of the compilation (and the stalls seen) of a second differentiation.
    """
    width = 1e-4

    def score(phi: np.ndarray) -> np.ndarray:
        at = jax.device_put(theta + unit @ phi)
        return unit.T @ np.asarray(value_and_score(model, data, at)[1])

    eye = width * np.eye(theta.size)
    hessian = np.stack([score(e) - score(-e) for e in eye]) / (2 * width)
    return -0.5 * (hessian + hessian.T)


def covariance_factor(curvature: np.ndarray) -> np.ndarray:
    """A square root of the inverse, eigenvalues made positive and floored."""
    if not np.isfinite(curvature).all():
        return np.eye(len(curvature))
    values, vectors = np.linalg.eigh(curvature)
    return vectors / np.sqrt(np.maximum(np.abs(values), SMALLEST_CURVATURE))


def first_theta(
    key: Key, model: LatentModel, data: Data, start: Start | None
) -> Float[Array, " m"]:
    """Where the caller wants to begin, or the model."""
    return initial_theta(key, model, data) if start is None else jnp.asarray(start.theta, float)


def laplace_start(model: MarginalModel, data: Data, theta: Float[Array, " m"]) -> CholeskyGaussian:
    """A Gaussian at the mode, climbed to in coordinates whitened at ``theta``, by the curvature."""
    origin = np.asarray(theta)
    unit = covariance_factor(negative_hessian(model, data, origin, np.eye(origin.size)))

    def objective(phi: np.ndarray) -> tuple[float, np.ndarray]:
        evaluated = value_and_score(model, data, jax.device_put(origin + unit @ phi))
        value, score = float(evaluated[0]), np.asarray(evaluated[1])
        if not (np.isfinite(value) and np.isfinite(score).all()):
            return 1e30, np.zeros_like(phi)
        return -value, -unit.T @ score

    found = minimize(
        objective,
        np.zeros_like(origin),
        jac=True,
        method="L-BFGS-B",
        options={"maxcor": 20, "gtol": 1e-3, "ftol": 1e-12, "maxiter": 500},
    )
    mode = origin + unit @ found.x
    factor = unit @ covariance_factor(negative_hessian(model, data, mode, unit))
    # numpy throughout: eager JAX operations would each be compiled.
    triangular = np.asarray(np.linalg.qr(factor.T, mode="r")).T
    triangular = triangular * np.where(np.diagonal(triangular) < 0, -1.0, 1.0)
    packed = triangular[np.tril_indices(mode.size)]
    return CholeskyGaussian(jax.device_put(mode), jax.device_put(packed))
