"""Built-in example data, simulated so that the truth is known and nothing is downloaded."""

from typing import NamedTuple

import numpy as np
import pandas as pd


class Simulated(NamedTuple):
    """A simulated data frame and the parameters behind it."""

    frame: pd.DataFrame
    target: str
    """Name of the response column."""
    group: str
    """Name of the group column."""
    truth: dict[str, float]
    """True parameters, by their names in ``summary``."""


def simulate_schools(num_schools: int = 60, seed: int = 2024) -> Simulated:
    """Simulate exam scores of pupils whose intercept and slope of ``intake`` vary by school.

    Parameters
    ----------
    num_schools
        Number of schools, 8 to 59 pupils each.
    seed
        Seed of the random numbers.

    Returns
    -------
    Simulated
        ``frame`` has one row per pupil: ``school``; ``intake``, the prior attainment; ``hours``
        of study; ``girl`` (0 or 1); and the response ``score``.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    sizes = rng.integers(8, 60, num_schools)
    school = np.repeat(np.arange(num_schools), sizes)
    n = school.size
    intake = rng.normal(0, 0.5, num_schools)[school] + rng.normal(0, 1, n)
    hours = rng.gamma(4, 1.5, n)
    girl = rng.random(n) < 0.55
    sd_intercept, sd_slope, correlation, noise_sd = 3.0, 1.2, 0.4, 7.0
    cov = np.array(
        [
            [sd_intercept**2, correlation * sd_intercept * sd_slope],
            [correlation * sd_intercept * sd_slope, sd_slope**2],
        ]
    )
    effects = rng.multivariate_normal(np.zeros(2), cov, num_schools)[school]
    score = (
        50
        + (5.5 + effects[:, 1]) * intake
        + 0.8 * hours
        + 1.5 * girl
        + effects[:, 0]
        + rng.normal(0, noise_sd, n)
    )
    frame = pd.DataFrame(
        {
            "school": [f"S{k:02d}" for k in school],
            "intake": intake.round(3),
            "hours": hours.round(2),
            "girl": girl.astype(int),
            "score": score.round(2),
        }
    )
    truth = {
        "intercept": 50.0,
        "intake": 5.5,
        "hours": 0.8,
        "girl": 1.5,
        "noise_var": noise_sd**2,
        "effects_sd[intercept]": sd_intercept,
        "effects_sd[intake]": sd_slope,
        "effects_corr[intercept,intake]": correlation,
    }
    return Simulated(frame, "score", "school", truth)
