"""Points and weights that stand for N(0, I_r).

Up to three dimensions, few nodes per dimension form a product of Gauss-Hermite rules, the best
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
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize
from scipy.special import roots_genlaguerre

LARGEST_PRODUCT = 3
"""Dimensions up to which one-dimensional rules are multiplied."""
MOST_HERMITE = 7
"""Nodes per dimension up to which these are Gauss-Hermite rules."""
BEND, REACH = 0.7, 4.5
"""The trapezoidal rule's a, and the radius of its ball in t: x reaches 16.6 conditional sds."""
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
    # Multiples of powers of the root of x^(r+1) = x + 1 fill the unit cube evenly.
    root = max(x.real for x in np.roots([1, *np.zeros(r - 1), -1, -1]) if abs(x.imag) < 1e-9)
    shift = (np.outer(root ** -np.arange(1.0, r + 1), np.arange(TURNS)) + 0.5) % 1 - 0.5
    t = spacing * (_ball(num_nodes, r)[:, :, None] + shift)
    points = np.sinh(BEND * t) / BEND
    log_density = -0.5 * np.sum(points**2, axis=1) - 0.5 * r * np.log(2 * np.pi)
    return Rule(
        points, r * np.log(spacing) + np.sum(np.log(np.cosh(BEND * t)), axis=1) + log_density
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
