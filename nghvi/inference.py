"""``infer``: from any model to a judged posterior, the single entry point to the recipes."""

import dataclasses
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from nghvi._core.batches import Batches
from nghvi._core.errors import InputError
from nghvi._core.evaluate import (
    Evaluation,
    draw,
    evaluate,
    evaluation_size,
    side_by_side,
)
from nghvi._core.hosts import on_host, together
from nghvi._core.model import DividedModel, LatentModel, MarginalModel, unraveller
from nghvi._core.variational import Variational
from nghvi._linalg.small import one_thread
from nghvi._programs import Ahead, forget_programs_if_many, new_programs, program
from nghvi._typing import Data, Key, Params
from nghvi.data import LinearStatistics
from nghvi.data.working_copy import StreamedRows
from nghvi.families import Factor, Full
from nghvi.families.mixture import members_of
from nghvi.models.collapsed import Collapsed, completed
from nghvi.models.divided import Sharded, in_batches, mesh_of, place_latents, shard
from nghvi.recipes.by_surface import Found
from nghvi.recipes.chains import chains_suit, moved_pool
from nghvi.recipes.importance import LARGEST_DIMENSION, Pool, importance_pool, pareto_shape
from nghvi.recipes.plan import HUGE, LARGEST_FULL, Plan, collapsed_if_possible, integrals_are_costly
from nghvi.recipes.refined_fit import for_evaluation, refined_fit
from nghvi.recipes.run import Keep, Position, Progress, Run
from nghvi.recipes.settings import METHODS as METHODS
from nghvi.recipes.settings import Settings
from nghvi.recipes.surface import draws_for_surface
from nghvi.recipes.verdict import Cause, Status, Verdict

COSTLY, EXPENSIVE = 4_000, 20_000
"""Numbers touched by an evaluation beyond which the ELBO, and the importance weights, are computed
from fewer draws."""
TELLING, FEWER, USUAL = 70_000_000, 100, 250
"""Numbers touched by all the draws from which the ELBO of such a model is estimated, and the least
and most number of draws."""
ENORMOUS, FEW = 50_000_000, 10
"""Numbers touched by an evaluation beyond which only few draws are evaluated, too few for k-hat."""
AFFORDABLE = 600_000_000
"""Numbers that the importance weights of a fit may touch."""
COMPLETED = 2000
"""Number of draws that are completed by coefficients which had been integrated out."""
EXACT, CLOSE_ENOUGH = 1e-6, 0.02
"""Nats between ELBO and evidence below which draws are not corrected; the second for models that
are expensive to evaluate."""


@dataclasses.dataclass(frozen=True)
class Inference:
    """A posterior approximation with everything needed to judge it.

    ``q`` is the variational distribution. If a part of theta was integrated out of the fit, as the
    coefficients of a network are (:mod:`nghvi.models.collapsed`), ``run.q`` is the distribution of
    the rest, and ``q`` only a Gaussian with the moments of the draws in ``pool``, or of those that
    come from the first member if ``run.q`` is a mixture. Draws of small networks have been moved
    from ``run.q`` towards the posterior by chains (:mod:`nghvi.recipes.chains`); ELBO, evidence and
    k-hat are always those of ``run.q``.

    ``elbo``, ``log_evidence`` and ``k_hat`` are NaN if the latent variables cannot be integrated
    out. ``pool`` holds weighted draws of theta that represent the posterior.
    """

    model: LatentModel
    data: Data
    q: Variational
    verdict: Verdict
    run: Run
    pool: Pool
    elbo: float
    elbo_se: float
    log_evidence: float
    k_hat: float

    @property
    def converged(self) -> bool:
        """Whether the optimiser reached the optimum of its family."""
        return self.verdict.converged

    @property
    def drawn_from_q(self) -> bool:
        """Whether ``q`` is the very distribution that draws were taken from."""
        return np.asarray(self.run.q.centre).size == np.asarray(self.q.centre).size

    def draws(self, number: int, seed: int = 0) -> Params:
        """Return equally weighted posterior draws of the parameters, leading axis ``number``."""
        theta = self.pool.resample(number, np.random.default_rng(seed))
        return unravel_draws(self.model, self.data, theta)


def unravel_draws(model: LatentModel, data: Data, theta: Float[np.ndarray, "s m"]) -> Params:
    """Return the named parameters of many draws at once."""
    return _unravel_draws(model, data, jax.device_put(theta))


@program
def _unravel_draws(model: LatentModel, data: Data, theta: Array) -> Params:
    return jax.vmap(unraveller(model, data))(theta)


