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

In up to three dimensions a few nodes per dimension form a product of Gauss-Hermite rules, which are
the best for a conditional that is nearly Gaussian. With more nodes the trapezoidal rule takes over,
in coordinates t with ``x = sinh(a t) / a``, within a ball. Its error falls exponentially with the
number of nodes even if the conditional has a bend, like that of a group of one class with a large
variance, and its points reach far. Each group's grid is shifted by a different fraction of the
spacing, so that errors do not add up over similar groups.

Beyond three dimensions z is split into |z| s: |z|^2 / 2 is Gamma(r / 2), for which Gauss-Laguerre
rules give radii, and the directions s are pairs of opposite points. They are spread so evenly over
the sphere that, if there are enough of them, all moments up to the fifth are those of uniform
directions. Each group's directions are rotated differently.
"""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int
from scipy.optimize import minimize
from scipy.special import roots_genlaguerre

from nghvi._linalg import small
from nghvi._linalg.tree import largest_divisor
from nghvi._typing import PyTree, Scalar
from nghvi.latents.rows import Mode, RowProblem, conditional_mode, newton_step

NODES = {1: 7, 2: 5, 3: 5}
"""First number of nodes per dimension, by number of random effects."""
REFINED_NODES = 14
"""Least nodes per dimension of a trapezoidal rule; each further one has half as many again."""
RADII = 3
"""First number of radii, for more effects than :data:`NODES` lists."""
LARGEST_GRID, CHEAP_GRID = 1500, 30
"""Numbers of points up to which integrals are affordable, and up to which they are cheap."""
LARGEST_PRODUCT = 3
"""Number of dimensions up to which one-dimensional rules are multiplied."""
MOST_HERMITE = 7
"""Number of nodes per dimension up to which the rules are Gauss-Hermite."""
BEND, REACH, FEW = 0.7, 4.5, 14
"""The trapezoidal rule's a with few nodes, the radius of its ball in t, and how many nodes count as
few. With these, x reaches 17 conditional sds."""
SECOND = 100.0
"""Weight of the second moments of the directions relative to the fourth ones."""
TURNS = 128
"""Number of shifts or rotations that the groups take in turn."""


class Rule(NamedTuple):
    """Points and weights of a quadrature rule; groups take the entries of the last axis in turn."""

    points: Float[np.ndarray, "j r t"]
    log_weights: Float[np.ndarray, "j t"]

    def of_groups(self, number: int) -> tuple[Float[Array, "j r k"], Float[Array, "j k"]]:
        """Return the points and log weights for each of ``number`` groups."""
        turn = np.arange(number) % self.points.shape[2]
        return jnp.asarray(self.points)[:, :, turn], jnp.asarray(self.log_weights)[:, turn]


def first_nodes(r: int) -> int:
    """Return the first number of nodes per dimension, or of radii, for r effects."""
    return NODES.get(r, RADII)


def finer(num_nodes: int, r: int) -> int:
    """Return the number of nodes or radii of the next refinement."""
    if r > LARGEST_PRODUCT:
        return num_nodes + 1
    if first_nodes(r) <= num_nodes < MOST_HERMITE:
        return MOST_HERMITE
    return max(REFINED_NODES, 3 * num_nodes // 2)


def is_hermite(num_nodes: int, r: int) -> bool:
    """Return whether the rule is a product of Gauss-Hermite rules."""
    return r <= LARGEST_PRODUCT and num_nodes <= MOST_HERMITE


def num_points(num_nodes: int, r: int) -> int:
    """Return the number of points of :func:`rule`."""
    if r > LARGEST_PRODUCT and num_nodes > 1:
        return 2 * num_nodes * _num_pairs(num_nodes, r)
    return num_nodes**r if num_nodes <= MOST_HERMITE else len(_ball(num_nodes, r))


def rule(num_nodes: int, r: int) -> Rule:
    """Return the rule with ``num_nodes`` nodes per dimension, or radii beyond three dimensions."""
    if r > LARGEST_PRODUCT:
        return _radial(num_nodes, r)
    return _hermite(num_nodes, r) if is_hermite(num_nodes, r) else _trapezoidal(num_nodes, r)


def _hermite(num_nodes: int, r: int) -> Rule:
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    logs = np.log(weights / weights.sum())
    points = np.array(list(itertools.product(nodes, repeat=r)))
    log_weights = np.array([sum(c) for c in itertools.product(logs, repeat=r)])
    return Rule(points[:, :, None], log_weights[:, None])


@functools.lru_cache(maxsize=32)
def _ball(num_nodes: int, r: int) -> Float[np.ndarray, "j r"]:
    """Return the points of a grid with ``num_nodes`` across the ball, in units of its spacing.

    Their number is a multiple of eight, so that they can be evaluated in equal parts.
    """
    axis = np.arange(num_nodes) - (num_nodes - 1) / 2
    grid = np.array(list(itertools.product(axis, repeat=r)))
    square = np.sum(grid**2, axis=1)
    inside = int(np.sum(square <= (num_nodes / 2) ** 2))
    return grid[np.argsort(square, kind="stable")[: -(-inside // 8) * 8]]


def _trapezoidal(num_nodes: int, r: int) -> Rule:
    spacing = 2 * REACH / num_nodes
    # More nodes also reach farther, 53 sds with 31 nodes: if effects are large, the curvature at
    # the mode of a group of one class says little about how wide its conditional is.
    bend = BEND * max(1.0, num_nodes / FEW) ** 0.5
    # Multiples of powers of the root of x^(r+1) = x + 1 fill the unit cube evenly.
    root = max(x.real for x in np.roots([1, *np.zeros(r - 1), -1, -1]) if abs(x.imag) < 1e-9)
    shift = (np.outer(root ** -np.arange(1.0, r + 1), np.arange(TURNS)) + 0.5) % 1 - 0.5
    t = spacing * (_ball(num_nodes, r)[:, :, None] + shift)
    points = np.sinh(bend * t) / bend
    log_density = -0.5 * np.sum(points**2, axis=1) - 0.5 * r * np.log(2 * np.pi)
    return Rule(
        points, r * np.log(spacing) + np.sum(np.log(np.cosh(bend * t)), axis=1) + log_density
    )


def _radial(num_radii: int, r: int) -> Rule:
    half_squares, weights = roots_genlaguerre(num_radii, r / 2 - 1)
    pairs = directions(_num_pairs(num_radii, r), r)
    both = np.concatenate([pairs, -pairs])
    points = (np.sqrt(2 * half_squares)[:, None, None] * both).reshape(-1, r)
    logs = np.repeat(np.log(weights / weights.sum() / len(both)), len(both))
    rotated = np.einsum("tab,jb->jat", _rotations(r), points)
    return Rule(rotated, np.broadcast_to(logs[:, None], (len(logs), TURNS)))


def _num_pairs(num_radii: int, r: int) -> int:
    """Return the number of pairs: few for two radii, enough for five moments for three."""
    return 2 * r if num_radii < 3 else r * (r + 2) // 2 * 2 ** (num_radii - 3)


@functools.lru_cache(maxsize=32)
def directions(number: int, r: int) -> Float[np.ndarray, "n r"]:
    """Return evenly spread unit vectors, each of which represents itself and its opposite.

    The mean of (s't)^4 over all s and t is never below that of uniform directions, and is equal
    only if all moments up to the fifth are. The same is true of (s't)^2 and the second moments.
    Both means are minimised.
    """

    def crowding(flat: np.ndarray) -> tuple[float, np.ndarray]:
        length = np.linalg.norm(flat.reshape(number, r), axis=1, keepdims=True)
        unit = flat.reshape(number, r) / length
        cosine = unit @ unit.T
        slope = (8 * cosine**3 + 4 * SECOND * cosine) @ unit
        along = np.sum(slope * unit, axis=1, keepdims=True)
        total = np.sum(cosine**4 + SECOND * cosine**2)
        return float(total), ((slope - along * unit) / length).ravel()

    start = np.random.default_rng(0).standard_normal(number * r)
    options = {"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-10}
    found = minimize(crowding, start, jac=True, method="L-BFGS-B", options=options).x
    unit = found.reshape(number, r)
    return unit / np.linalg.norm(unit, axis=1, keepdims=True)


@functools.lru_cache(maxsize=32)
def _rotations(r: int) -> Float[np.ndarray, "t r r"]:
    """Return random rotations, the same ones in every call."""
    noise = np.random.default_rng(1).standard_normal((TURNS, r, r))
    return np.linalg.qr(noise)[0]


ENOUGH_NODES = 3
"""Number of nodes from which on the safe curvature, which suits small groups, can scale them; fewer
nodes are scaled by the Hessian."""
SIDE_BY_SIDE = 40_000
"""Observations times nodes evaluated at once, few enough to stay in the caches and to keep memory
linear in the rows."""
PART = {1: 7, 2: 25, 3: 25}
"""Number of points evaluated together if rows are few, by number of effects. The first rules of
:data:`NODES` are one part, or a few."""
OTHER_PART = 24
"""The same for more effects."""
ROOM = (16, 64)
"""Numbers of parts for which a refinable :class:`Grid` has room; most rules fit into the first."""
VARYING = ("offset", "design", "dispersion")
"""Fields of a problem that depend on theta."""


class Grid(eqx.Module):
    """A rule as data, in parts of equal size, so that one program serves rules of any size.

    Points that only fill up a part have weight 0.
    """

    points: Float[Array | np.ndarray, "p j r t"]
    log_factors: Float[Array | np.ndarray, "p j t"]
    """The numbers log w_j + |x_j|^2 / 2."""
    num_parts: Int[Array, ""] | int
    """Number of parts that the rule consists of; there may be room for more."""
    num_nodes: Int[Array, ""] | int
    safely: bool = eqx.field(static=True)
    """Whether the safe curvature scales the nodes."""

    @staticmethod
    def of(num_nodes: int, r: int) -> "Grid":
        """Return the rule and nothing else, as constants of a program."""
        return _grid(num_nodes, r, 0)

    @staticmethod
    def roomy(num_nodes: int, r: int) -> "Grid":
        """Return the rule with room for finer ones, as arguments of a program."""
        needed = -(-num_points(num_nodes, r) // PART.get(r, OTHER_PART))
        return _roomy(num_nodes, r, next((room for room in ROOM if room >= needed), needed))

    def of_groups(self, part: Array | int, number: int) -> tuple[Array, Array]:
        """Return the points (j, r, k) and log factors (j, k) of a part for ``number`` groups."""
        turn = np.arange(number) % self.points.shape[-1]
        points, logs = jnp.asarray(self.points)[part], jnp.asarray(self.log_factors)[part]
        return points[:, :, turn], logs[:, turn]

    def in_parts(self, most: int) -> "Grid":
        """Return the rule in smaller parts, of at most ``most`` points."""
        each = self.points.shape[1]
        size = largest_divisor(each, most)
        if size == each:
            return self
        points, logs = (
            jnp.asarray(a).reshape(-1, size, *a.shape[2:]) for a in (self.points, self.log_factors)
        )
        return Grid(points, logs, self.num_parts * (each // size), self.num_nodes, self.safely)


def _grid(num_nodes: int, r: int, room: int) -> Grid:
    points, log_weights = rule(num_nodes, r)
    turns = points.shape[2] if room == 0 else TURNS
    size = PART.get(r, OTHER_PART)
    number = -(-len(points) // size)
    in_all = max(number, room) * size
    filled = np.zeros((in_all, r, turns))
    filled[: len(points)] = points
    factors = np.full((in_all, turns), -np.inf)
    factors[: len(points)] = log_weights + 0.5 * np.sum(points**2, axis=1)
    parts = filled.reshape(-1, size, r, turns)
    logs = factors.reshape(-1, size, turns)
    return Grid(parts, logs, number, num_nodes, num_nodes >= ENOUGH_NODES)


@functools.lru_cache(maxsize=32)
def _roomy(num_nodes: int, r: int, room: int) -> Grid:
    made = _grid(num_nodes, r, room)
    points, log_factors = map(jax.device_put, (made.points, made.log_factors))
    number, nodes = (jax.device_put(np.asarray(n)) for n in (made.num_parts, num_nodes))
    return Grid(points, log_factors, number, nodes, made.safely)


def log_marginal(problem: RowProblem, nodes: int | Grid) -> Scalar:
    """Return log p(y | theta), summed over groups; NaN if the mode of a group was not found.

    ``nodes``: a number of nodes per dimension (or of radii), or the rule itself.
    """
    mode = conditional_mode(problem)
    if nodes == 1:
        value = _laplace(problem, mode.effects)
    else:
        varying = tuple(getattr(problem, name) for name in VARYING)
        fixed = jax.lax.stop_gradient(problem)
        value = _integrate(varying, fixed, mode, _in_parts(problem, nodes))
    return jnp.where(jnp.all(mode.found), value, jnp.nan)


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
