"""How Gaussian is the posterior of one effect's sd, in logarithms and in the library's coordinates?

Run: python -m benchmarks.sd_coordinates

Balanced data with known noise: G groups whose means have the variance 1 + sd^2, observed mean
square 1 + z sqrt(2 / G), a half-t(2, 2.5) prior. The table has the least Kullback-Leibler distance
of a Gaussian in nats, averaged and at worst over G from 8 to 3,000 and z from -2 to 20.
"""

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_ndtr

GROUPS, STRENGTHS = (8, 12, 40, 300, 3000), (-2, -1, 0, 1, 2, 3, 4, 8, 20)
GRID = np.linspace(-15, 25, 4001)
NOISE, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)


def distance(slope: float | None, factor: float, groups: int, strength: float) -> float:
    """Of the best Gaussian; ``slope=None``: in log sd; ``factor``: the unit is wrong by it."""
    unit = factor * (2 / groups) ** 0.25
    square = max(1 + strength * np.sqrt(2 / groups), 0.05)

    def log_posterior(u: np.ndarray) -> np.ndarray:
        log_sd, log_slope = u, np.zeros_like(u)
        if slope is not None:
            log_sd = np.log(unit) + slope * u + log_ndtr(u)
            mills = np.exp(-0.5 * u**2 - log_ndtr(u)) / np.sqrt(2 * np.pi)
            log_slope = np.log(slope + mills)
        variance = np.exp(2 * log_sd)
        fit = -0.5 * groups * (np.log1p(variance) + square / (1 + variance))
        return fit - 1.5 * np.log1p(variance / 12.5) + log_sd + log_slope

    density = log_posterior(GRID)
    log_evidence = np.logaddexp.reduce(density) + np.log(GRID[1] - GRID[0])
    mass = np.exp(density - np.logaddexp.reduce(density))
    mean = mass @ GRID

    def divergence(free: np.ndarray) -> float:
        expected = WEIGHTS @ log_posterior(free[0] + np.exp(free[1]) * NOISE) / WEIGHTS.sum()
        return log_evidence - expected - free[1] - 0.5 * np.log(2 * np.pi * np.e)

    start = [mean, 0.5 * np.log(mass @ (GRID - mean) ** 2)]
    return float(minimize(divergence, start, method="Nelder-Mead").fun)


def main() -> None:
    """Print the table."""
    print("| coordinates | unit off by | mean | worst |\n|---|---|---|---|")
    slopes = [(slope, 1.0) for slope in (None, 0.2, 0.25, 0.3, 0.5)]
    for slope, factor in slopes + [(0.25, factor) for factor in (0.5, 2.0, 4.0)]:
        found = [distance(slope, factor, g, z) for g in GROUPS for z in STRENGTHS]
        name = "log sd" if slope is None else f"slope {slope}"
        print(f"| {name} | {factor:g} | {np.mean(found):.3f} | {np.max(found):.3f} |")


if __name__ == "__main__":
    main()
