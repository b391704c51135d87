"""How simulation-based calibration draws counts, shares, classes and other numbers, by scipy.

Every response has parameters of its own with their prior, a draw of y given its linear predictor
and those, and a log density. Nothing of it is the library's.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.stats as stats
from scipy.special import expit

CUTS = ("cut[0|1]", "cut[1|2]", "cut[2|3]")
"""Of four ordered classes; the intercept is minus the first."""
NOISE = 0.7, 3.0
"""Scale and degrees of freedom of the half-t prior of a noise sd."""
TRIALS = 8
"""Of every row of a binomial response."""
LARGEST = 1e6
"""Data with larger numbers are drawn again: a count of ten digits is refused."""

Own = dict[str, Any]
"""Parameters of a response by the names of ``posterior_draws``; at many draws with a last axis."""


class Simulated(NamedTuple):
    """One response."""

    own: Callable[[np.random.Generator], Own]
    draw: Callable[[np.random.Generator, np.ndarray, Own], np.ndarray]
    log_density: Callable[[np.ndarray, np.ndarray, Own], np.ndarray]
    settings: dict[str, Any] = {}
    """Of the estimator."""


def _spread(name: str) -> Callable[[np.random.Generator], Own]:
    """A half-normal(1) number."""
    return lambda rng: {name: np.asarray(abs(rng.standard_normal()))}


def _negative_binomial(y: np.ndarray, eta: np.ndarray, own: Own) -> np.ndarray:
    size = own["1/sqrt(size)"] ** -2.0
    return stats.nbinom.logpmf(y, size, size / (size + np.exp(eta)))


def _shapes(eta: np.ndarray, own: Own) -> tuple[np.ndarray, np.ndarray]:
    phi = own["1/sqrt(phi)"] ** -2.0
    return np.maximum(phi * expit(eta), 1e-300), np.maximum(phi * expit(-eta), 1e-300)


def _poisson(y: np.ndarray, eta: np.ndarray, own: Own) -> np.ndarray:
    return stats.poisson.logpmf(y, np.exp(eta))


def _draw_poisson(rng: np.random.Generator, eta: np.ndarray, own: Own) -> np.ndarray:
    return rng.poisson(np.minimum(np.exp(eta), 1e15))


def _noise(rng: np.random.Generator) -> Own:
    scale, degrees = NOISE
    return {"noise_sd": np.asarray(scale * abs(rng.standard_t(degrees)))}


def _cuts(rng: np.random.Generator) -> Own:
    """Independent normal numbers in order."""
    return dict(zip(CUTS, map(np.asarray, np.sort(rng.standard_normal(3))), strict=True))


def _thresholds(own: Own) -> list[Any]:
    """What the latent variable passes from class to class, the intercept in eta."""
    return [own[name] - own[CUTS[0]] for name in CUTS]


def _ordered(
    noise: Callable[[np.random.Generator, Any], np.ndarray], cumulative: Callable[[Any], Any]
) -> "Simulated":
    """Classes by the distribution of their latent noise."""

    def draw(rng: np.random.Generator, eta: np.ndarray, own: Own) -> np.ndarray:
        latent = eta + noise(rng, eta.shape)
        return np.sum([latent > cut for cut in _thresholds(own)], axis=0)

    def log_density(y: np.ndarray, eta: np.ndarray, own: Own) -> np.ndarray:
        below = [np.zeros_like(eta), *(cumulative(cut - eta) for cut in _thresholds(own))]
        mass = np.diff([*below, np.ones_like(eta)], axis=0)
        return np.log(np.choose(y.astype(int), np.maximum(mass, 1e-300)))

    return Simulated(_cuts, draw, log_density)


def _censored(y: np.ndarray, eta: np.ndarray, own: Own) -> np.ndarray:
    seen = stats.norm.logpdf(y, eta, own["noise_sd"])
    return np.where(y > 0, seen, stats.norm.logcdf(0.0, eta, own["noise_sd"]))


def _draw_negative_binomial(rng: np.random.Generator, eta: np.ndarray, own: Own) -> np.ndarray:
    size = own["1/sqrt(size)"] ** -2.0
    return rng.poisson(np.minimum(np.exp(eta) * rng.gamma(size, 1 / size, eta.shape), 1e15))


def _inflated(plain: "Simulated") -> "Simulated":
    """Counts with extra zeros."""

    def own(rng: np.random.Generator) -> Own:
        return {**plain.own(rng), "zi_prob": np.asarray(rng.random())}

    def draw(rng: np.random.Generator, eta: np.ndarray, own: Own) -> np.ndarray:
        counts = plain.draw(rng, eta, own)
        return np.where(rng.random(eta.shape) < own["zi_prob"], 0, counts)

    def log_density(y: np.ndarray, eta: np.ndarray, own: Own) -> np.ndarray:
        with np.errstate(divide="ignore"):
            counted = np.log1p(-own["zi_prob"]) + plain.log_density(y, eta, own)
            return np.where(y == 0, np.logaddexp(np.log(own["zi_prob"]), counted), counted)

    return Simulated(own, draw, log_density)


_POISSON = Simulated(lambda rng: {}, _draw_poisson, _poisson)
_NEGATIVE_BINOMIAL = Simulated(_spread("1/sqrt(size)"), _draw_negative_binomial, _negative_binomial)

SIMULATED = {
    "poisson": _POISSON,
    "negative-binomial": _NEGATIVE_BINOMIAL,
    "zero-inflated-poisson": _inflated(_POISSON),
    "zero-inflated-negative-binomial": _inflated(_NEGATIVE_BINOMIAL),
    "binomial": Simulated(
        lambda rng: {},
        lambda rng, eta, own: rng.binomial(TRIALS, expit(eta)),
        lambda y, eta, own: stats.binom.logpmf(y, TRIALS, expit(eta)),
        {"trials": TRIALS},
    ),
    "ordered-logit": _ordered(lambda rng, shape: rng.logistic(size=shape), expit),
    "tobit": Simulated(
        _noise,
        lambda rng, eta, own: np.maximum(eta + own["noise_sd"] * rng.standard_normal(eta.shape), 0),
        _censored,
        {"censored": (0.0, None)},
    ),
    "ordered-probit": _ordered(lambda rng, shape: rng.standard_normal(shape), stats.norm.cdf),
    "beta-binomial": Simulated(
        _spread("1/sqrt(phi)"),
        lambda rng, eta, own: rng.binomial(TRIALS, rng.beta(*_shapes(eta, own))),
        lambda y, eta, own: stats.betabinom.logpmf(y, TRIALS, *_shapes(eta, own)),
        {"trials": TRIALS},
    ),
    "lognormal": Simulated(
        _noise,
        lambda rng, eta, own: np.exp(eta + own["noise_sd"] * rng.standard_normal(eta.shape)),
        lambda y, eta, own: stats.norm.logpdf(np.log(y), eta, own["noise_sd"]) - np.log(y),
    ),
    "gamma": Simulated(
        _spread("cv"),
        lambda rng, eta, own: np.exp(eta) * rng.gamma(own["cv"] ** -2.0, own["cv"] ** 2, eta.shape),
        lambda y, eta, own: stats.gamma.logpdf(
            y, own["cv"] ** -2.0, scale=np.exp(eta) * own["cv"] ** 2
        ),
    ),
    "beta": Simulated(
        _spread("1/sqrt(phi)"),
        lambda rng, eta, own: rng.beta(*_shapes(eta, own)),
        lambda y, eta, own: stats.beta.logpdf(y, *_shapes(eta, own)),
    ),
}


def can_be_fitted(response: str, y: np.ndarray) -> bool:
    """Whether these data are in the support of the response, and not all the same."""
    if response == "beta":
        return bool(y.min() > 0 and y.max() < 1)
    if response.startswith("ordered"):
        return len(np.unique(y)) == 1 + len(CUTS)
    if response in ("gamma", "lognormal"):
        return bool(y.min() > 1e-200 and y.max() < LARGEST)
    if response in ("binomial", "beta-binomial"):
        return bool(y.any() and (y < TRIALS).any())
    return bool(y.any() and y.max() < LARGEST)
