"""NumPyro NUTS: one chain, 300 steps of adaptation and 300 draws.

The sampler is kept between fits and compiled as a function of the data, so that a warm fit
compiles nothing.
"""

import functools

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS

from benchmarks.methods import numpyro_model
from benchmarks.methods.base import Summary
from benchmarks.problems import Problem

PACKAGES = numpyro_model.PACKAGES

WARMUP = 300
KEPT = 300


@functools.lru_cache
def _sampler(response: str, num_groups: int, num_effects: int) -> MCMC:
    model = numpyro_model.mixed_model(response, num_groups, num_effects)
    return MCMC(
        NUTS(model),
        num_warmup=WARMUP,
        num_samples=KEPT,
        num_chains=1,
        progress_bar=False,
        jit_model_args=True,
    )


def fit(problem: Problem, seed: int) -> MCMC:
    sampler = _sampler(problem.response, problem.num_groups, problem.num_effects)
    data = numpyro_model.arguments(problem)
    sampler.run(jax.random.key(seed), *data, extra_fields=("num_steps", "diverging"))
    jax.block_until_ready(sampler.get_samples())
    return sampler


def summarise(problem: Problem, fitted: MCMC) -> Summary:
    extra = fitted.get_extra_fields()
    facts = {
        "draws": KEPT,
        "leapfrog steps a draw": float(np.mean(extra["num_steps"])),
        "divergent draws": int(np.sum(extra["diverging"])),
    }
    return numpyro_model.summarise_draws(problem, fitted.get_samples(), facts=facts)