@together()
@one_thread
def infer(
    model: LatentModel,
    data: Data,
    settings: Settings | None = None,
    *,
    progress: Progress | None = None,
    resume: Position | None = None,
    keep: Keep | None = None,
    **changes: Any,
) -> Inference:
    """Approximate the posterior of ``model`` given ``data``.

    Parameters
    ----------
    model
        Any :class:`LatentModel`.
    data
        Whatever the model was written to read.
    settings
        How to approximate it, see :class:`Settings`. Its fields can also be given by name, as
        ``changes``: ``infer(model, data, seed=1, method="ng-hvi")``.
    progress
        Called after every chunk of steps with the stage's name, the step, the number of steps and
        the trace.
    resume
        Where an interrupted run was left (``inference.run.position``, or what ``keep`` received);
        the run continues as if it had not been interrupted.
    keep
        Called after every chunk of steps with where the run is, and whether it ends there.
    """
    settings = (settings or Settings()).changed(changes)
    if new_programs:  # to read the list of maps takes milliseconds
        forget_programs_if_many()
    key = jax.random.key(settings.seed)
    model = collapsed_if_possible(model, data, settings)
    divided, parts, settings, resume = _divide(model, data, settings, resume)
    plan = Plan.of(settings, divided, parts)
    with Ahead() as ahead:
        fitted, done, known = refined_fit(key, plan, divided, parts, ahead, progress, resume, keep)
    final = for_evaluation(key, plan, divided, fitted, parts, done.q)
    correct = settings.importance and not plan.explicit
    chained = correct and done.position is None and chains_suit(settings, final, parts, done.q)
    plainly = correct and not chained
    found = finish(key, final, parts, done, correct=plainly, fitted=fitted, known=known)
    if chained and found.verdict.status is not Status.FAILED:
        given = jax.random.fold_in(key, 10**6 + 2), done.q, cast(MarginalModel, final), parts
        moved = moved_pool(*given, found.pool.log_evidence)
        found = dataclasses.replace(found, pool=moved)
    return _completed(key, _undivided(found, data))


def _divide(
    model: LatentModel, data: Data, settings: Settings, resume: Position | None
) -> tuple[LatentModel, Data, Settings, Position | None]:
    """Return the model on pieces of the data, if batches or devices are asked for."""
    if settings.latents == "integrate" and not isinstance(model, MarginalModel):
        raise InputError(f"latents='integrate': {type(model).__name__} has no log_marginal.")
    mesh = mesh_of(settings.devices)
    if settings.batch_groups is not None or isinstance(data, StreamedRows):
        pieces = in_batches(
            model,
            data,
            settings.batch_groups,
            seed=settings.seed,
            method=settings.method,
            full=isinstance(settings.of_family, Full),
            devices=settings.devices if mesh is None else mesh.size,
        )
        n_starts = settings.n_starts if model.many_modes else 1
        return *pieces, settings.changed({"n_starts": n_starts, "importance": False}), resume
    if mesh is None:
        filled = data.filled_up() if isinstance(data, LinearStatistics) else data
        return model, filled, settings, resume
    sharded = Sharded(cast(MarginalModel, model))
    return sharded, shard(data, mesh), settings, _placed(resume, mesh)


def _placed(position: Position | None, mesh: Mesh) -> Position | None:
    """Return where a run was left, with latents on the devices of their groups."""
    if position is None or position.current is None:
        return position
    state = position.current.state
    state = state._replace(latents=place_latents(state.latents, mesh))
    return position._replace(current=position.current._replace(state=state))


def _undivided(found: Inference, data: Data) -> Inference:
    """Return the result with model and data as given, since nothing else needs the pieces."""
    if not isinstance(found.model, DividedModel):
        model = found.model.plain() if isinstance(found.model, MarginalModel) else found.model
        return dataclasses.replace(found, model=model, data=data)
    # Predictions must not need another process.
    q, done = on_host((found.q, found.run))
    return dataclasses.replace(found, model=found.model.model, data=data, q=q, run=done)


def _completed(key: Key, found: Inference) -> Inference:
    """Return the result for all parameters, if coefficients had been integrated out."""
    if not isinstance(found.model, Collapsed):
        return found
    pool = found.pool
    some, member = pool.theta, pool.member
    if len(some) > COMPLETED:
        some = pool.resample(COMPLETED, _generator(key))
        member = members_of(found.run.q, some)
    keys = jax.random.split(jax.random.fold_in(key, 10**6 + 1), len(some))
    theta = np.asarray(completed(found.model, found.data, keys, jax.device_put(some)))
    typical = theta if member is None else theta[member == 0]
    sd = jax.device_put(np.maximum(typical.std(axis=0), 1e-300))
    q = Factor(rank=0).at(jax.device_put(typical.mean(axis=0)), sd)
    whole = Pool.plain(theta)._replace(member=member, chains=pool.chains)
    whole = whole._replace(log_evidence=pool.log_evidence)
    return dataclasses.replace(found, model=found.model.model, q=q, pool=whole)


