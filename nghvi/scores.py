"""Scores of predictions, as pure functions of arrays.

``y`` are the observed responses, ``predicted`` their predicted means, and ``probability`` the
predicted probabilities that y is 1. Predictive draws have shape (draws, n), as
``sample_predictive`` returns them. Every score says whether larger or smaller is better.
"""

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

CLIP = 1e-9
"""Probabilities are kept this far from 0 and 1, as in the paper."""


def r2(y: np.ndarray, predicted: np.ndarray) -> float:
    """Return the coefficient of determination, 1 - SSE / SST; larger is better."""
    return float(1 - np.sum((y - predicted) ** 2) / np.sum((y - np.mean(y)) ** 2))


def rmse(y: np.ndarray, predicted: np.ndarray) -> float:
    """Return the root mean squared error; smaller is better."""
    return float(np.sqrt(np.mean((y - predicted) ** 2)))


def log_score(log_density: Float[np.ndarray, "draws n"]) -> float:
    """Return the mean log predictive density, from log densities given each draw.

    Larger is better.
    """
    return float(np.mean(logsumexp(log_density, axis=0) - np.log(len(log_density))))


def crps(y: np.ndarray, draws: Float[np.ndarray, "draws n"]) -> float:
    """Return the continuous ranked probability score of predictive draws; smaller is better."""
    ordered = np.sort(draws, axis=0)
    number = len(ordered)
    weight = (2 * np.arange(1, number + 1) - number - 1)[:, None] / number**2
    return float(np.mean(np.mean(np.abs(draws - y), axis=0) - np.sum(weight * ordered, axis=0)))


def rps(seen: np.ndarray, probability: np.ndarray) -> float:
    """Return the ranked probability score of ordered classes; smaller is better.

    Both arrays have one column per class, in their order: ``seen`` is 1 in the column of the
    observed class and 0 elsewhere, ``probability`` holds the predicted probabilities.
    """
    away = np.cumsum(np.asarray(probability) - seen, axis=1)
    return float(np.mean(np.sum(away**2, axis=1)))


def coverage(y: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> float:
    """Return the share of observations inside their interval; its level is the target."""
    return float(np.mean((lower <= y) & (y <= upper)))


def pce(y: np.ndarray, probability: np.ndarray) -> float:
    """Return the predictive cross entropy of 0/1 responses; smaller is better."""
    p = np.clip(probability, CLIP, 1 - CLIP)
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)))


def misclassification_rate(y: np.ndarray, probability: np.ndarray) -> float:
    """Return the share of rows classified wrongly at the threshold 0.5; smaller is better."""
    return float(np.mean((probability > 0.5) != (y > 0.5)))


def precision(y: np.ndarray, probability: np.ndarray) -> float:
    """Return the share of true positives among predicted ones, 0 if there are none.

    Larger is better.
    """
    predicted = probability > 0.5
    return float(np.sum(predicted & (y > 0.5)) / max(int(np.sum(predicted)), 1))


def recall(y: np.ndarray, probability: np.ndarray) -> float:
    """Return the share of actual positives that are predicted, 0 if there are none.

    Larger is better.
    """
    actual = y > 0.5
    return float(np.sum((probability > 0.5) & actual) / max(int(np.sum(actual)), 1))


def f1(y: np.ndarray, probability: np.ndarray) -> float:
    """Return the harmonic mean of precision and recall, 0 if undefined; larger is better."""
    p, r = precision(y, probability), recall(y, probability)
    return 2 * p * r / (p + r) if p + r > 0 else 0.0
