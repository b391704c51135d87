"""Quadrature rules for N(0, I_r), as points and weights.

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
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.optimize import minimize
from scipy.special import roots_genlaguerre

from nghvi._linalg.tree import largest_divisor

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
PART = {1: 7, 2: 25, 3: 25}
"""Number of points evaluated together if rows are few, by number of effects. The first rules of
:data:`NODES` are one part, or a few."""
OTHER_PART = 24
"""The same for more effects."""
ROOM = (16, 64)
"""Numbers of parts for which a refinable :class:`Grid` has room; most rules fit into the first."""


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
