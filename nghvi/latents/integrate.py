"""Effects of a non-Gaussian response integrated out by adaptive quadrature.

Nodes x_j with weights w_j that stand for N(0, I_r) are centred at each group's conditional mode
and scaled by its curvature C C'::

    log p(y_k) = -log|C_k| + log sum_j w_j exp( |x_j|^2 / 2 + log p(y_k, u_kj) ),
    u_kj = mode_k + C_k^-T x_j

The integral does not depend on where the nodes stand, so they are held fixed when it is
differentiated; the gradient is then Fisher's identity with the quadrature's own weights. With
one node this is Laplace's approximation, where the mode does matter: there two Newton steps are
differentiated, which gives its first and second derivative. Second derivatives are right in both
cases (reverse mode first, as in ``jax.hessian``).

The nodes: up to three dimensions, few per dimension form a product of Gauss-Hermite rules, the best
there is for a conditional that is nearly Gaussian. With more nodes the trapezoidal rule takes
over, in coordinates t with ``x = sinh(a t) / a``, within a ball: its error falls exponentially with
the number of nodes also where the conditional has a bend, such as that of a group of one class with
a large variance, and its points reach far. Each group's grid is shifted by another fraction of
the spacing, so that errors do not add up over groups that are alike.

Beyond three dimensions z = |z| s is taken apart: |z|^2 / 2 is Gamma(r / 2), for which
Gauss-Laguerre rules give radii, and the directions s are pairs of opposite points spread so evenly
over the sphere that, where enough of them are used, all their moments up to the fifth are those of
uniform directions. Each group's directions are rotated.
"""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.optimize import minimize
from scipy.special import roots_genlaguerre

from nghvi._linalg import small
from nghvi._linalg.tree import largest_divisor
from nghvi._typing import PyTree, Scalar
from nghvi.latents.rows import Mode, RowProblem, conditional_mode, newton_step

NODES = {1: 7, 2: 5, 3: 5}
"""Nodes per dimension by number of random effects, to begin with."""
REFINED_NODES = 14
"""The first refinement; each further one takes half as many again."""
RADII = 3
"""To begin with, where there are more effects than those."""
LARGEST_GRID, CHEAP_GRID = 1500, 30
"""Points up to which integrals are affordable, and are cheap."""
LARGEST_PRODUCT = 3
"""Dimensions up to which one-dimensional rules are multiplied."""
MOST_HERMITE = 7
"""Nodes per dimension up to which these are Gauss-Hermite rules."""
BEND, REACH, FEW = 0.7, 4.5, 14
"""The trapezoidal rule's a with few nodes, the radius of its ball in t, and how many nodes are few:
x reaches 17 conditional sds."""
SECOND = 100.0
"""Weight of the second moments of the directions beside the fourth ones."""
TURNS = 128
"""Shifts or rotations that groups take in turn."""


class Rule(NamedTuple):
    """Points and weights; groups take the last axis in turn."""

    points: Float[np.ndarray, "j r t"]
    log_weights: Float[np.ndarray, "j t"]

    def of_groups(self, number: int) -> tuple[Float[Array, "j r k"], Float[Array, "j k"]]:
        """The points and log weights of each of so many groups."""
        turn = np.arange(number) % self.points.shape[2]
        return jnp.asarray(self.points)[:, :, turn], jnp.asarray(self.log_weights)[:, turn]


def first_nodes(r: int) -> int:
    """Nodes per dimension to begin with, or radii."""
    return NODES.get(r, RADII)


