"""NumPyro NUTS: one chain, 300 steps of adaptation and 300 draws.

Measured at its best. ``MCMC.run`` compiles its loop again at every call, also with
``jit_model_args=True``; here the whole run is one compiled function of the data, so that a warm
fit compiles nothing.
"""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from numpyro.infer import MCMC, NUTS

from benchmarks.methods import numpyro_model
from benchmarks.methods.base import Summary
from benchmarks.problems import Problem

WARMUP = 300
KEPT = 300


class Fitted(NamedTuple):
    draws: dict[str, Array]
    extra: dict[str, Array]


@functools.lru_cache
def _program(response: str, num_groups: int, num_effects: int) -> Any:
    model = numpyro_model.mixed_model(response, num_groups, num_effects)

    @jax.jit
    def run(key: Array, data: tuple[Array, ...]) -> Fitted:
        sampler = MCMC(NUTS(model), num_warmup=WARMUP, num_samples=KEPT, progress_bar=False)
        sampler.run(key, *data, extra_fields=("num_steps", "diverging"))
        return Fitted(sampler.get_samples(), sampler.get_extra_fields())

    return run


def fit(problem: Problem, seed: int) -> Fitted:
    run = _program(problem.response, problem.num_groups, problem.num_effects)
    return jax.block_until_ready(run(jax.random.key(seed), numpyro_model.arguments(problem)))


def summarise(problem: Problem, fitted: Fitted) -> Summary:
    facts = {
        "draws": KEPT,
        "leapfrog steps a draw": float(np.mean(fitted.extra["num_steps"])),
        "divergent draws": int(np.sum(fitted.extra["diverging"])),
    }
    return numpyro_model.summarise_draws(problem, fitted.draws, facts=facts)
