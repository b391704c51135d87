"""``infer``: from any model to a judged posterior, the one door to the recipes."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float
from threadpoolctl import threadpool_limits

from nghvi._core.batches import Batches
from nghvi._core.draws import AntitheticDraws
from nghvi._core.errors import InputError
from nghvi._core.evaluate import draw, evaluate, evaluation_size, log_targets
from nghvi._core.hosts import on_host, together
from nghvi._core.model import DividedModel, LatentModel, MarginalModel, unraveller
from nghvi._core.variational import Variational
from nghvi._typing import Data, Key, Params
from nghvi.data.streamed import StreamedRows
from nghvi.methods import Method
from nghvi.models.batched import in_batches
from nghvi.models.sharded import Sharded, mesh_of, place_latents, shard
from nghvi.recipes.importance import Pool, importance_pool, pareto_shape
from nghvi.recipes.plan import METHODS as METHODS
from nghvi.recipes.plan import Plan
from nghvi.recipes.run import Position, Progress, Run, run
from nghvi.recipes.start import value_and_score
from nghvi.recipes.verdict import TOLERANCE, Cause, Status, Verdict

SIDE_BY_SIDE = 200_000
"""Numbers that stay in the caches; more draws than fit are evaluated one after the other."""
COSTLY, HUGE = 20_000, 10_000_000
ENORMOUS, FEW = 50_000_000, 10
"""Numbers touched by an evaluation beyond which few draws are evaluated: too few for k-hat."""
ASTRAY, FAR_ASTRAY, UNLIKE = 0.03, 0.1, 0.05
"""Errors of an integral beyond which it is refined: of the score at the centre and in the tails of
the result, in posterior sds, and of the log density at the centre, in nats."""
AFFORDABLE = 600_000_000
"""Numbers touched by the importance weights of a fit."""
EXACT, CLOSE_ENOUGH = 1e-6, 0.02
"""Nats between ELBO and evidence below which draws are not corrected; the latter for models that
are expensive to evaluate."""


@dataclasses.dataclass(frozen=True)
class Inference:
    """A posterior approximation with everything needed to judge it.

    ``elbo``, ``log_evidence`` and ``k_hat`` are nan where the latent variables cannot be
    integrated out. ``pool`` holds weighted draws of theta that stand for the posterior.
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

    def draws(self, number: int, seed: int = 0) -> Params:
        """Equally weighted posterior draws of the parameters, leading axis ``number``."""
        theta = self.pool.resample(number, np.random.default_rng(seed))
        return unravel_draws(self.model, self.data, theta)


def unravel_draws(model: LatentModel, data: Data, theta: Float[np.ndarray, "s m"]) -> Params:
    """Named parameters of many draws at once."""
    return _unravel_draws(model, data, jax.device_put(theta))


@eqx.filter_jit
def _unravel_draws(model: LatentModel, data: Data, theta: Array) -> Params:
    return jax.vmap(unraveller(model, data))(theta)


Keep = Callable[[Position, bool, int], None]
"""Where a run is, whether it ends there, and how often the model had been refined."""


