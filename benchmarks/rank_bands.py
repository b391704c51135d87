"""Are ranks uniform? Simultaneous bands for their empirical distribution function, exactly.

Ranks of N truths among L posterior draws take L + 1 equally likely values if the posterior is
calibrated. At points z_1 < ... < z_K the counts N F(z_i) of ranks below z_i (L + 1) are then
Binomial(N, z_i), and they form a Markov chain: given a count of c at z_i, the next one is
c + Binomial(N - c, (z_{i+1} - z_i) / (1 - z_i)). The probability that all counts stay between
given bounds is therefore a product of matrices. Bands whose bounds leave out the same probability
gamma at every point (Saeilynoja, Buerkner and Vehtari, 2022) hold simultaneously with a probability
that follows from gamma; gamma is found by bisection, and the p-value of a set of ranks is one
minus the probability of the widest band that it does not stay inside of.
"""

import functools
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

POINTS = 100
"""Steps of z; L + 1 has to be a multiple of it, so that the counts are binomial exactly."""


class Band(NamedTuple):
    """Counts N F(z) between which calibrated ranks stay at all points with ``probability``."""

    z: np.ndarray
    low: np.ndarray
    high: np.ndarray
    probability: float


def counts_below(ranks: np.ndarray, draws: int) -> np.ndarray:
    """N F(z) at every point, from ranks between 0 and ``draws``."""
    if (draws + 1) % POINTS:
        raise ValueError(f"{draws} draws: one more has to be a multiple of {POINTS}.")
    limits = np.arange(1, POINTS) * ((draws + 1) // POINTS)
    return np.searchsorted(np.sort(ranks), limits, side="left")


@functools.lru_cache
def _steps(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, chances of the next count given a count at each of them, tails of every count."""
    z = np.arange(1, POINTS) / POINTS
    counts = np.arange(n + 1)
    before = np.concatenate([[0.0], z[:-1]])
    chance = ((z - before) / (1 - before))[:, None, None]
    more = counts[None, :] - counts[:, None]
    steps = binom.pmf(more, n - counts[:, None], chance)
    below = binom.cdf(counts, n, z[:, None])
    above = binom.sf(counts - 1, n, z[:, None])
    return z, steps, np.minimum(1.0, 2 * np.minimum(below, above))


def _probability_inside(n: int, allowed: np.ndarray) -> float:
    """That calibrated counts stay where ``allowed`` (points, counts) at every point."""
    _, steps, _ = _steps(n)
    reached = np.zeros(n + 1)
    reached[0] = 1.0
    for step, allow in zip(steps, allowed, strict=True):
        reached = (reached @ step) * allow
    return float(reached.sum())


@functools.lru_cache
def band(n: int, level: float = 0.95) -> Band:
    """The narrowest band for ``n`` ranks that holds with a probability of at least ``level``."""
    z, _, tails = _steps(n)
    low, high = 0.0, 1.0 - level
    for _ in range(40):
        middle = 0.5 * (low + high)
        inside = _probability_inside(n, tails > middle) >= level
        low, high = (middle, high) if inside else (low, middle)
    allowed = tails > low
    lowest = allowed.argmax(axis=1)
    highest = n - allowed[:, ::-1].argmax(axis=1)
    return Band(z, lowest, highest, _probability_inside(n, allowed))


def p_value(ranks: np.ndarray, draws: int) -> float:
    """Probability that calibrated ranks leave a band as wide as these do, or a wider one."""
    n = len(ranks)
    _, _, tails = _steps(n)
    smallest = tails[np.arange(POINTS - 1), counts_below(ranks, draws)].min()
    # A little more than the tail itself: equal ones differ by rounding.
    return 1.0 - _probability_inside(n, tails > smallest * (1 + 1e-9))


def holm(p_values: np.ndarray) -> np.ndarray:
    """P-values of a family after Holm: below alpha in at most a share alpha of true families."""
    order = np.argsort(p_values)
    steps = (len(p_values) - np.arange(len(p_values))) * np.asarray(p_values)[order]
    out = np.empty(len(p_values))
    out[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return out
