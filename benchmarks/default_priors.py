"""Which prior of standard deviations does no harm? ``python -m benchmarks.default_priors``

Balanced groups, ``y_ij = mu + a_i + e_ij`` with a ~ N(0, tau^2), e ~ N(0, sigma^2), simulated with
noise that is between 0.1 and 99 % of the variance, 3 to 100 groups of 2 to 20 rows, and
standardised as the estimators do. The posterior of (sigma, tau) is exact up to a grid: with mu
integrated out under a flat prior it depends on the sums of squares within and between groups,

    SSW / sigma^2 ~ chi^2_{K(n-1)},      SSB / (sigma^2 + n tau^2) ~ chi^2_{K-1}.

Reported for each pair of priors: how often 95 % intervals hold the true sigma and tau, how far the
posterior median of sigma is from the truth, and how wide the interval of tau is.
"""

import argparse
import json
import pathlib
from collections.abc import Callable

import numpy as np
import pandas as pd

from nghvi.paper.studies.facts import about

GROUPS, ROWS = (3, 6, 20, 100), (2, 5, 20)
SHARES = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99)
POINTS = 64
"""Of the grid, per dimension."""

LogDensity = Callable[[np.ndarray], np.ndarray]
"""Of the logarithm of a standard deviation, up to a constant."""


def half_t(df: float, scale: float) -> LogDensity:
    """Half-t on the sd."""
    return lambda log_sd: log_sd - 0.5 * (df + 1) * np.log1p(np.exp(2 * log_sd) / (df * scale**2))


def exponential(scale: float) -> LogDensity:
    """Exponential on the sd."""
    return lambda log_sd: log_sd - np.exp(log_sd) / scale


def inverse_gamma(shape: float, scale: float) -> LogDensity:
    """Inverse gamma on the variance."""
    return lambda log_sd: -2 * shape * log_sd - scale * np.exp(-2 * log_sd)


PAIRS: dict[str, tuple[LogDensity, LogDensity]] = {
    "noise IG(1.01, 1.01), effects half-t(2, 2.5)": (inverse_gamma(1.01, 1.01), half_t(2, 2.5)),
    "both half-t(2, 2.5)": (half_t(2, 2.5), half_t(2, 2.5)),
    "both half-t(3, 2.5)": (half_t(3, 2.5), half_t(3, 2.5)),
    "both half-t(4, 1)": (half_t(4, 1.0), half_t(4, 1.0)),
    "both half-Cauchy(1)": (half_t(1, 1.0), half_t(1, 1.0)),
    "both exponential(1)": (exponential(1.0), exponential(1.0)),
    "both half-t(2, 25)": (half_t(2, 25.0), half_t(2, 25.0)),
}


class Squares:
    """Sums of squares of many standardised data sets of one kind."""

    def __init__(
        self, rng: np.random.Generator, groups: int, rows: int, share: float, number: int
    ) -> None:
        sigma, tau = np.sqrt(share), np.sqrt(1 - share)
        self.rows, self.free = rows, (groups * (rows - 1), groups - 1)
        within = sigma**2 * rng.chisquare(self.free[0], number)
        between = (sigma**2 + rows * tau**2) * rng.chisquare(self.free[1], number)
        unit = np.sqrt((within + between) / (groups * rows))
        self.within, self.between = within / unit**2, between / unit**2
        self.truth = sigma / unit, tau / unit

    def log_posterior(
        self, log_sigma: np.ndarray, log_tau: np.ndarray, priors: tuple[LogDensity, LogDensity]
    ) -> np.ndarray:
        """Of (log sigma, log tau) on grids of shape (data sets, points) each."""
        noise = np.exp(2 * log_sigma)
        prior, effects = priors[0](log_sigma), priors[1](log_tau)
        alone = prior - self.free[0] * log_sigma - 0.5 * self.within[:, None] / noise
        total = noise[:, :, None] + self.rows * np.exp(2 * log_tau)[:, None, :]
        together = -0.5 * (self.free[1] * np.log(total) + self.between[:, None, None] / total)
        return alone[:, :, None] + effects[:, None, :] + together


