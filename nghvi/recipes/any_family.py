"""Recipe for a smooth posterior in a family that is not Gaussian: from the best Gaussian, by Adam.

    natural gradient   the best Gaussian, as the recipe for smooth posteriors finds it
    own family         Adam in units of the posterior sd with decaying steps, from the member
                       closest to that Gaussian; ends with the average of its last tenth

It needs nothing of the family but draws, a density and :meth:`Variational.rescale`. The second
stage is repeated until the judge is content: by the errors that remain, where the family can tell
them, and otherwise by what the last quarter of the steps did to the ELBO ("settled").
"""

import equinox as eqx
import jax.numpy as jnp

from nghvi._core.direction import OrdinaryGradient, ScaledGradient
from nghvi._core.draws import IndependentDraws
from nghvi._core.hybrid import HybridVI
from nghvi._core.model import LatentModel
from nghvi._core.score import Score
from nghvi._core.step_rules import Adam, robbins_monro
from nghvi._core.variational import Variational
from nghvi._typing import Data, Key
from nghvi.families import CholeskyGaussian, Family
from nghvi.recipes.deep import in_two, judge_settling
from nghvi.recipes.fresh import judge_by_fresh_draws
from nghvi.recipes.run import Ended, Judge, Recipe, Stage, carry_on
from nghvi.recipes.verdict import Cause

STEPS, DRAWS = 1200, 16
"""Of the family's own stage, and draws per step."""
LENGTH, HOLD = 0.02, 0.2
"""Of Adam's steps, in posterior sds, and the share of the steps in which they stay so long."""
ENCORES = 3
FRESH_DRAWS, MOST_ESTIMATES = 64, 243
"""To judge by."""


def any_family_recipe(
    gaussian: Recipe,
    score: Score,
    family: Family,
    dim: int,
    steps: int | None,
    *,
    batch: int | None = None,
    begin_at: Variational | None = None,
) -> Recipe:
    """The recipe, in which ``gaussian`` is the one that finds the best Gaussian.

    ``begin_at`` the result of a fit to nearly the same density it needs no Gaussian.
    """

    def as_member(q: Variational) -> Variational:
        return family.near(q) if isinstance(q, CholeskyGaussian) else q

    def begin(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
        return as_member(done[-1].fit.q) if begin_at is None else begin_at

    number = steps or STEPS
    in_sds, rule = ScaledGradient(jnp.ones(dim), 1.0), Adam(LENGTH, number, HOLD)
    algorithm = HybridVI(IndependentDraws(DRAWS), score, in_sds, rule, batch)
    own = Stage("own family", begin, algorithm, number, 50, max(1, number // 10))
    stages = [stage for stage in gaussian.stages if not stage.encore and begin_at is None]
    stages += in_two(own)
    for n in range(ENCORES if steps is None else 0):
        again = own._replace(name=f"own family {n + 2}", begin=carry_on, encore=True)
        stages += in_two(again)
    first = family.at(jnp.zeros(dim), jnp.ones(dim))
    judge = _judge(first, score, batch)
    return Recipe("any family", tuple(stages), judge, as_member)


def _judge(q: Variational, score: Score, batch: int | None) -> Judge:
    if eqx.filter_eval_shape(lambda q: q.remaining_error(q), q) is None:
        return judge_settling(batch, Cause.OWN_FAMILY)
    fresh = HybridVI(
        IndependentDraws(FRESH_DRAWS), score, OrdinaryGradient(), robbins_monro(0), batch, True
    )
    return judge_by_fresh_draws(fresh, Cause.STEPS, 9, MOST_ESTIMATES)