@together()
@threadpool_limits.wrap(limits=1, user_api="blas")  # a second thread only costs its waking
def infer(
    model: LatentModel,
    data: Data,
    *,
    seed: int = 0,
    rank: int | str = "auto",
    method: Method = "auto",
    steps: int | None = None,
    n_starts: int | str = "auto",
    latents: str = "auto",
    smooth: bool = True,
    importance: bool = True,
    start: Float[Array, " m"] | None = None,
    start_scale: float = 1.0,
    progress: Progress | None = None,
    resume: Position | None = None,
    refinements: int = 0,
    batch_groups: int | None = None,
    devices: int | str | None = None,
    keep: Keep = lambda position, ends, refinements: None,
) -> Inference:
    """Approximate the posterior of ``model`` given ``data``.

    ``rank``: number of factors of the covariance, ``"full"``, or ``"auto"`` (full up to 300
    parameters). ``method``: ``"auto"``, or a rule of :mod:`nghvi.methods` or its name, run for
    ``steps`` steps from ``start`` with sds of ``start_scale``.
    ``n_starts``: random starts of a network, of which the best goes on. ``latents``:
    ``"integrate"``, ``"sample"`` or ``"auto"``. ``smooth=False`` chooses the recipe for networks.
    ``importance=False`` keeps the Gaussian's own draws. ``resume`` goes on with an interrupted
    run; ``refinements`` says how often its model had been refined. ``devices``: their number, or
    ``"all"``, over which the groups are spread; None is one device, or after
    ``jax.distributed.initialize`` those of all processes, each of which makes the same call.
    ``keep``: called after every chunk of steps with where the run is. ``batch_groups``: about so
    many groups of ``Rows`` at a step, weighted so that gradients are unbiased, by the recipe for
    networks. ``StreamedRows`` are always read that way, in the pieces in which they lie
    on disk.
    """
    if latents not in ("auto", "integrate", "sample"):
        raise InputError(f"latents={latents!r}: choose 'auto', 'integrate' or 'sample'.")
    if latents == "integrate" and not isinstance(model, MarginalModel):
        raise InputError(f"latents='integrate': {type(model).__name__} has no log_marginal.")
    key, whole = jax.random.key(seed), data
    mesh = mesh_of(devices)
    batched = batch_groups is not None or isinstance(data, StreamedRows)
    if batched:
        spread = devices if mesh is None else mesh.size
        model, data = in_batches(
            model, data, batch_groups, seed=seed, method=method, rank=rank, devices=spread
        )
        n_starts, importance = (1 if smooth else n_starts), False
    elif mesh is not None:
        model, data = Sharded(cast(MarginalModel, model)), shard(data, mesh)
        resume = _placed(resume, mesh)
    by_newton = smooth and not batched
    costly = by_newton and latents != "integrate" and _integrals_are_costly(model, data)
    fine, drawn = model, latents == "sample" or method != "auto"
    if costly:  # few nodes for the fit, more for its evaluation
        model = cast(MarginalModel, model).approximate()
        model = model if drawn else _affordably_refined(model)
    for _ in range(refinements):
        model = cast(MarginalModel, model).refined()
    begin: Variational | None = None
    while True:
        example = data.example if isinstance(data, Batches) else data
        size = evaluation_size(model, data)
        batch = max(1, SIDE_BY_SIDE // max(model.evaluation_size(example), 1))
        plan = Plan(
            *(rank, method, steps, n_starts, latents, by_newton, start, start_scale, batch),
            costly,
            network=not smooth,
            begin=begin,
        )
        recipe, record = plan.recipe(key, model, example), partial(_record, keep, refinements)
        better = None

        def settled(q: Variational, model: LatentModel = model) -> bool:
            nonlocal better
            refinable = smooth and not drawn
            better = _refined_if_needed(key, model, data, q, costly) if refinable else None
            return better is None or not better.integration_is_affordable

        done = run(recipe, key, model, data, progress, resume, record, settled)
        if better is None or done.position is not None:
            break
        if not better.integration_is_affordable:
            if done.verdict.status is not Status.FAILED:
                done = done._replace(verdict=Verdict(Status.NOT_CONVERGED, Cause.UNAFFORDABLE))
            break
        model, resume, refinements, begin = better, None, refinements + 1, done.q
    while drawn and smooth and (better := _refined_if_needed(key, model, data, done.q, costly)):
        if not better.integration_is_affordable:
            break
        model = better  # integrates for the evaluation only
    if costly:
        model = fine if drawn else _affordably_refined(cast(MarginalModel, model))
    explicit = method != "auto" or isinstance(rank, int)
    found = finish(key, model, data, done, importance and not explicit, size > COSTLY, batch)
    if not isinstance(model, DividedModel):
        return found
    # Predictions need no other process.
    q, done = on_host((found.q, found.run))
    return dataclasses.replace(found, model=model.model, data=whole, q=q, run=done)


def _placed(position: Position | None, mesh: Mesh) -> Position | None:
    """Where a run was left, its latents beside their groups."""
    if position is None or position.current is None:
        return position
    state = position.current.state
    state = state._replace(latents=place_latents(state.latents, mesh))
    return position._replace(current=position.current._replace(state=state))


def _record(keep: Keep, refinements: int, position: Position, ends: bool) -> None:
    keep(position, ends, refinements)


def _integrals_are_costly(model: LatentModel, data: Data) -> bool:
    """Whether an evaluation of the exact marginal takes seconds."""
    return (
        isinstance(model, MarginalModel)
        and not model.integration_is_cheap
        and evaluation_size(model, data) > HUGE
    )


def _affordably_refined(model: MarginalModel) -> MarginalModel:
    better = model.refined()
    return better if better.integration_is_affordable else model


def _refined_if_needed(
    key: Key, model: LatentModel, data: Data, q: Variational, costly: bool
) -> MarginalModel | None:
    """The refined model, if the present one's integrals are not exact enough at the result.

    They are if both agree on the score, in posterior sds, and on the density at the centre of
    ``q``, and where few points are used on the score in its tails, too; where integrals are
    ``costly``, on the score at the centre.
    """
    if not isinstance(model, MarginalModel) or not model.marginal_is_exact:
        return None
    better = model.refined()
    if eqx.tree_equal(better, model):
        return None
    if isinstance(data, Batches):
        now, then = (log_targets(m, data, np.asarray(q.centre)[None])[0] for m in (model, better))
        return better if abs(now - then) > UNLIKE else None

    def differences(noise: Array) -> tuple[float, float]:
        theta, pull = jax.vjp(q.transport, noise)
        rough, fine = (value_and_score(m, data, theta) for m in (model, better))
        astray = np.abs(pull(fine[1] - rough[1])[0]).max()
        return float(astray), abs(float(fine[0] - rough[0]))

    astray, unlike = differences(jnp.zeros(q.noise_dim))
    if costly:
        return better if not astray < TOLERANCE else None
    if not (astray < ASTRAY and unlike < UNLIKE):
        return better
    if not model.integration_is_cheap:  # a finer rule, which errs in the tails only a little
        return None
    tails = AntitheticDraws(1)(key, q.noise_dim)
    return None if all(differences(tail)[0] < FAR_ASTRAY for tail in tails) else better


def finish(
    key: Key, model: LatentModel, data: Data, done: Run, correct: bool, costly: bool, batch: int
) -> Inference:
    """ELBO, k-hat, evidence and the pool of draws."""
    key_pool, key_elbo = jax.random.split(jax.random.fold_in(key, 10**6))
    nan = float("nan")
    if not isinstance(model, MarginalModel) or not model.marginal_is_exact:
        pool = Pool.plain(draw(key_pool, done.q, 4000)[0])
        return Inference(model, data, done.q, done.verdict, done, pool, nan, nan, nan, nan)
    slow = not model.integration_is_cheap or evaluation_size(model, data) > HUGE
    draws = 50 if costly and slow else 250 if costly else 2000
    correct = correct and not _integrals_are_costly(model, data)
    if evaluation_size(model, data) > ENORMOUS:
        draws = FEW
    found = evaluate(key_elbo, done.q, model, data, draws=draws, batch=batch)
    if not np.isfinite(found.elbo):
        lost = int(np.sum(~np.isfinite(found.log_ratio)))
        done = done._replace(verdict=_failed(lost, len(found.log_ratio)))
    gap = found.log_evidence - found.elbo if np.isfinite(found.elbo) else float("inf")
    corrected = None
    size = max(evaluation_size(model, data), 1)
    if correct and gap > (EXACT if 2**10 * size <= AFFORDABLE else CLOSE_ENOUGH):
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key_pool)))
        number = int(np.clip(np.log2(AFFORDABLE / size), 10, 12))
        corrected = importance_pool(found, model, data, rng, log2_draws=number, batch=batch)
    if corrected is None:
        plain = Pool.plain(draw(key_pool, done.q, 4000)[0])
        corrected = plain._replace(log_evidence=found.log_evidence)
    return Inference(
        model,
        data,
        done.q,
        done.verdict,
        done,
        corrected,
        found.elbo,
        found.elbo_se,
        corrected.log_evidence,
        pareto_shape(found.log_ratio) if draws > FEW else nan,
    )


def _failed(lost: int, draws: int) -> Verdict:
    return Verdict(Status.FAILED, Cause.DENSITY, {"lost": lost, "draws": draws})
