"""The published algorithms with their published constants, for replication.

Factor Gaussian started at scale 1 with loadings 0.01, one draw of theta and of z a step,
damping 10, the average of the last 100 iterates returned after a fixed number of steps.

    printed   Algorithm 1 of the paper: natural gradient normalised to length 1
    coded     the authors' program: norm clipped at 50, twenty plain conjugate gradient steps
    ordinary  SG-HVI: ADADELTA on the ordinary gradient
"""

from typing import NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from nghvi._core.direction import Direction, NaturalGradient, OrdinaryGradient
from nghvi._core.draws import AntitheticDraws, IndependentDraws
from nghvi._core.hybrid import HybridVI
from nghvi._core.model import LatentModel
from nghvi._core.score import Integrated, Sampled, Score
from nghvi._core.step_rules import (
    adadelta_rule,
    coded_rule,
    printed_rule,
    robbins_monro,
)
from nghvi._core.variational import Variational
from nghvi._linalg.damped_cg import SolveOptions
from nghvi._typing import Data, Key
from nghvi.recipes.fresh import judge_by_fresh_draws
from nghvi.recipes.run import Ended, Recipe, Stage
from nghvi.recipes.verdict import Cause
from nghvi.variational.factor import FactorGaussian

MOST_ESTIMATES = 81
"""Of 64 draws each, to judge the result by."""


class Rule(NamedTuple):
    """Direction and step rule of a published algorithm."""

    direction: Direction
    step_rule: optax.GradientTransformation


def published_rule(name: str, fisher: str = "paper") -> Rule:
    """``"ng-hvi-printed"``, ``"ng-hvi"`` (as coded) or ``"sg-hvi"``."""
    if name == "ng-hvi":
        return Rule(NaturalGradient(10.0, fisher, SolveOptions.published()), coded_rule())
    if name == "ng-hvi-printed":
        return Rule(NaturalGradient(10.0, fisher), printed_rule())
    return Rule(OrdinaryGradient(), adadelta_rule())


def published_recipe(
    name: str,
    start: Float[Array, " m"],
    rank: int,
    num_steps: int,
    *,
    fisher: str = "paper",
    scale: float = 1.0,
    score: Score | None = None,
    integrable: bool = False,
) -> Recipe:
    """A published algorithm from ``start`` for ``num_steps`` steps.

    ``integrable``: whether its result can be judged without the noise of drawn latents.
    """
    score = Sampled(moving=False) if score is None else score
    rule = published_rule(name, fisher)
    algorithm = HybridVI(IndependentDraws(1), score, rule.direction, rule.step_rule)

    def begin(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
        spread = jnp.full_like(start, scale)
        return FactorGaussian.start(start, spread, rank, signed_scale=True)

    stage = Stage(name, begin, algorithm, num_steps, 100, min(100, num_steps))
    fresh = HybridVI(
        AntitheticDraws(32),
        Integrated() if integrable else score,
        OrdinaryGradient(),
        robbins_monro(0),
        every_error=True,
    )
    return Recipe(name, (stage,), judge_by_fresh_draws(fresh, Cause.STEPS, 10, MOST_ESTIMATES))
