"""Effects of a non-Gaussian response integrated out by adaptive Gauss-Hermite quadrature.

Nodes are centred at each group's conditional mode and scaled by its curvature C C'::

    log p(y_k) = -log|C_k| + log sum_j w_j exp( |x_j|^2 / 2 + log p(y_k, u_kj) ),
    u_kj = mode_k + C_k^-T x_j

The integral does not depend on where the nodes stand, so they are held fixed when it is
differentiated; the gradient is then Fisher's identity with the quadrature's own weights. With
one node this is Laplace's approximation, where the mode does matter: there one Newton step is
differentiated, which is the implicit derivative.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array

from nghvi._linalg import small
from nghvi._typing import Scalar
from nghvi.latents.rows import RowProblem, conditional_mode, newton_step


def grid(num_nodes: int, r: int) -> tuple[np.ndarray, np.ndarray]:
    """Product rule for N(0, I_r): nodes (J, r) and log weights plus |x|^2 / 2 (J,)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    log_weights = np.log(weights / weights.sum())
    points = np.array(list(itertools.product(nodes, repeat=r)))
    logs = np.array([sum(c) for c in itertools.product(log_weights, repeat=r)])
    return points, logs + 0.5 * np.sum(points**2, axis=1)


def log_marginal(problem: RowProblem, num_nodes: int) -> Scalar:
    """log p(y | theta), summed over groups."""
    mode = conditional_mode(problem)
    if num_nodes == 1:
        return _laplace(problem, mode)
    frozen = jax.lax.stop_gradient(problem)
    root = small.cholesky(frozen.derivatives(mode)[1])
    points, log_weights = grid(num_nodes, mode.shape[0])

    def at_node(point: Array) -> tuple[Array, Array]:
        shift = jnp.broadcast_to(point[:, None], mode.shape)
        return mode + small.solve_lower(root, shift, transpose=True)

    nodes = jax.vmap(at_node)(jnp.asarray(points))
    log_joint = jax.vmap(problem.log_prob)(nodes)
    each = logsumexp(log_joint + log_weights[:, None], axis=0) - small.half_log_det(root)
    return jnp.sum(each)


def _laplace(problem: RowProblem, mode: Array) -> Scalar:
    mode = newton_step(problem, mode)
    root = small.cholesky(problem.derivatives(mode)[1])
    return jnp.sum(problem.log_prob(mode) - small.half_log_det(root))
