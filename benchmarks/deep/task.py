"""The simulated task, as in Example 2(a) of the paper, and how predictions are scored.

y = h(x)' (beta + alpha_group) + noise, where h is a ReLU network [5, 5] with a leading 1 and
alpha ~ N(0, Omega): all 6 coefficients of the output layer vary between groups.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from benchmarks.problems import CORRELATION, Problem

SIZES = {"full": 1000, "small": 100}
"""Number of groups by size; "small" is for smoke tests."""

TRAIN_ROWS, TEST_ROWS = 6, 2
"""Rows per group."""

HIDDEN = (5, 5)
COEF_SD = 2.0
EFFECT_VARIANCES = np.array([0.96, 0.11, 2.19, 1.93, 3.5, 0.36])
NOISE_VARIANCE = 20.0

LEVEL = 0.9
NORMAL_QUANTILE = 1.6448536269514722
"""Half the width of an interval of that level, in sds."""


class Truth(NamedTuple):
    """The parameters from which a task is simulated."""

    weights: list[np.ndarray]
    """A layer each, bias in the first column."""
    coef: np.ndarray
    effects_cov: np.ndarray
    noise_variance: float

    def features(self, x: np.ndarray) -> np.ndarray:
        """Output-layer features, the leading 1 included."""
        for w in self.weights:
            x = np.maximum(x @ w[:, 1:].T + w[:, 0], 0.0)
        return np.column_stack([np.ones(len(x)), x])


class Task(NamedTuple):
    """Rows to fit, other rows of the same groups to predict, and what is true of both."""

    train: Problem
    test: Problem
    truth: Truth


class Prediction(NamedTuple):
    """The test rows as a method sees them."""

    mean: np.ndarray
    log_score: float
    """Mean log predictive density."""
    lower: np.ndarray
    upper: np.ndarray
    """Ends of the 90 % intervals."""
    remark: str = ""
    facts: dict[str, object] = {}


def simulate(size: str, seed: int) -> Task:
    """The task of this seed; another seed has another network."""
    rng = np.random.default_rng([seed, 2])
    groups, covariates = SIZES[size], len(CORRELATION)
    inputs = (covariates, *HIDDEN[:-1])
    truth = Truth(
        [rng.standard_normal((width, n + 1)) for n, width in zip(inputs, HIDDEN, strict=True)],
        COEF_SD * rng.standard_normal(HIDDEN[-1] + 1),
        np.diag(EFFECT_VARIANCES),
        NOISE_VARIANCE,
    )
    effects = np.sqrt(EFFECT_VARIANCES) * rng.standard_normal((groups, len(EFFECT_VARIANCES)))

    def rows(size_of_group: int) -> Problem:
        group = np.repeat(np.arange(groups), size_of_group)
        x = rng.standard_normal((len(group), covariates)) @ np.linalg.cholesky(CORRELATION).T
        mean = np.sum(truth.features(x) * (truth.coef + effects[group]), axis=1)
        y = mean + math.sqrt(NOISE_VARIANCE) * rng.standard_normal(len(group))
        return Problem("deep", "gaussian", x, y, group, ())

    return Task(rows(TRAIN_ROWS), rows(TEST_ROWS), truth)


def effects_given(
    z: np.ndarray, residual: np.ndarray, cov: np.ndarray, noise_variance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Means (K, r) and covariances (K, r, r) of the effects given the training rows.

    ``z``: columns with random coefficients; ``residual``: y without the fixed part.
    """
    z = z.reshape(-1, TRAIN_ROWS, z.shape[1])
    marginal = z @ cov @ z.transpose(0, 2, 1) + noise_variance * np.eye(TRAIN_ROWS)
    gain = np.linalg.solve(marginal, z @ cov).transpose(0, 2, 1)
    mean = gain @ residual.reshape(-1, TRAIN_ROWS, 1)
    return mean[:, :, 0], cov - gain @ z @ cov


def effect_variance(z: np.ndarray, group: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """Variance of z' alpha of each row, given the covariances of the groups' effects."""
    return np.einsum("ni,nij,nj->n", z, covariances[group], z)


def gaussian_prediction(
    test: Problem, mean: np.ndarray, variance: np.ndarray, **more: Any
) -> Prediction:
    """The prediction of a method that has a mean and a variance per row."""
    sd = np.sqrt(variance)
    density = -0.5 * np.log(2 * math.pi * variance) - 0.5 * ((test.y - mean) / sd) ** 2
    half = NORMAL_QUANTILE * sd
    return Prediction(mean, float(density.mean()), mean - half, mean + half, **more)


def scores(test: Problem, prediction: Prediction) -> dict[str, float]:
    """What is compared."""
    inside = (prediction.lower <= test.y) & (test.y <= prediction.upper)
    residual = test.y - prediction.mean
    return {
        "r2": float(1 - np.mean(residual**2) / test.y.var()),
        "log_score": float(prediction.log_score),
        "coverage": float(inside.mean()),
        "width": float(np.mean(np.asarray(prediction.upper) - prediction.lower)),
    }
