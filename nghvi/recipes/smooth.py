"""Recipes for smooth, low-dimensional posteriors: mode, curvature, natural gradient.

A Gaussian with full covariance starts at the mode and takes natural gradient steps with orthogonal
draws. The step length is 1 three times, then 2/3, 2/4, ... (which averages Newton steps). The
result is exact for a Gaussian posterior, and the ELBO optimum otherwise.

A family that is not Gaussian starts from the best Gaussian (:func:`any_family_recipe`)::

    natural gradient   the best Gaussian, found as above
    own family         Adam in units of the posterior sd with decaying steps, from the member
                       closest to that Gaussian; ends with the average of its last tenth

This needs nothing from the family but draws, a density and :meth:`Variational.rescale`. The second
stage is repeated until the judge is content. It looks at the remaining errors if the family can
tell them, and otherwise at what the last quarter of the steps did to the ELBO ("settled").

Results are judged by the gradient that fresh draws give. The algorithm's own steps are taken with
the step rule silenced, so nothing moves and, if the algorithm is the one that ran, no second
program is compiled.
"""

from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from scipy.optimize import minimize

from nghvi._core.direction import NaturalGradient, OrdinaryGradient, ScaledGradient
from nghvi._core.draws import IndependentDraws, OrthogonalDraws
from nghvi._core.evaluate import values_and_scores
from nghvi._core.hybrid import HybridVI, Info
from nghvi._core.loop import fit
from nghvi._core.model import LatentModel, MarginalModel
from nghvi._core.score import Integrated, Sampled, Score
from nghvi._core.step_rules import Adam, ScaleState, robbins_monro, robbins_monro_length
from nghvi._core.variational import Start, Variational
from nghvi._typing import Data, Key
from nghvi.families import CholeskyGaussian, Family, Full
from nghvi.recipes.deep import in_two
from nghvi.recipes.run import Begin, Ended, Judge, Recipe, Stage, Stop, carry_on, first_theta
from nghvi.recipes.settings import Settings
from nghvi.recipes.settling import judge_settling
from nghvi.recipes.verdict import LOOKS, TOLERANCE, Cause, Verdict, judge

CHUNK = 5
"""Number of steps per compiled call."""
HOLD = 3
"""Number of full steps before the step length falls."""
APPROACH = 200
"""Most full steps towards the mode of a model that has no marginal to climb."""
MOST_ESTIMATES, MOST_NOISY_ESTIMATES = 243, 2187
"""Most estimates by which a result is judged. Drawn latents, which are far noisier than integrals,
get the larger number."""
OWN_STEPS, OWN_DRAWS = 1200, 16
"""Number of steps in a family that is not Gaussian, and of draws per step."""
ADAM_LENGTH, ADAM_HOLD = 0.02, 0.2
"""Length of Adam's steps, in posterior sds, and the share of the steps for which it is held."""
ENCORES = 3
"""How often the stage in such a family may be repeated."""
FRESH_DRAWS = 64
"""Number of draws per estimate by which a result in such a family is judged."""
SMALLEST_CURVATURE = 1e-2
"""Lower bound on curvatures, which limits starting sds to 10 units; the natural gradient widens
them if need be."""
LOOKS_AT = tuple(3**power for power in range(1, LOOKS + 1))
"""Numbers of estimates after which the judge looks whether they suffice."""
INDEPENDENT = 81
"""Number of batches of estimates that are treated as independent. Estimates beyond it are averaged
within batches, since those from drawn latents remember the ones before."""


