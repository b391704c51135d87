"""The published algorithms with their published constants, for replication.

Factor Gaussian started at scale 1 with loadings 0.01, one draw of theta and of z a step,
damping 10, the average of the last 100 iterates returned after a fixed number of steps.

    printed   Algorithm 1 of the paper: natural gradient normalised to length 1
    coded     the authors' program: norm clipped at 50, twenty plain conjugate gradient steps
    ordinary  SG-HVI: ADADELTA on the ordinary gradient
"""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from nghvi._core.direction import Direction, NaturalGradient, OrdinaryGradient
from nghvi._core.draws import AntitheticDraws, IndependentDraws
from nghvi._core.fit import fit
from nghvi._core.hybrid import HybridVI, Info
from nghvi._core.model import LatentModel
from nghvi._core.score import Sampled, Score
from nghvi._core.step_rules import (
    ScaleState,
    adadelta_rule,
    coded_rule,
    printed_rule,
    robbins_monro,
)
from nghvi._core.variational import Variational
from nghvi._linalg.damped_cg import SolveOptions
from nghvi._typing import Data, Key
from nghvi.recipes.run import Judge, Recipe, Stage, Traces
from nghvi.recipes.verdict import Verdict, judge
from nghvi.variational.factor import FactorGaussian


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
) -> Recipe:
    """A published algorithm from ``start`` for ``num_steps`` steps."""
    score = Sampled() if score is None else score
    rule = published_rule(name, fisher)
    algorithm = HybridVI(IndependentDraws(1), score, rule.direction, rule.step_rule)

    def begin(key: Key, model: LatentModel, data: Data, q: Variational | None) -> Variational:
        spread = jnp.full_like(start, scale)
        return FactorGaussian.start(start, spread, rank, signed_scale=True)

    stage = Stage(name, begin, algorithm, num_steps, 100, min(100, num_steps))
    return Recipe(
        name, (stage,), judge_by_fresh_draws(score, "take more steps or use method='auto'")
    )


def judge_by_fresh_draws(score: Score, remedy: str, estimates: int = 10, pairs: int = 32) -> Judge:
    """Judge any family by the gradient at the result, from fresh antithetic draws."""

    def decide(key: Key, model: LatentModel, data: Data, q: Variational, traces: Traces) -> Verdict:
        algorithm = HybridVI(
            AntitheticDraws(pairs), score, OrdinaryGradient(), robbins_monro(0), every_error=True
        )
        first = fit(key, algorithm, model, data, q, num_steps=0, chunk=estimates)
        silent = ScaleState(jnp.zeros((), jnp.int32), jnp.zeros(()))
        first = first._replace(state=first.state._replace(rule=silent))
        done = fit(
            key, algorithm, model, data, q, num_steps=estimates, chunk=estimates, resume=first
        )
        trace = cast(Info, done.trace)
        left = jax.tree.map(np.asarray, trace.remaining)
        return judge(left.mean, left.scale, remedy=remedy, bad_draws=int(trace.bad_draws.sum()))

    return decide
