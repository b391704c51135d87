"""Leave-one-out cross-validation by Pareto smoothed importance sampling (PSIS).

The expected log predictive density of row i without row i is a weighted average over the draws,
with weights 1 / p(y_i | draw), the largest of them smoothed. k-hat is the Pareto shape of the
weights: where it is large a row is so influential that the draws of the whole fit do not tell
what a fit without it would say.
"""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from arviz_stats import ELPDData
from arviz_stats.base import array_stats
from jaxtyping import Float
from scipy.special import logsumexp
from xarray import DataArray

from nghvi.posterior.pointwise import Given
from nghvi.recipes.importance import RELIABLE


@dataclasses.dataclass(repr=False)
class Loo(ELPDData):
    """The result of arviz-stats, with a sentence that says what its k-hats mean."""

    @property
    def num_unreliable(self) -> int:
        """Rows whose k-hat is too large."""
        return int(np.sum(np.asarray(self.pareto_k) > self.good_k))

    @property
    def meaning(self) -> str:
        """Whether the estimate can be trusted, and what to do if not."""
        largest, rows = float(np.max(self.pareto_k)), self.n_data_points
        if not self.num_unreliable:
            return (
                f"k-hat is below {self.good_k:.2f} in all {rows} rows (largest {largest:.2f}): the "
                "estimate can be trusted."
            )
        return (
            f"k-hat is above {self.good_k:.2f} in {self.num_unreliable} of {rows} rows (largest "
            f"{largest:.2f}): these rows are so influential that what a fit without them would "
            "say is not known, and the sum is likely too high; score held-out rows instead "
            "(log_score after K fits), or refit without these rows."
        )

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.meaning}"


class LeftOut(NamedTuple):
    """Predictions of every row without itself, on the fitted scale."""

    mean: Float[np.ndarray, " n"]
    sd: Float[np.ndarray, " n"]
    below: Float[np.ndarray, " n"]
    up_to: Float[np.ndarray, " n"]
    k_hat: Float[np.ndarray, " n"]


def leave_out(pieces: Iterable[Given]) -> LeftOut:
    """Moments and distribution function of every row, averaged with its weights."""
    found = []
    for piece in pieces:
        log_weight, k_hat = _smoothed(piece.log_density)
        weight = np.exp(log_weight)
        mean, below, up_to = (
            np.sum(weight * each, axis=0) for each in (piece.mean, piece.below, piece.up_to)
        )
        square = np.sum(weight * (piece.variance + (piece.mean - mean) ** 2), axis=0)
        found.append((mean, np.sqrt(square), below, up_to, k_hat))
    return LeftOut(*(np.concatenate(part) for part in zip(*found, strict=True)))


def _smoothed(
    log_density: Float[np.ndarray, "s c"],
) -> tuple[Float[np.ndarray, "s c"], Float[np.ndarray, " c"]]:
    """Normalised log weights of every row, and their Pareto shape."""
    log_weight = -log_density - logsumexp(-log_density, axis=0)
    k_hat = np.zeros(log_density.shape[1])
    # A row that says the same of all draws has no tail to smooth.
    varies = np.flatnonzero(np.ptp(log_density, axis=0) > 1e-8)
    if len(varies):
        with np.errstate(all="ignore"):
            # It takes the negative of the log weights.
            smoothed, k_hat[varies] = array_stats.psislw(log_density.T[varies])
        # Weights beyond smoothing, of a fit that went astray: they stay as they are.
        lost = np.isnan(smoothed).any(axis=1)
        k_hat[varies[lost]] = np.inf
        log_weight[:, varies[~lost]] = smoothed[~lost].T
    return log_weight, k_hat


def psis_loo(pieces: Iterable[Float[np.ndarray, "s c"]]) -> Loo:
    """From log likelihoods of all draws, some rows at a time."""
    found = []
    for piece in pieces:
        draws = len(piece)
        log_weight, shape = _smoothed(piece)
        expected = logsumexp(log_weight + piece, axis=0)
        found.append((expected, shape, logsumexp(piece, axis=0) - np.log(draws) - expected))
    elpd, k_hat, complexity = (np.concatenate(part) for part in zip(*found, strict=True))
    total, error, p_loo, _ = array_stats.loo_summary(elpd, complexity)
    good_k = min(1 - 1 / np.log10(draws), RELIABLE)
    return Loo(
        kind="loo",
        elpd=float(total),
        se=float(error),
        p=float(p_loo),
        n_samples=draws,
        n_data_points=len(elpd),
        scale="log",
        warning=bool((k_hat > good_k).any()),
        good_k=float(good_k),
        elpd_i=DataArray(elpd, dims=["row"]),
        pareto_k=DataArray(k_hat, dims=["row"]),
    )
