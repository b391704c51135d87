"""Leave-one-out cross-validation: the expected log predictive density of every row without itself,
with the weights of :mod:`nghvi.posterior.pointwise`."""

import dataclasses
from collections.abc import Iterable

import numpy as np
from arviz_stats import ELPDData
from arviz_stats.base import array_stats
from jaxtyping import Float
from scipy.special import logsumexp
from xarray import DataArray

from nghvi.recipes.importance import RELIABLE
from nghvi.recipes.pareto import pareto_smoothed


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


def psis_loo(pieces: Iterable[Float[np.ndarray, "s c"]]) -> Loo:
    """From log likelihoods of all draws, some rows at a time."""
    found = []
    for piece in pieces:
        draws = len(piece)
        log_weight, shape = pareto_smoothed(-piece.T)
        expected = logsumexp(log_weight.T + piece, axis=0)
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
