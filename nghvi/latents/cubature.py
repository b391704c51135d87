"""Points and weights that stand for N(0, I_r).

Up to three dimensions a product of Gauss-Hermite rules. Beyond, z = |z| s is taken apart: |z|^2 / 2
is Gamma(r / 2), for which Gauss-Laguerre rules give radii, and the directions s are pairs of
opposite points spread so evenly over the sphere that, where enough of them are used, all their
moments up to the fifth are those of uniform directions.
"""

import functools
import itertools

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import roots_genlaguerre

LARGEST_PRODUCT = 3
"""Dimensions up to which a product of one-dimensional rules is used."""
SECOND = 100.0
"""Weight of the second moments of the directions beside the fourth ones."""
TURNS = 128
"""Rotations of the directions that groups take in turn, so that their errors average out."""


def num_points(num_nodes: int, r: int) -> int:
    """Points of :func:`rule`."""
    if r <= LARGEST_PRODUCT or num_nodes == 1:
        return num_nodes**r
    return 2 * num_nodes * _num_pairs(num_nodes, r)


def rule(num_nodes: int, r: int) -> tuple[Float[np.ndarray, "j r"], Float[np.ndarray, " j"]]:
    """Points and log weights with ``num_nodes`` nodes a dimension, or beyond three radii."""
    if r <= LARGEST_PRODUCT:
        nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
        logs = np.log(weights / weights.sum())
        points = np.array(list(itertools.product(nodes, repeat=r)))
        return points, np.array([sum(c) for c in itertools.product(logs, repeat=r)])
    half_squares, weights = roots_genlaguerre(num_nodes, r / 2 - 1)
    pairs = directions(_num_pairs(num_nodes, r), r)
    both = np.concatenate([pairs, -pairs])
    points = np.sqrt(2 * half_squares)[:, None, None] * both
    logs = np.log(weights / weights.sum() / len(both))
    return points.reshape(-1, r), np.repeat(logs, len(both))


def _num_pairs(num_nodes: int, r: int) -> int:
    """Few for two radii; for three about what moments up to the fifth take."""
    return 2 * r if num_nodes < 3 else r * (r + 2) // 2 * 2 ** (num_nodes - 3)


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
def rotations(r: int) -> Float[np.ndarray, "t r r"]:
    """Random rotations, the same ones in every call."""
    noise = np.random.default_rng(1).standard_normal((TURNS, r, r))
    return np.linalg.qr(noise)[0]