def finish(
    key: Key,
    model: LatentModel,
    data: Data,
    done: Run,
    *,
    correct: bool,
    fitted: LatentModel | None = None,
    known: Found | None = None,
) -> Inference:
    """Return the inference: ELBO, k-hat, evidence and the pool of draws added to a run.

    ``correct``: whether draws may be weighted. ``fitted``: the model of the fit, if that is a
    rougher one; its cost decides how many draws are evaluated. ``known``: what the fit itself has
    evaluated.
    """
    key_pool, key_elbo = jax.random.split(jax.random.fold_in(key, 10**6))
    nan = float("nan")
    if not isinstance(model, MarginalModel) or not model.marginal_is_exact:
        pool = _pool(key_pool, done.q)
        return Inference(model, data, done.q, done.verdict, done, pool, nan, nan, nan, nan)
    fitted = model if fitted is None else fitted
    rough_size = evaluation_size(fitted, data)
    batch = side_by_side(fitted, Batches.example_of(data))
    size = max(evaluation_size(model, data), 1)
    slow = not model.integration_is_cheap or size > HUGE
    some = 50 if slow else int(np.clip(TELLING // size, FEWER, USUAL))
    draws = some if rough_size > COSTLY else 2000
    correct = correct and not integrals_are_costly(model, data)
    if size > ENORMOUS:
        draws = FEW
    # A gradient takes twice as long as a value, and tells a surface as much as m values.
    told = correct and model.one_by_one and rough_size > COSTLY and draws > FEW
    if told and done.q.dim <= LARGEST_DIMENSION:
        draws = max(min(draws, FEWER), draws_for_surface(done.q.dim, told))
    if known is None:
        found = evaluate(key_elbo, done.q, model, data, draws=draws, batch=batch, with_scores=told)
    else:
        found = known.evaluation
    if not np.isfinite(found.elbo):
        lost = int(np.sum(~np.isfinite(found.log_ratio)))
        done = done._replace(verdict=_failed(lost, len(found.log_ratio)))
    level, level_se = _level(key_elbo, model, data, found, done.q)
    gap = found.log_evidence - found.elbo if np.isfinite(found.elbo) else float("inf")
    corrected = None
    if correct and gap > (EXACT if 2**10 * size <= AFFORDABLE else CLOSE_ENOUGH):
        rng = _generator(key_pool)
        surface = None if known is None else known.surface
        # A surface makes most draws cheap.
        number = int(np.clip(np.log2(AFFORDABLE / size), 10 if surface is None else 11, 12))
        corrected = importance_pool(
            found,
            model,
            data,
            rng,
            log2_draws=number,
            batch=batch,
            expensive=rough_size > EXPENSIVE,
            surface=surface,
        )
    if corrected is None:
        corrected = _pool(key_pool, done.q)._replace(log_evidence=found.log_evidence)
    return Inference(
        model,
        data,
        done.q,
        done.verdict,
        done,
        corrected,
        found.elbo + level,
        float(np.hypot(found.elbo_se, level_se)),
        corrected.log_evidence + level,
        pareto_shape(found.log_ratio) if draws > FEW else nan,
    )


def _level(
    key: Key, model: MarginalModel, data: Data, found: Evaluation, q: Variational
) -> tuple[float, float]:
    """Return what many draws add to the level of a density averaged over few, and its error."""
    if not (model.is_drawn(data) and np.isfinite(found.elbo)):
        return 0.0, 0.0
    log_q = np.asarray(_log_densities(q, jax.device_put(found.theta)))
    central = int(log_q.argmax())
    value, error = map(float, _afresh(key, model, data, jax.device_put(found.theta[central])))
    return value - float(found.log_ratio[central] + log_q[central]), error


@program
def _log_densities(q: Variational, theta: Float[Array, "s m"]) -> Float[Array, " s"]:
    return jax.vmap(q.log_density)(theta)


@program
def _afresh(key: Key, model: MarginalModel, data: Data, theta: Array) -> tuple[Array, Array]:
    return model.log_marginal_afresh(key, unraveller(model, data)(theta), data)


def _pool(key: Key, q: Variational) -> Pool:
    """Return uncorrected draws of q."""
    many = q.noise_dim > LARGEST_FULL  # nobody reads so many sds one by one
    pool = Pool.plain(draw(key, q, 4000)[0]) if many else Pool.spread(q, _generator(key))
    return pool._replace(member=members_of(q, pool.theta))


def _generator(key: Key) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def _failed(lost: int, draws: int) -> Verdict:
    return Verdict(Status.FAILED, Cause.DENSITY, {"lost": lost, "draws": draws})