def quantiles(squares: Squares, priors: tuple[LogDensity, LogDensity]) -> list[np.ndarray]:
    """2.5, 50 and 97.5 % quantiles of sigma and of tau, shape (data sets, 3) each."""
    number = len(squares.within)
    low, high = np.full((2, number), -8.0), np.full((2, number), 6.0)
    for _ in range(3):  # where the posterior is, then ever closer
        grids = [np.linspace(a, b, POINTS, axis=1) for a, b in zip(low, high, strict=True)]
        log_density = squares.log_posterior(grids[0], grids[1], priors)
        weight = np.exp(log_density - log_density.max(axis=(1, 2), keepdims=True))
        sides = [weight.sum(axis=2), weight.sum(axis=1)]
        step = [g[:, 1] - g[:, 0] for g in grids]
        inside = [side > 1e-7 * side.max(axis=1, keepdims=True) for side in sides]
        low = np.array([_first(g, i) for g, i in zip(grids, inside, strict=True)]) - step
        high = (
            np.array([_first(g[:, ::-1], i[:, ::-1]) for g, i in zip(grids, inside, strict=True)])
            + step
        )
    return [
        np.exp([_at(g[k], s[k]) for k in range(number)]) for g, s in zip(grids, sides, strict=True)
    ]


def _first(grid: np.ndarray, inside: np.ndarray) -> np.ndarray:
    return np.take_along_axis(grid, inside.argmax(axis=1)[:, None], axis=1)[:, 0]


def _at(grid: np.ndarray, weight: np.ndarray) -> np.ndarray:
    below = np.cumsum(weight) - 0.5 * weight
    return np.interp([0.025, 0.5, 0.975], below / weight.sum(), grid)


def study(replications: int) -> pd.DataFrame:
    """One row per pair of priors and kind of data."""
    found = []
    for cell, (groups, rows, share) in enumerate(
        (k, n, s) for k in GROUPS for n in ROWS for s in SHARES
    ):
        squares = Squares(np.random.default_rng(cell), groups, rows, share, replications)
        for name, priors in PAIRS.items():
            sigma, tau = quantiles(squares, priors)
            row = {"priors": name, "groups": groups, "rows": rows, "noise_share": share}
            for label, value, truth in zip(
                ("sigma", "tau"), (sigma, tau), squares.truth, strict=True
            ):
                row[f"{label}_covered"] = np.mean((value[:, 0] <= truth) & (truth <= value[:, 2]))
                row[f"{label}_ratio"] = np.median(value[:, 1] / truth)
                row[f"{label}_upper"] = np.median(value[:, 2] / truth)
            found.append(row)
    return pd.DataFrame(found)


def digest(table: pd.DataFrame) -> pd.DataFrame:
    """The worst and the average over all kinds of data, one row per pair of priors."""
    by = table.groupby("priors", sort=False)
    few = table[table["groups"] == 3].groupby("priors", sort=False)
    return pd.DataFrame(
        {
            "sigma covered, least": by["sigma_covered"].min(),
            "sigma covered, mean": by["sigma_covered"].mean(),
            "sigma ratio, least": by["sigma_ratio"].min(),
            "sigma ratio, most": by["sigma_ratio"].max(),
            "tau covered, least": by["tau_covered"].min(),
            "tau covered, mean": by["tau_covered"].mean(),
            "tau upper end, 3 groups": few["tau_upper"].median(),
        }
    )


def main() -> int:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replications", type=int, default=400)
    table = study(parser.parse_args().replications)
    print(digest(table).round(3).T.to_string())
    results = pathlib.Path(__file__).parent / "results" / "default_priors.json"
    report = {"about": about(), "digest": digest(table).round(4).to_dict("index")}
    report["rows"] = table.round(4).to_dict("records")
    results.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
