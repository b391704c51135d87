"""Recipe of the paper's algorithms (:mod:`nghvi.methods`): one stage of their steps."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._core.direction import OrdinaryGradient
from nghvi._core.draws import AntitheticDraws, IndependentDraws
from nghvi._core.hybrid import HybridVI
from nghvi._core.model import LatentModel
from nghvi._core.score import Integrated, Sampled, Score
from nghvi._core.step_rules import robbins_monro
from nghvi._core.variational import Start, Variational
from nghvi._typing import Data, Key
from nghvi.families import Factor, FactorGaussian
from nghvi.methods import GradientMethod
from nghvi.recipes.fresh import judge_by_fresh_draws
from nghvi.recipes.run import Ended, Recipe, Stage
from nghvi.recipes.settings import Settings
from nghvi.recipes.verdict import Cause

MOST_ESTIMATES = 81
"""Of 64 draws each, to judge the result by."""


def published_recipe(
    method: GradientMethod, settings: Settings, theta: Float[Array, " m"], *, integrable: bool
) -> Recipe:
    """A published algorithm from ``theta``, for its own number of steps or the settings'.

    ``integrable``: whether its result can be judged without the noise of drawn latents.
    """
    score: Score = Integrated() if settings.latents == "integrate" else Sampled(moving=False)
    family = settings.of_family or Factor()
    num_steps = settings.steps or method.steps
    start = settings.begin or Start(theta)
    scale = jnp.broadcast_to(jnp.asarray(start.scale, theta.dtype), theta.shape)
    draws = IndependentDraws(method.draws)
    algorithm = HybridVI(draws, score, method.direction, method.step_rule)

    def begin(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
        if isinstance(family, Factor):
            return FactorGaussian.start(theta, scale, family.rank, signed_scale=True)
        return family.at(theta, scale)

    stage = Stage(method.name, begin, algorithm, num_steps, 100, min(100, num_steps))
    fresh = HybridVI(
        AntitheticDraws(32),
        Integrated() if integrable else score,
        OrdinaryGradient(),
        robbins_monro(0),
        every_error=True,
    )
    return Recipe(
        "published", (stage,), judge_by_fresh_draws(fresh, Cause.STEPS, 10, MOST_ESTIMATES)
    )