def smooth_recipe(
    model: LatentModel,
    score: Score,
    settings: Settings,
    *,
    batch: int | None = None,
    costly: bool = False,
    begin_at: Variational | None = None,
) -> Recipe:
    """Return the recipe for a smooth model.

    It starts at the mode, or at ``begin_at``, the result of a fit to nearly the same density. If
    the latents are drawn, an approximate marginal still finds the start; without one, a stage of
    full steps approaches from the model's own starting point. If integrals are ``costly``, an
    approximation does all but the last steps. ``batch``: draws evaluated side by side.
    """
    stages: list[Stage] = []
    chunk = CHUNK
    if isinstance(model, MarginalModel):
        algorithm = natural_gradient(Integrated(roughly=costly), robbins_monro(HOLD), batch)
        # Steps from ``begin_at`` are near the result and expensive, so averaging gains little.
        stop = stop_rule(HOLD, CHUNK, 0.01 if begin_at is None else 0.02)
        begin = _from_mode(settings.begin, costly) if begin_at is None else _from(begin_at)
        first = Stage("natural gradient", begin, algorithm, 200, CHUNK, 0, stop, family=Full())
        stages.append(first)
        if costly and isinstance(score, Integrated):
            algorithm, chunk = natural_gradient(score, robbins_monro(HOLD), batch), 1
            exact = Stage("exact integrals", carry_on, algorithm, 20, chunk, 0, _reached)
            stages.append(exact._replace(family=Full()))
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
        # An exact marginal gives the same gradient without the noise of drawn latents.
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

    def near(model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
        return family.near(cast(CholeskyGaussian, done[-1].fit.q))

    return recipe._replace(finish=near)


def _further(stage: Stage, sampled: bool) -> Stage:
    """Return a stage with more of the last steps, since averages of few steps are noisy."""
    stop = stop_rule(0, 0, 0.0075) if sampled else stop_rule(HOLD, 0, 0.005)
    return stage._replace(num_steps=3 * stage.num_steps, stop=stop, encore=True, continues=True)


def _near(step: int, trace: Info) -> bool:
    """Return whether the last steps seem to be within half a posterior sd of the optimum."""
    return bool(np.abs(trace.remaining.mean[-CHUNK:]).max(axis=1).mean() < 0.5)


def _reached(step: int, trace: Info) -> bool:
    """Return whether the last step started well within the tolerance."""
    error = trace.remaining
    return bool(max(np.abs(error.mean[-1]).max(), np.abs(error.scale[-1]).max()) < TOLERANCE / 2)


def natural_gradient(
    score: Score, rule: optax.GradientTransformation, batch: int | None
) -> HybridVI:
    """Return the algorithm of natural gradient steps of the full covariance Gaussian."""
    return HybridVI(OrthogonalDraws(), score, NaturalGradient(0.0), rule, batch, every_error=True)


def stop_rule(hold: int, at_least: int, tolerance: float) -> Stop:
    """Return the rule that stops when the error of the averaged steps is below the tolerance.

    ``hold``: full steps before the length falls; ``at_least``: steps before which it never stops.
    The noise of an average falls with the root of the number of steps, hence the square root.
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
    """Return the function that starts at the mode, ``roughly`` by an approximate marginal."""

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
    """Return the recipe for a family that is not Gaussian.

    ``gaussian``: the recipe that finds the best Gaussian; ``begin_at``: the result of a fit to
    nearly the same density, from which it starts without a Gaussian; ``steps``: None leaves their
    number to the recipe; ``batch``: draws evaluated side by side.
    """

    def as_member(q: Variational) -> Variational:
        return family.near(q) if isinstance(q, CholeskyGaussian) else q

    def begin(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
        return as_member(done[-1].fit.q) if begin_at is None else begin_at

    number = steps or OWN_STEPS
    in_sds, rule = ScaledGradient(jnp.ones(dim), 1.0), Adam(ADAM_LENGTH, number, ADAM_HOLD)
    algorithm = HybridVI(IndependentDraws(OWN_DRAWS), score, in_sds, rule, batch)
    own = Stage("own family", begin, algorithm, number, 50, max(1, number // 10))
    stages = [stage for stage in gaussian.stages if not stage.encore and begin_at is None]
    stages += in_two(own)
    for n in range(ENCORES if steps is None else 0):
        again = own._replace(name=f"own family {n + 2}", begin=carry_on, encore=True)
        stages += in_two(again)
    first = family.at(jnp.zeros(dim), jnp.ones(dim))
    judge = _judge(first, score, batch)

    def finish(model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
        return as_member(done[-1].fit.q)

    return Recipe("any family", tuple(stages), judge, finish)


def _judge(q: Variational, score: Score, batch: int | None) -> Judge:
    if eqx.filter_eval_shape(lambda q: q.remaining_error(q), q) is None:
        return judge_settling(batch, Cause.OWN_FAMILY)
    fresh = HybridVI(
        IndependentDraws(FRESH_DRAWS), score, OrdinaryGradient(), robbins_monro(0), batch, True
    )
    return judge_by_fresh_draws(fresh, Cause.STEPS, 9, MOST_ESTIMATES)


def negative_hessian(
    model: MarginalModel, data: Data, theta: np.ndarray, unit: np.ndarray, roughly: bool = False
) -> np.ndarray:
    """Return minus the second derivative of log p(y, theta + unit phi) in phi, at phi = 0.

    Central differences of the score are accurate to six digits, more than a start needs, and avoid
    compiling a second differentiation (and the stalls seen there). Differences in one direction,
    with half as many scores, are accurate to three (``roughly``).
    """
    width, m = 1e-4, theta.size
    away = width * unit.T
    others = np.zeros((1, m)) if roughly else -away
    scores = values_and_scores(model, data, theta + np.concatenate([away, others]))[1] @ unit
    hessian = (scores[:m] - scores[m:]) / (width if roughly else 2 * width)
    return -0.5 * (hessian + hessian.T)


def covariance_factor(curvature: np.ndarray) -> np.ndarray:
    """Return a square root of the inverse, with eigenvalues made positive and floored."""
    if not np.isfinite(curvature).all():
        return np.eye(len(curvature))
    values, vectors = np.linalg.eigh(curvature)
    return vectors / np.sqrt(np.maximum(np.abs(values), SMALLEST_CURVATURE))


def laplace_start(
    model: MarginalModel, data: Data, theta: Float[Array, " m"], roughly: bool = False
) -> CholeskyGaussian:
    """Return the Gaussian given by mode and curvature.

    The mode is found from ``theta``, in coordinates whitened by the curvature there; ``roughly``:
    to within a few hundredths of an sd, with half as many scores.
    """
    origin = np.asarray(theta)
    unit = covariance_factor(negative_hessian(model, data, origin, np.eye(origin.size), roughly))

    def objective(phi: np.ndarray) -> tuple[float, np.ndarray]:
        (value,), (score,) = values_and_scores(model, data, (origin + unit @ phi)[None])
        if not (np.isfinite(value) and np.isfinite(score).all()):
            return 1e30, np.zeros_like(phi)
        return -value, -unit.T @ score

    found = minimize(
        objective,
        np.zeros_like(origin),
        jac=True,
        method="L-BFGS-B",
        options={
            "maxcor": 20,
            "gtol": 3e-2 if roughly else 1e-3,
            "ftol": 1e-12,
            "maxiter": 500,
        },
    )
    mode = origin + unit @ found.x
    factor = unit @ covariance_factor(negative_hessian(model, data, mode, unit, roughly))
    # NumPy throughout, since every eager JAX operation would be compiled.
    triangular = np.asarray(np.linalg.qr(factor.T, mode="r")).T
    triangular = triangular * np.where(np.diagonal(triangular) < 0, -1.0, 1.0)
    packed = triangular[np.tril_indices(mode.size)]
    return CholeskyGaussian(jax.device_put(mode), jax.device_put(packed))


def judge_by_fresh_draws(algorithm: HybridVI, cause: Cause, chunk: int, most: int) -> Judge:
    """Return the judge that takes at most ``most`` estimates, fewer if these leave no doubt.

    ``cause``: why an error would be left; ``chunk``: steps per compiled call. The step rule of
    ``algorithm`` must be one with a switch (:class:`ScaleState`).
    """

    def decide(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Verdict:
        q = done[-1].fit.q
        estimates = fit(key, algorithm, model, data, q, num_steps=0, chunk=chunk)
        silent = ScaleState(jnp.zeros((), jnp.int32), jnp.zeros(()))
        estimates = estimates._replace(state=estimates.state._replace(rule=silent))
        for number in LOOKS_AT:
            estimates = fit(
                key, algorithm, model, data, q, num_steps=number, chunk=chunk, resume=estimates
            )
            trace = cast(Info, estimates.trace)
            mean, scale = (_batched(np.asarray(each)) for each in trace.remaining)
            verdict = judge(mean, scale, cause=cause, bad_draws=int(trace.bad_draws.sum()))
            if verdict.cause is not Cause.NOISE or 3 * number > most:
                break
        return verdict

    return decide


def _batched(errors: np.ndarray) -> np.ndarray:
    batches = min(len(errors), INDEPENDENT)
    return errors.reshape(batches, -1, errors.shape[1]).mean(axis=1)
