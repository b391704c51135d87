"""Rows predicted without themselves, by Pareto smoothed importance sampling (PSIS).

What is expected of row i without row i is a weighted average over the draws, with weights
1 / p(y_i | draw), the largest of them smoothed. k-hat is the Pareto shape of the weights: where it
is large a row is so influential that the draws of the whole fit do not tell what a fit without it
would say.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from nghvi.posterior.pointwise import Given
from nghvi.recipes.pareto import pareto_smoothed


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
        log_weight, k_hat = pareto_smoothed(-piece.log_density.T)
        weight = np.exp(log_weight.T)
        mean, below, up_to = (
            np.sum(weight * each, axis=0) for each in (piece.mean, piece.below, piece.up_to)
        )
        square = np.sum(weight * (piece.variance + (piece.mean - mean) ** 2), axis=0)
        found.append((mean, np.sqrt(square), below, up_to, k_hat))
    return LeftOut(*(np.concatenate(part) for part in zip(*found, strict=True)))
