"""What the contract tests run over: one line here puts a new member through the whole suite.

Parameters are generic (random, without symmetry), so that no formula is right by accident.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import nghvi  # noqa: F401  (double precision)
from nghvi._core.response import Response
from nghvi._core.variational import Variational
from nghvi._linalg.lowrank import pack_lower
from nghvi.families import CholeskyGaussian, FactorGaussian
from nghvi.priors import EffectsPrior, HalfT, HuangWand, InverseGamma, WishartPrecision
from nghvi.responses import (
    Beta,
    BetaBinomial,
    Binomial,
    BinomialProbit,
    GammaResponse,
    Gaussian,
    Interval,
    Logit,
    Lognormal,
    NegativeBinomial,
    OrderedLogit,
    OrderedProbit,
    Poisson,
    Probit,
    StudentT,
    TobitResponse,
    WeightedGaussian,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)

DIM = 6


def factor_gaussian(rank: int, dim: int = DIM, *, signed_scale: bool = False) -> FactorGaussian:
    """Loadings and scales of unequal size; with ``signed_scale`` some scales are negative."""
    rng = np.random.default_rng(100 + rank)
    scale = np.exp(rng.normal(0, 0.5, dim))
    if signed_scale:
        scale *= np.where(np.arange(dim) % 2, -1.0, 1.0)
    loadings = rng.normal(size=(dim, rank)) * np.exp(rng.normal(0, 0.5, (dim, 1)))
    mean = jnp.asarray(rng.normal(size=dim))
    packed = pack_lower(jnp.asarray(loadings))
    return FactorGaussian(mean, packed, jnp.asarray(scale), rank, signed_scale)


def cholesky_gaussian(dim: int = DIM) -> CholeskyGaussian:
    rng = np.random.default_rng(99)
    root = rng.normal(size=(dim, dim)) + 2 * np.eye(dim)
    return CholeskyGaussian.from_covariance_factor(
        jnp.asarray(rng.normal(size=dim)), jnp.asarray(root)
    )


FACTOR_FAMILIES: dict[str, Callable[[], FactorGaussian]] = {
    "factor-0": lambda: factor_gaussian(0),
    "factor-1": lambda: factor_gaussian(1),
    "factor-2": lambda: factor_gaussian(2),
    "factor-3": lambda: factor_gaussian(3),
}

FAMILIES: dict[str, Callable[[], Variational]] = {
    **FACTOR_FAMILIES,
    "factor-3-signed": lambda: factor_gaussian(3, signed_scale=True),
    "cholesky": cholesky_gaussian,
}
"""Gaussian families: the contract is stated through their mean and covariance."""


class ResponseCase(NamedTuple):
    """A response, a dispersion to try it at, and columns that it accepts and refuses."""

    response: Response
    dispersion: Sequence[float]
    accepted: Sequence[Sequence[float]]
    rejected: Sequence[Sequence[float]]
    full_steps: bool = False
    """Whether steps by the safe curvature lead uphill without being halved."""


RESPONSES: dict[str, ResponseCase] = {
    "gaussian": ResponseCase(
        Gaussian(), [0.7], [[-3.0, 0.0, 1e6]], [[2.0, 2.0], [1.0, np.nan], [1.0, np.inf]]
    ),
    # Eleven degrees of freedom: tails that the tests' integrals still reach.
    "student-t": ResponseCase(
        StudentT(),
        [-0.3, 2.3],
        [[-3.0, 0.0, 1e6]],
        [[2.0, 2.0], [1.0, np.nan]],
        full_steps=True,
    ),
    **{
        response.name: ResponseCase(
            response, [], [[0, 1, 1]], [[0, 1, 2], [0.0, 0.5], [1, 1], [0, 1, np.nan]]
        )
        for response in (Probit(), Logit())
    },
    **{
        response.name: ResponseCase(
            response,
            [1.2] * response.num_dispersion,
            [[0, 3, 3], [2, 2, 7e8]],
            [[0, 0], [-1, 2], [0.5, 2], [1, np.nan], [1, 1e9]],
        )
        for response in (
            Poisson(),
            NegativeBinomial(),
            ZeroInflatedPoisson(),
            ZeroInflatedNegativeBinomial(),
        )
    },
    **{
        response.name: ResponseCase(
            response,
            [-0.6, -0.3],
            [[0, 3, 1, 2, 2]],
            [[0, 1, 2], [0, 1, 2, 4], [0, 1, 2, 3, -1], [0.5, 0, 1, 2, 3], [0, 1, 2, 3, np.nan]],
        )
        for response in (OrderedLogit(4), OrderedProbit(4))
    },
    "gamma": ResponseCase(
        GammaResponse(), [1.2], [[1e-9, 2.0, 1e6]], [[0.0, 1.0], [-1.0, 1.0], [1, np.inf]]
    ),
    "lognormal": ResponseCase(
        Lognormal(),
        [-1.3],
        [[1e-9, 2.0, 1e6]],
        [[0.0, 1.0], [-1.0, 1.0], [1, np.inf], [2.0, 2.0]],
        full_steps=True,
    ),
    **{
        response.name: ResponseCase(
            response,
            [0.8] * response.num_dispersion,
            [[0, 7, 3]],
            [[0, 8], [-1, 2], [0.5, 2], [1, np.nan], [0, 0], [7, 7]],
        )
        for response in (Binomial(7.0), BinomialProbit(7.0), BetaBinomial(7.0))
    },
    # With weight 1, and without bounds; tests/responses/test_facts.py has the others.
    **{
        response.name: ResponseCase(
            response, [0.7], [[-3.0, 0.0, 1e6]], [[2.0, 2.0], [1.0, np.nan], [1.0, np.inf]]
        )
        for response in (TobitResponse(), Interval(), WeightedGaussian())
    },
    "beta": ResponseCase(
        Beta(), [0.5], [[1e-9, 0.5, 1 - 1e-9]], [[0.0, 0.5], [0.5, 1.0], [0.5, 40], [0.5, np.nan]]
    ),
}

SCALAR_PRIORS: dict[str, InverseGamma | HalfT] = {
    "inverse-gamma": InverseGamma(),
    "inverse-gamma-tight": InverseGamma(7.0, 0.3),
    "half-t": HalfT(),
    "half-cauchy": HalfT(1.0, 0.2),
    "half-t-floor": HalfT(2.0, 2.5, 0.3),
}

EFFECTS_PRIORS: dict[str, EffectsPrior] = {
    "inverse-gamma": InverseGamma(1.7, 0.4),
    "half-t": HalfT(3.0, 1.5),
    "wishart": WishartPrecision(0.6),
    "wishart-df": WishartPrecision(0.01, 5.5),
    "huang-wand": HuangWand(),
    "huang-wand-df": HuangWand(4.5, 0.7),
}