def finer(num_nodes: int, r: int) -> int:
    """Those of the next refinement."""
    return max(REFINED_NODES, 3 * num_nodes // 2) if r <= LARGEST_PRODUCT else num_nodes + 1


def num_points(num_nodes: int, r: int) -> int:
    """Points of :func:`rule`."""
    if r > LARGEST_PRODUCT and num_nodes > 1:
        return 2 * num_nodes * _num_pairs(num_nodes, r)
    return num_nodes**r if num_nodes <= MOST_HERMITE else len(_ball(num_nodes, r))


def rule(num_nodes: int, r: int) -> Rule:
    """The rule with ``num_nodes`` nodes per dimension, or beyond three dimensions radii."""
    if r > LARGEST_PRODUCT:
        return _radial(num_nodes, r)
    return _hermite(num_nodes, r) if num_nodes <= MOST_HERMITE else _trapezoidal(num_nodes, r)


def _hermite(num_nodes: int, r: int) -> Rule:
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    logs = np.log(weights / weights.sum())
    points = np.array(list(itertools.product(nodes, repeat=r)))
    log_weights = np.array([sum(c) for c in itertools.product(logs, repeat=r)])
    return Rule(points[:, :, None], log_weights[:, None])


@functools.lru_cache(maxsize=32)
def _ball(num_nodes: int, r: int) -> Float[np.ndarray, "j r"]:
    """The points of a grid with ``num_nodes`` across the ball, in units of its spacing.

    Their number is a multiple of eight, so that they can be evaluated in equal parts.
    """
    axis = np.arange(num_nodes) - (num_nodes - 1) / 2
    grid = np.array(list(itertools.product(axis, repeat=r)))
    square = np.sum(grid**2, axis=1)
    inside = int(np.sum(square <= (num_nodes / 2) ** 2))
    return grid[np.argsort(square, kind="stable")[: -(-inside // 8) * 8]]


def _trapezoidal(num_nodes: int, r: int) -> Rule:
    spacing = 2 * REACH / num_nodes
    # More nodes also reach farther, 53 sds with 31: where effects are large, the curvature at the
    # mode of a group of one class says little of how wide its conditional is.
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
    """Few for two radii; for three about what moments up to the fifth take."""
    return 2 * r if num_radii < 3 else r * (r + 2) // 2 * 2 ** (num_radii - 3)


@functools.lru_cache(maxsize=32)
def directions(number: int, r: int) -> Float[np.ndarray, "n r"]:
    """Unit vectors, each standing for itself and its opposite, spread evenly.

    The mean of (s't)^4 over all s and t is never below that of uniform directions, and equal
    only if all moments up to the fifth are; that of (s't)^2 the same for the second moments. Both
    are made as small as they get.
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
    """Random rotations, the same ones in every call."""
    noise = np.random.default_rng(1).standard_normal((TURNS, r, r))
    return np.linalg.qr(noise)[0]


ENOUGH_NODES = 3
"""With fewer the Hessian scales them; these bear the safe curvature, which suits small groups."""
SIDE_BY_SIDE = 100_000
"""Observations times nodes evaluated at once: they stay in the caches, and memory is linear."""
PART = {1: 7, 2: 25, 3: 25}
"""Points that are evaluated together where rows are few, by number of effects: the first rules of
:data:`NODES` are one part, or a few."""
OTHER_PART = 24
ROOM = (16, 64)
"""Parts for which there is room in a :class:`Grid` that is refined, most rules fit the first."""
VARYING = ("offset", "design", "dispersion")
"""What of a problem depends on theta."""


class Grid(eqx.Module):
    """A rule as data, in parts of equal size, so that one program serves rules of any size.

    Points that only fill a part up have the weight 0.
    """

    points: Float[Array | np.ndarray, "p j r t"]
    log_factors: Float[Array | np.ndarray, "p j t"]
    """log w_j + |x_j|^2 / 2."""
    num_parts: Int[Array, ""] | int
    """Of which the rule consists; there may be room for more."""
    num_nodes: Int[Array, ""] | int
    safely: bool = eqx.field(static=True)
    """Whether the safe curvature scales the nodes."""

    @staticmethod
    def of(num_nodes: int, r: int) -> "Grid":
        """The rule and nothing else, as constants of a program."""
        return _grid(num_nodes, r, 0)

    @staticmethod
    def roomy(num_nodes: int, r: int) -> "Grid":
        """With room for finer rules, as arguments of a program."""
        needed = -(-num_points(num_nodes, r) // PART.get(r, OTHER_PART))
        return _roomy(num_nodes, r, next((room for room in ROOM if room >= needed), needed))

    def of_groups(self, part: Array | int, number: int) -> tuple[Array, Array]:
        """Points (j, r, k) and logs of factors (j, k) of a part, for each of so many groups."""
        turn = np.arange(number) % self.points.shape[-1]
        points, logs = jnp.asarray(self.points)[part], jnp.asarray(self.log_factors)[part]
        return points[:, :, turn], logs[:, turn]

    def in_parts(self, most: int) -> "Grid":
        """In smaller parts, of at most so many points."""
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
    """log p(y | theta), summed over groups; not a number where a group's mode was not found."""
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
    """The integral; ``problem`` holds ``varying`` once more, out of reach of differentiation."""
    del varying

    def mass(nodes: Array, factors: Array) -> Array:
        return jnp.sum(factors * jnp.exp(jax.vmap(problem.log_prob)(nodes) - mode.height), axis=0)

    return _log_integral(problem, mode, grid, _over_nodes(problem, mode, grid, mass))


def _log_integral(problem: RowProblem, mode: Mode, grid: Grid, mass: Array) -> Scalar:
    """From each group's sum over nodes, which is in units of the density at its mode."""
    root = _root(problem, mode.effects, grid)
    return jnp.sum(jnp.log(mass) + mode.height - small.half_log_det(root))


def _root(problem: RowProblem, mode: Array, grid: Grid) -> Float[Array, "r r k"]:
    safe = problem.derivatives(mode)[1] if grid.safely else problem.curvature(mode)
    return small.cholesky(safe)


def _over_nodes(
    problem: RowProblem, mode: Mode, grid: Grid, of: Callable[[Array, Array], PyTree]
) -> PyTree:
    """Sum of a function of nodes (J, r, k) and their factors (J, k), part by part."""
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
    # In ``varying``, so that the slopes can be differentiated once more.
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
    """Each group's mass at these nodes, and each row's derivatives of it.

    In offset, design and dispersion: forwards, since all rows have their own predictor and few
    parameters of the response in common.
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
    # Each step doubles the order in which the mode's dependence on theta is right: two, so that
    # second derivatives are, too.
    for _ in range(2):
        mode = mode + newton_step(problem, mode, close=True).step
    root = small.cholesky(problem.curvature(mode))
    return jnp.sum(problem.log_prob(mode) - small.half_log_det(root))


def moments(problem: RowProblem, nodes: int | Grid) -> tuple[Array, Array]:
    """Conditional mean (r, k) and covariance (r, r, k) of the whitened effects."""
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
