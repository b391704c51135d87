"""Effects of a non-Gaussian response integrated out by adaptive quadrature.

Nodes x_j with weights w_j (:mod:`nghvi.latents.cubature`) are centred at each group's
conditional mode and scaled by its curvature C C'::

    log p(y_k) = -log|C_k| + log sum_j w_j exp( |x_j|^2 / 2 + log p(y_k, u_kj) ),
    u_kj = mode_k + C_k^-T x_j

The integral does not depend on where the nodes stand, so they are held fixed when it is
differentiated; the gradient is then Fisher's identity with the quadrature's own weights. With
one node this is Laplace's approximation, where the mode does matter: there two Newton steps are
differentiated, which gives its first and second derivative. Second derivatives are right in both
cases (reverse mode first, as in ``jax.hessian``).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array

from nghvi._linalg import small
from nghvi._typing import Scalar
from nghvi.latents import cubature
from nghvi.latents.rows import RowProblem, conditional_mode, newton_step

ENOUGH_NODES = 3
"""With fewer the Hessian scales them; these bear the safe curvature, which suits small groups."""
SIDE_BY_SIDE = 100_000
"""Observations times nodes evaluated at once: they stay in the caches, and memory is linear."""
VARYING = ("offset", "design", "dispersion")
"""What of a problem depends on theta."""


def log_marginal(problem: RowProblem, num_nodes: int) -> Scalar:
    """log p(y | theta), summed over groups; not a number where a group's mode was not found."""
    mode = conditional_mode(problem)
    if num_nodes == 1:
        value = _laplace(problem, mode.effects)
    else:
        varying = tuple(getattr(problem, name) for name in VARYING)
        fixed = jax.lax.stop_gradient(problem)
        value = _integrate(varying, fixed, mode.effects, num_nodes)
    return jnp.where(jnp.all(mode.found), value, jnp.nan)


@eqx.filter_custom_vjp
def _integrate(varying: tuple, problem: RowProblem, mode: Array, num_nodes: int) -> Scalar:
    """The integral; ``problem`` holds ``varying`` once more, out of reach of differentiation."""
    del varying
    return _weigh_nodes(problem, problem, mode, num_nodes)[0]


def _weigh_nodes(
    problem: RowProblem, fixed: RowProblem, mode: Array, num_nodes: int
) -> tuple[Scalar, Array, Array]:
    """The integral, its nodes (J, r, k) and their weights (J, k), which add to 1 in a group.

    ``fixed`` is the problem as it places the nodes.
    """
    few = num_nodes < ENOUGH_NODES
    root = small.cholesky(fixed.curvature(mode) if few else fixed.derivatives(mode)[1])
    points, log_weights = cubature.rule(num_nodes, mode.shape[0]).of_groups(mode.shape[1])

    def place(shift: Array) -> Array:
        return mode + small.solve_lower(root, shift, transpose=True)

    nodes = jax.vmap(place)(points)
    size = _side_by_side(problem, len(nodes))
    if size == len(nodes):  # without a loop the gradient shares what is computed here
        log_joint = jax.vmap(problem.log_prob)(nodes)
    else:
        log_joint = jax.lax.map(problem.log_prob, nodes, batch_size=size)
    terms = log_joint + log_weights + 0.5 * jnp.sum(points**2, axis=1)
    each = logsumexp(terms, axis=0)
    value = jnp.sum(each - small.half_log_det(root))
    return value, nodes, jnp.exp(terms - each)


def _side_by_side(problem: RowProblem, num_nodes: int) -> int:
    """How many nodes are evaluated at once: a divisor of their number, 1 for many rows."""
    most = max(1, SIDE_BY_SIDE // max(len(problem.data.y), 1))
    return max(n for n in range(1, num_nodes + 1) if num_nodes % n == 0 and n <= most)


def _forward(
    perturbed: tuple, varying: tuple, problem: RowProblem, mode: Array, num_nodes: int
) -> tuple[Scalar, tuple]:
    # In ``varying``, so that the slopes can be differentiated once more.
    moving = problem._replace(**dict(zip(VARYING, varying, strict=True)))
    value, nodes, weights = _weigh_nodes(moving, problem, mode, num_nodes)
    size = _side_by_side(problem, len(nodes))
    if size == len(nodes):
        return value, _slopes(moving, nodes, weights)
    parts = jax.tree.map(lambda a: a.reshape(-1, size, *a.shape[1:]), (nodes, weights))

    def add(total: tuple, part: tuple[Array, Array]) -> tuple[tuple, None]:
        return jax.tree.map(jnp.add, total, _slopes(moving, *part)), None

    return value, jax.lax.scan(add, jax.tree.map(jnp.zeros_like, varying), parts)[0]


def _slopes(problem: RowProblem, nodes: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Derivative of the weighted sum of log p(y | nodes) in offset, design and dispersion."""
    data = problem.data

    def log_prob(eta: Array, dispersion: Array) -> Array:
        at = jax.vmap(data.at_observations)(eta)
        return jax.vmap(data.by_row)(problem.response.log_prob(data.y, at, dispersion))

    _, pull = jax.vjp(log_prob, jax.vmap(problem.predictor)(nodes), problem.dispersion)
    d_eta, d_dispersion = pull(data.weighted(jax.vmap(data.expand)(weights).T).T)
    rows = jax.vmap(lambda node: data.expand(node.T))(nodes)
    d_design = jnp.einsum("jn,jnr->nr", d_eta, rows)
    return jnp.sum(d_eta, axis=0), d_design, d_dispersion


def _backward(slopes: tuple, cotangent: Array, *unused: object) -> tuple:
    return jax.tree.map(lambda x: cotangent * x, slopes)


_integrate.def_fwd(_forward)
_integrate.def_bwd(_backward)


def _laplace(problem: RowProblem, mode: Array) -> Scalar:
    # Each step doubles the order in which the mode's dependence on theta is right: two, so that
    # second derivatives are, too.
    for _ in range(2):
        mode = mode + newton_step(problem, mode, close=True).step
    root = small.cholesky(problem.curvature(mode))
    return jnp.sum(problem.log_prob(mode) - small.half_log_det(root))


def moments(problem: RowProblem, num_nodes: int) -> tuple[Array, Array]:
    """Conditional mean (r, k) and covariance (r, r, k) of the whitened effects."""
    mode = conditional_mode(problem).effects
    _, nodes, weights = _weigh_nodes(problem, problem, mode, num_nodes)
    mean = jnp.sum(weights[:, None] * nodes, axis=0)
    deviation = nodes - mean
    return mean, jnp.einsum("jk,jak,jbk->abk", weights, deviation, deviation)
