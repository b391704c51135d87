"""Recipe for smooth, low dimensional posteriors: mode, curvature, natural gradient.

From a Gaussian at the mode, natural gradient steps of the full covariance Gaussian with
orthogonal draws; step length 1 three times, then 2/3, 2/4, ... (which averages Newton steps).
The result is exact for a Gaussian posterior and the ELBO optimum otherwise.
"""

from typing import cast

import jax.numpy as jnp
import numpy as np
import optax

from nghvi._core.direction import NaturalGradient
from nghvi._core.draws import OrthogonalDraws
from nghvi._core.hybrid import HybridVI, Info
from nghvi._core.model import LatentModel, MarginalModel
from nghvi._core.score import Integrated, Sampled, Score
from nghvi._core.step_rules import robbins_monro, robbins_monro_length
from nghvi._core.variational import Start, Variational
from nghvi._typing import Data, Key
from nghvi.families.cholesky import CholeskyGaussian
from nghvi.recipes.fresh import judge_by_fresh_draws
from nghvi.recipes.run import Begin, Ended, Recipe, Stage, Stop, carry_on
from nghvi.recipes.settings import Settings
from nghvi.recipes.start import first_theta, laplace_start
from nghvi.recipes.verdict import TOLERANCE, Cause

CHUNK = 5
HOLD = 3
APPROACH = 200
MOST_ESTIMATES, MOST_NOISY_ESTIMATES = 243, 2187
"""To judge by; drawn latents are far noisier than integrals."""


def smooth_recipe(
    model: LatentModel,
    score: Score,
    settings: Settings,
    *,
    batch: int | None = None,
    costly: bool = False,
    begin_at: Variational | None = None,
) -> Recipe:
    """The recipe for this model.

    It begins at the mode, or ``begin_at`` the result of a fit to nearly the same density.
    Where the latents are drawn, an approximate marginal still finds the start; without one, a
    stage of full steps approaches from the model's own starting point. Where integrals are
    ``costly``, an approximation does all but the last steps.
    """
    stages: list[Stage] = []
    chunk = CHUNK
    if isinstance(model, MarginalModel):
        algorithm = natural_gradient(Integrated(roughly=costly), robbins_monro(HOLD), batch)
        # Near the result already, and each step is expensive: further averaging gains little.
        stop = stop_rule(HOLD, CHUNK, 0.01 if begin_at is None else 0.02)
        begin = _from_mode(settings.begin, costly) if begin_at is None else _from(begin_at)
        stages.append(Stage("natural gradient", begin, algorithm, 200, CHUNK, 0, stop))
        if costly and isinstance(score, Integrated):
            algorithm, chunk = natural_gradient(score, robbins_monro(HOLD), batch), 1
            stages.append(Stage("exact integrals", carry_on, algorithm, 20, chunk, 0, _reached))
    else:
        algorithm = natural_gradient(score, robbins_monro(APPROACH), batch)
        stages.append(
            Stage("approach", _from_scratch(settings.begin), algorithm, APPROACH, CHUNK, 0, _near)
        )
    most = MOST_ESTIMATES
    if isinstance(score, Sampled):
        sampling = natural_gradient(score, robbins_monro(0), batch)
        stop = stop_rule(0, 2 * CHUNK, 0.015)
        stages.append(Stage("sampled latents", carry_on, sampling, 3000, CHUNK, 0, stop))
        # The gradient is the same without the noise of drawn latents, where it can be had.
        integrable = isinstance(model, MarginalModel) and model.marginal_is_exact
        if not integrable or costly:
            algorithm, most = sampling, MOST_NOISY_ESTIMATES
    if not costly:
        stages.append(_further(stages[-1], sampled=isinstance(score, Sampled)))
    recipe = Recipe(
        "smooth", tuple(stages), judge_by_fresh_draws(algorithm, Cause.SHAPE, chunk, most)
    )
    family = settings.of_family
    if family is None or not family.gaussian:
        return recipe
    return recipe._replace(finish=lambda q: family.near(cast(CholeskyGaussian, q)))


def _further(stage: Stage, sampled: bool) -> Stage:
    """More of the last steps where those were not enough: averages of few steps are noisy."""
    stop = stop_rule(0, 0, 0.0075) if sampled else stop_rule(HOLD, 0, 0.005)
    return stage._replace(num_steps=3 * stage.num_steps, stop=stop, encore=True, continues=True)


def _near(step: int, trace: Info) -> bool:
    """Within half a posterior sd, as far as the last steps can tell."""
    return bool(np.abs(trace.remaining.mean[-CHUNK:]).max(axis=1).mean() < 0.5)


def _reached(step: int, trace: Info) -> bool:
    """Whether even the last step began within the tolerance."""
    error = trace.remaining
    return bool(max(np.abs(error.mean[-1]).max(), np.abs(error.scale[-1]).max()) < TOLERANCE / 2)


def natural_gradient(
    score: Score, rule: optax.GradientTransformation, batch: int | None
) -> HybridVI:
    """Natural gradient steps of the full covariance Gaussian."""
    return HybridVI(OrthogonalDraws(), score, NaturalGradient(0.0), rule, batch, every_error=True)


def stop_rule(hold: int, at_least: int, tolerance: float) -> Stop:
    """Stop when the error left in the average of the steps is below the tolerance.

    Its noise falls with the root of the number of steps averaged, hence the square root.
    """

    def stop(step: int, trace: Info) -> bool:
        length = float(robbins_monro_length(step - 1, hold))
        recent = np.concatenate([trace.remaining.mean[-CHUNK:], trace.remaining.scale[-CHUNK:]], 1)
        left = np.abs(recent[1:]).max(axis=1).mean()
        return step >= at_least and bool(np.sqrt(length) * left < tolerance)

    return stop


def _from(q: Variational) -> Begin:
    return lambda key, model, data, done: q


def _from_mode(start: Start | None, roughly: bool) -> Begin:
    """A Gaussian at the mode, ``roughly`` by an approximate marginal."""

    def begin(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
        marginal = cast(MarginalModel, model)
        marginal = marginal.approximate() if roughly else marginal
        return laplace_start(marginal, data, first_theta(key, marginal, data, start))

    return begin


def _from_scratch(start: Start | None) -> Begin:
    def begin(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
        theta = first_theta(key, model, data, start)
        return CholeskyGaussian.from_covariance_factor(theta, 0.1 * jnp.eye(theta.size))

    return begin
