"""Recipe for networks and other posteriors without one clear mode.

Explore from a random start with small variances by Adam in fixed units, then polish in units of
the current posterior sd, both on the factor Gaussian with decaying steps and tail averages; where
m allows, finish with natural gradient steps of the full covariance Gaussian.
"""

from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from nghvi._core.direction import NaturalGradient, ScaledGradient
from nghvi._core.draws import AntitheticDraws, IndependentDraws
from nghvi._core.hybrid import HybridVI
from nghvi._core.model import LatentModel
from nghvi._core.score import Score
from nghvi._core.step_rules import adam_rule, constant_then_linear
from nghvi._core.variational import Variational
from nghvi._typing import Data, Key, Params
from nghvi.recipes.run import Recipe, Stage, Traces
from nghvi.recipes.verdict import Verdict
from nghvi.variational.cholesky import CholeskyGaussian
from nghvi.variational.factor import FactorGaussian

EXPLORE, POLISH, FINISH = 1000, 1000, 48
LARGEST_FULL = 300


def starting_sd(params: Params) -> Float[Array, " m"]:
    """0.25 / sqrt(fan-in) for weight matrices, 0.1 for everything else."""

    def leaf_sd(leaf: Array) -> Array:
        return jnp.full(leaf.shape, 0.25 / np.sqrt(leaf.shape[-1]) if leaf.ndim > 1 else 0.1)

    return ravel_pytree(jax.tree.map(leaf_sd, params))[0]


def deep_recipe(score: Score, dim: int, unit: Float[Array, " m"], rank: int | None) -> Recipe:
    """The recipe for ``dim`` parameters started with standard deviations ``unit``."""
    # Adam moves mean and loadings by 0.5 unit a step at first, log scales by 0.05.
    explore = HybridVI(
        IndependentDraws(1), score, ScaledGradient(10 * unit), adam_rule(0.05, EXPLORE, 0.5)
    )
    polish = HybridVI(IndependentDraws(1), score, ScaledGradient(), adam_rule(0.02, POLISH, 0.3))
    factors = 3 if rank is None else rank

    def begin(key: Key, model: LatentModel, data: Data, q: Variational | None) -> Variational:
        start = ravel_pytree(model.init_params(key, data))[0]
        return FactorGaussian.start(start, unit, factors, 0.01 * unit[:, None])

    def carry_on(key: Key, model: LatentModel, data: Data, q: Variational | None) -> Variational:
        return cast(Variational, q)

    def widen(key: Key, model: LatentModel, data: Data, q: Variational | None) -> Variational:
        factor = cast(FactorGaussian, q)
        root = jnp.concatenate([factor.loadings, jnp.diag(factor.scale)], axis=1)
        return CholeskyGaussian.from_covariance_factor(factor.mean, root)

    stages = [
        Stage("explore", begin, explore, EXPLORE, 100, EXPLORE // 10),
        Stage("polish", carry_on, polish, POLISH, 100, POLISH // 10),
    ]
    if rank is None and dim <= LARGEST_FULL:
        finish = HybridVI(
            AntitheticDraws(max(dim // 4, 1)),
            score,
            NaturalGradient(0.0),
            constant_then_linear(0.15, FINISH),
        )
        stages.append(Stage("full covariance", widen, finish, FINISH, 12))
    return Recipe("deep", tuple(stages), _settled(dim))


def _settled(dim: int):  # type: ignore[no-untyped-def]
    """Settled: the noisy ELBO no longer moves by more than its noise."""

    def decide(key: Key, model: LatentModel, data: Data, q: Variational, traces: Traces) -> Verdict:
        name, last = traces[-1]
        elbo = np.asarray(last.log_target) - np.asarray(last.log_q)
        half, quarter = np.array_split(elbo, 4)[2], np.array_split(elbo, 4)[3]
        change = float(quarter.mean() - half.mean())
        noise = float(np.hypot(_se(half), _se(quarter)))
        if not np.isfinite(elbo[-1]):
            return Verdict(False, "Not converged: the ELBO is not finite; rescale the inputs.")
        if abs(change) > 2 * noise + 0.01 * dim:
            return Verdict(
                False,
                f"Not converged: the ELBO still moved by {change:.1f} nats in the last quarter of "
                f"stage '{name}'; take more steps.",
            )
        return Verdict(True, f"Settled: the ELBO moved by {change:.2f} nats in the last quarter.")

    return decide


def _se(values: np.ndarray) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))
