"""Effects of a non-Gaussian response integrated out by adaptive quadrature.

Nodes x_j with weights w_j that stand for N(0, I_r) are centred at each group's conditional mode
and scaled by its curvature C C'::

    log p(y_k) = -log|C_k| + log sum_j w_j exp( |x_j|^2 / 2 + log p(y_k, u_kj) ),
    u_kj = mode_k + C_k^-T x_j

The integral does not depend on where the nodes are, so they are held fixed when it is
differentiated; the gradient is then Fisher's identity with the quadrature's own weights. With one
node this is Laplace's approximation, in which the mode does matter: two Newton steps are
differentiated, which gives its first and second derivatives. Second derivatives are right in both
cases (reverse mode first, as in ``jax.hessian``).

The rules are in :mod:`nghvi.latents.rules`.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from nghvi._linalg import small
from nghvi._typing import PyTree, Scalar
from nghvi.latents.rows import (
    FOUND,
    NEWTON_TOLERANCE,
    Mode,
    RowProblem,
    conditional_mode,
    newton_step,
)
from nghvi.latents.rules import Grid

SIDE_BY_SIDE = 40_000
"""Observations times nodes evaluated at once, few enough to stay in the caches and to keep memory
linear in the rows."""
VARYING = ("offset", "design", "dispersion")
"""Fields of a problem that depend on theta."""


def log_marginal(
    problem: RowProblem, nodes: int | Grid, near: Float[Array, "r k"] | None = None
) -> Scalar:
    """Return log p(y | theta), summed over groups; NaN if the mode of a group was not found.

    ``nodes``: a number of nodes per dimension (or of radii), or the rule itself. ``near``: effects
    that are probably near the modes.
    """
    mode = _mode(problem, near)
    if nodes == 1:
        value = _laplace(problem, mode.effects)
    else:
        varying = tuple(getattr(problem, name) for name in VARYING)
        fixed = jax.lax.stop_gradient(problem)
        value = _integrate(varying, fixed, mode, _in_parts(problem, nodes))
    return jnp.where(jnp.all(mode.found), value, jnp.nan)


def _mode(problem: RowProblem, near: Float[Array, "r k"] | None) -> Mode:
    """Return where to put the nodes of every group: not farther from its mode than they allow."""
    roughly = near is not None and problem.response.log_concave
    return conditional_mode(problem, FOUND if roughly else NEWTON_TOLERANCE, near)


def _in_parts(problem: RowProblem, nodes: int | Grid) -> Grid:
    grid = nodes if isinstance(nodes, Grid) else Grid.of(nodes, problem.design.shape[1])
    return grid.in_parts(SIDE_BY_SIDE // max(len(problem.data.y), 1))


@eqx.filter_custom_vjp
def _integrate(varying: tuple, problem: RowProblem, mode: Mode, grid: Grid) -> Scalar:
    """Return the integral; ``problem`` holds ``varying`` as well, but hidden from derivatives."""
    del varying

    def mass(nodes: Array, factors: Array) -> Array:
        return jnp.sum(factors * jnp.exp(jax.vmap(problem.log_prob)(nodes) - mode.height), axis=0)

    return _log_integral(problem, mode, grid, _over_nodes(problem, mode, grid, mass))


def _log_integral(problem: RowProblem, mode: Mode, grid: Grid, mass: Array) -> Scalar:
    """Return the log integral from each group's sum, in units of the density at its mode."""
    root = _root(problem, mode.effects, grid)
    return jnp.sum(jnp.log(mass) + mode.height - small.half_log_det(root))


def _root(problem: RowProblem, mode: Array, grid: Grid) -> Float[Array, "r r k"]:
    safe = problem.derivatives(mode)[1] if grid.safely else problem.curvature(mode)
    return small.cholesky(safe)


def _over_nodes(
    problem: RowProblem, mode: Mode, grid: Grid, of: Callable[[Array, Array], PyTree]
) -> PyTree:
    """Sum a function of nodes (J, r, k) and their factors (J, k), part by part."""
    root, number = _root(problem, mode.effects, grid), mode.effects.shape[1]

    def of_part(part: Array | int) -> PyTree:
        points, logs = grid.of_groups(part, number)

        def place(shift: Array) -> Array:
            return mode.effects + small.solve_lower(root, shift, transpose=True)

        return of(jax.vmap(place)(points), jnp.exp(logs))

    if isinstance(grid.num_parts, int) and grid.num_parts == 1:
        return of_part(0)
    shapes = jax.eval_shape(of_part, 0)
    nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    return jax.lax.fori_loop(
        0, grid.num_parts, lambda i, sum_: jax.tree.map(jnp.add, sum_, of_part(i)), nothing
    )


def _forward(
    perturbed: tuple, varying: tuple, problem: RowProblem, mode: Mode, grid: Grid
) -> tuple[Scalar, tuple]:
    # With ``varying`` from the arguments, so that the slopes can be differentiated once more.
    moving = problem._replace(**dict(zip(VARYING, varying, strict=True)))
    mass, *sums = _over_nodes(problem, mode, grid, lambda *part: _slopes(moving, mode, *part))
    share = moving.data.expand(1 / mass)
    d_offset, d_design, d_dispersion = (
        each * share.reshape(-1, *(1,) * (each.ndim - 1)) for each in sums
    )
    value = _log_integral(problem, mode, grid, mass)
    return value, (d_offset, d_design, jnp.sum(d_dispersion, axis=0))


def _slopes(
    problem: RowProblem, mode: Mode, nodes: Array, factors: Array
) -> tuple[Array, Array, Array, Array]:
    """Return each group's mass at these nodes, and each row's derivatives of it.

    The derivatives are in offset, design and dispersion. They are taken forwards, since every row
    has its own predictor and shares only the few parameters of the response.
    """
    data = problem.data
    eta = jax.vmap(problem.predictor)(nodes)

    def log_prob(eta: Array, dispersion: Array) -> Array:
        at = jax.vmap(data.at_observations)(eta)
        return jax.vmap(data.by_row)(problem.response.log_prob(data.y, at, dispersion))

    values, push = jax.linearize(log_prob, eta, problem.dispersion)
    prior = 0.5 * jnp.sum(nodes**2, axis=1)
    mass = factors * jnp.exp(jax.vmap(data.sum)(values) - prior - mode.height)
    weight = data.weighted(jax.vmap(data.expand)(mass).T).T
    d_eta = weight * push(jnp.ones_like(eta), jnp.zeros_like(problem.dispersion))
    d_design = [
        jnp.sum(d_eta * jax.vmap(data.expand)(nodes[:, j]), axis=0) for j in range(nodes.shape[1])
    ]
    d_dispersion = [
        jnp.sum(weight * push(jnp.zeros_like(eta), unit), axis=0)
        for unit in jnp.eye(problem.dispersion.size)
    ]
    return (
        jnp.sum(mass, axis=0),
        jnp.sum(d_eta, axis=0),
        jnp.stack(d_design, axis=1),
        jnp.stack(d_dispersion, axis=1) if d_dispersion else jnp.zeros((len(eta.T), 0)),
    )


def _backward(slopes: tuple, cotangent: Array, *unused: object) -> tuple:
    return jax.tree.map(lambda x: cotangent * x, slopes)


_integrate.def_fwd(_forward)
_integrate.def_bwd(_backward)


def _laplace(problem: RowProblem, mode: Array) -> Scalar:
    # Each step doubles the order to which the mode's dependence on theta is right: with two steps
    # second derivatives are right as well.
    for _ in range(2):
        mode = mode + newton_step(problem, mode, close=True).step
    root = small.cholesky(problem.curvature(mode))
    return jnp.sum(problem.log_prob(mode) - small.half_log_det(root))


def moments(problem: RowProblem, nodes: int | Grid) -> tuple[Array, Array]:
    """Return the conditional mean (r, k) and covariance (r, r, k) of the whitened effects."""
    mode, grid = conditional_mode(problem), _in_parts(problem, nodes)

    def sums(nodes: Array, factors: Array) -> tuple[Array, Array, Array]:
        mass = factors * jnp.exp(jax.vmap(problem.log_prob)(nodes) - mode.height)
        from_mode = nodes - mode.effects
        weighted = mass[:, None] * from_mode
        square = jnp.einsum("jak,jbk->abk", weighted, from_mode)
        return jnp.sum(mass, axis=0), jnp.sum(weighted, axis=0), square

    mass, first, second = _over_nodes(problem, mode, grid, sums)
    shift = first / mass
    return mode.effects + shift, second / mass - shift[:, None] * shift[None]


class Weighed(NamedTuple):
    """Nodes at each group's whitened effects, and what is known of them."""

    nodes: Float[Array, "j r k"]
    log_share: Float[Array, "j k"]
    """Log probabilities of the nodes given theta and the group's rows; they sum to one."""
    log_mass: Float[Array, " k"]
    """log p(y_k | theta), NaN if the mode of the group was not found."""


def weighed_nodes(problem: RowProblem, num_nodes: int) -> Weighed:
    """Return the nodes of a rule for every group, all at once."""
    grid, mode = Grid.of(num_nodes, problem.design.shape[1]), conditional_mode(problem)
    root, number = _root(problem, mode.effects, grid), mode.effects.shape[1]
    parts = [grid.of_groups(part, number) for part in range(len(grid.points))]
    points, logs = map(jnp.concatenate, zip(*parts, strict=True))
    nodes = mode.effects + jax.vmap(lambda x: small.solve_lower(root, x, transpose=True))(points)
    log_mass = logs + jax.vmap(problem.log_prob)(nodes) - small.half_log_det(root)
    total = logsumexp(log_mass, axis=0)
    return Weighed(nodes, log_mass - total, jnp.where(mode.found, total, jnp.nan))
