"""DAVI (Tan 2021, 2025): variational inference for theta and re-parametrised effects together.

Effects are standardised by their exact conditional given theta (:func:`effects_from_locals`)::

    alpha_k = m_k(theta) + L_k(theta) a_k,     alpha_k | theta, y ~ N(m_k, L_k L_k')
    log p~(theta, a) = log g(theta, alpha(theta, a)) + sum_k log|L_k|
                     = log p(y | theta) + log p(theta) + sum_k log N(a_k; 0, I)

and ``q = N(theta; mu, C C') prod_k N(a_k; mu_k, C_k C_k')``, all factors lower triangular and
free. The last line is what is computed; it avoids the detour over alpha. It also shows that
a_k ~ N(0, I) at the optimum, so that the best ELBO is that of a full covariance Gaussian for theta
with the exact conditional of the effects.

A step uses one draw and has length 0.001 sqrt(dim lambda) by the rule of ``snngm``. As published
(``legacy``), the length is constant and the last iterate hovers around the optimum at that
distance; corrected, it falls linearly to zero over the second half of the steps.
"""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nghvi._core.draws import flat_normal
from nghvi._core.errors import InputError
from nghvi._core.evaluate import Evaluation, draw, log_targets, side_by_side
from nghvi._core.hybrid import Info
from nghvi._core.model import unraveller
from nghvi._core.variational import RemainingError
from nghvi._linalg import small
from nghvi._linalg.lowrank import pack_lower
from nghvi._linalg.small import one_thread
from nghvi._linalg.tree import exact_solve, materialise, tree_norm, tree_where
from nghvi._programs import program
from nghvi._typing import Key, PyTree, Scalar
from nghvi.data import Rows
from nghvi.families import CholeskyGaussian
from nghvi.inference import Inference
from nghvi.methods import published_start
from nghvi.models.mixed import GroupedData, MixedModel
from nghvi.models.parameters import MixedParams
from nghvi.models.smallest_form import prepare
from nghvi.paper.methods import snngm
from nghvi.paper.methods.snngm import Block
from nghvi.recipes.importance import Pool, pareto_shape
from nghvi.recipes.run import Progress, Run
from nghvi.recipes.verdict import TOLERANCE, Cause, Status, Verdict, judge

CHUNK = 100
STEP_LENGTH = 0.001
"""Times the root of the number of variational parameters."""
LINEAR_SPREAD, NETWORK_SPREAD = 1.0, 0.1
"""Standard deviations of all parts of q at the start."""
ELBO_PAIRS = 1000
JUDGE_PAIRS, ESTIMATES = 320, 10
"""Pairs of draws behind a verdict, and into how many independent estimates they go."""


class DaviGaussian(NamedTuple):
    """q(theta) and, groups last and in memory order, all q(a_k)."""

    theta: Block
    locals: Block


class DaviFit(NamedTuple):
    """A fit with its local part, groups in the order of their codes."""

    inference: Inference
    """``elbo`` is that of theta and locals together; the rest concerns theta."""
    local_mean: Float[np.ndarray, "k r"]
    local_factor: Float[np.ndarray, "k r r"]
    local_kl: Float[np.ndarray, " k"]
    """KL(N(mu_k, C_k C_k') || N(0, I)) in nats, 0 at the optimum."""


@one_thread
def davi(
    model: MixedModel,
    rows: Rows,
    *,
    seed: int = 0,
    steps: int = 10_000,
    legacy: bool = False,
    progress: Progress | None = None,
) -> DaviFit:
    """Fit a mixed model with a Gaussian response by DAVI; ``legacy`` uses the published steps."""
    if not model.response.conjugate:
        raise InputError(
            "davi needs the exact conditional of the effects, which is known for a Gaussian "
            f"response, not for {type(model.response).__name__}."
        )
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise InputError(f"davi(steps={steps!r}): steps must be an integer >= 1.")
    begun = time.perf_counter()
    data = prepare(model, rows)
    key_steps, key_judge, key_elbo, key_pool = jax.random.split(jax.random.key(seed), 4)
    begin = davi_start(model, data, seed)
    found, trace = _climb(key_steps, model, data, begin, steps, legacy, progress)
    verdict = _judge(key_judge, model, data, found, legacy)
    seconds = time.perf_counter() - begun
    judged, kl = _evaluate(key_elbo, model, data, found.theta), local_kl(found.locals)
    q = CholeskyGaussian(found.theta.mean, pack_lower(found.theta.factor))
    inference = Inference(
        model,
        data,
        q,
        verdict,
        Run(q, verdict, (("davi", trace),), steps, seconds, None),
        Pool.plain(draw(key_pool, q, 4 * ELBO_PAIRS)[0]),
        judged.elbo - float(jnp.sum(kl)),  # theta and a are independent under q and p~
        judged.elbo_se,
        judged.log_evidence,
        pareto_shape(judged.log_ratio),
    )
    by_group = (found.locals.mean.T, jnp.moveaxis(found.locals.factor, -1, 0), kl)
    return DaviFit(inference, *(np.asarray(data.in_original_order(x)) for x in by_group))


def davi_start(model: MixedModel, data: GroupedData, seed: int) -> DaviGaussian:
    """Where the published algorithm starts."""
    theta, r, k = published_start(model, data, seed).theta, model.num_effects, data.num_groups
    spread = LINEAR_SPREAD if model.trunk.linear else NETWORK_SPREAD
    unit = jnp.broadcast_to(jnp.eye(r)[:, :, None], (r, r, k))
    return DaviGaussian(
        Block(theta, spread * jnp.eye(theta.size)), Block(jnp.zeros((r, k)), spread * unit)
    )


def effects_from_locals(
    model: MixedModel, params: MixedParams, standardised: Float[Array, "r k"], data: GroupedData
) -> tuple[Float[Array, "k r"], Scalar]:
    """alpha(theta, a) and sum_k log|L_k|, groups in memory order.

    L_k is the inverse transposed of the precision's root: another root of the same covariance
    would rotate a_k, which leaves N(0, I) as it is.
    """
    root, forward = model.conditional(params, data)
    effects = small.solve_lower(root, forward + standardised, transpose=True)
    return effects.T, -jnp.sum(small.half_log_det(root))


def log_target(
    theta: Float[Array, " m"],
    standardised: Float[Array, "r k"],
    model: MixedModel,
    data: GroupedData,
) -> Scalar:
    """log p~(theta, a)."""
    params = unraveller(model, data)(theta)
    return model.log_marginal(params, data) + snngm.log_standard_normal(standardised)


def local_kl(block: Block) -> Float[Array, " k"]:
    """KL(N(mu_k, C_k C_k') || N(0, I)) of every group."""
    squares = jnp.sum(block.factor**2, axis=(0, 1)) + jnp.sum(block.mean**2, axis=0)
    log_det = jnp.sum(jnp.log(jnp.abs(block.diagonal)), axis=0)
    return 0.5 * (squares - block.mean.shape[0]) - log_det


def _step(
    key: Key,
    q: DaviGaussian,
    momentum: PyTree,
    length: Scalar,
    model: MixedModel,
    data: GroupedData,
    legacy: bool,
) -> tuple[DaviGaussian, PyTree, Info]:
    m = q.theta.mean.size
    normals = materialise(flat_normal(key, (m + q.locals.mean.size,)))
    noise = (normals[:m], normals[m:].reshape(q.locals.mean.shape))
    theta, standardised = materialise(q.theta.transport(noise[0])), q.locals.transport(noise[1])
    differentiate = jax.value_and_grad(log_target, argnums=(0, 1))
    target, slopes = differentiate(theta, standardised, model, data)
    log_q = q.theta.log_density(noise[0]) + q.locals.log_density(noise[1])
    directions = tuple(b.natural_gradient(z, g) for b, z, g in zip(q, noise, slopes, strict=True))
    blocks, moved_momentum, norm = snngm.step(tuple(q), directions, momentum, length, legacy)
    moved = DaviGaussian(*blocks)
    # As in the library's own step, one that leads nowhere is not taken.
    good = jnp.isfinite(tree_norm(moved))
    info = Info(
        target,
        log_q,
        (~jnp.isfinite(target)).astype(int),
        ~good,
        jnp.full((), jnp.nan),  # the ordinary gradient is never formed
        norm,
        q.theta.remaining_error(directions[0]).largest(),
        exact_solve(),
    )
    return tree_where(good, moved, q), tree_where(good, moved_momentum, momentum), info


def _climb(
    key: Key,
    model: MixedModel,
    data: GroupedData,
    q: DaviGaussian,
    steps: int,
    legacy: bool,
    progress: Progress | None,
) -> tuple[DaviGaussian, Info]:
    carry, traces = (q, snngm.init(tuple(q), legacy)), []
    for begin in range(0, steps, CHUNK):
        count = min(CHUNK, steps - begin)
        span = jnp.asarray([begin, count, steps])
        carry, info = _run_chunk(key, carry, span, model, data, legacy)
        traces.append(jax.tree.map(lambda x, count=count: np.asarray(x)[:count], info))
        if progress is not None:
            progress("davi", begin + count, steps, traces[-1])
    return carry[0], jax.tree.map(lambda *x: np.concatenate(x), *traces)


@program
def _run_chunk(
    key: Key, carry: tuple, span: Array, model: MixedModel, data: GroupedData, legacy: bool
) -> tuple[tuple, Info]:
    """At most CHUNK steps, recorded; a shorter last chunk runs the same program."""
    begin, count, steps = span
    longest = STEP_LENGTH * np.sqrt(sum(block.size for block in carry[0]))

    def step(carry: tuple, t: Array) -> tuple[tuple, Info]:
        length = longest * (1.0 if legacy else jnp.minimum(1.0, 2 * (1 - t / steps)))
        q, momentum = carry
        key_step = jax.random.fold_in(key, t)
        *moved, info = _step(key_step, q, momentum, length, model, data, legacy)
        return tuple(moved), info

    def recorded(i: Array, loop: tuple[tuple, Info]) -> tuple[tuple, Info]:
        carry, info = step(loop[0], begin + i)
        return carry, jax.tree.map(lambda trace, x: trace.at[i].set(x), loop[1], info)

    shapes = jax.eval_shape(step, carry, begin)[1]
    blank = jax.tree.map(lambda s: jnp.zeros((CHUNK, *s.shape), s.dtype), shapes)
    return jax.lax.fori_loop(0, count, recorded, (carry, blank))


def _evaluate(key: Key, model: MixedModel, data: GroupedData, block: Block) -> Evaluation:
    """q(theta) by antithetic draws, weighed by their noise: C may be all but singular."""
    half = np.asarray(flat_normal(key, (ELBO_PAIRS, block.mean.size)))
    noise = np.concatenate([half, -half])
    theta = np.asarray(block.mean) + noise @ np.asarray(block.factor).T
    at_mean = float(block.log_density(jnp.zeros_like(block.mean)))
    batch = side_by_side(model, data)
    log_q = at_mean - 0.5 * np.sum(noise**2, axis=1)
    return Evaluation(theta, log_targets(model, data, theta, batch), log_q)


@program
def _errors(key: Key, model: MixedModel, data: GroupedData, block: Block) -> RemainingError:
    """Remaining errors of q(theta), one antithetic pair per row."""
    unravel = unraveller(model, data)

    def one(noise: Array) -> RemainingError:
        theta = materialise(block.transport(noise))
        slope = jax.grad(lambda t: model.log_marginal(unravel(t), data))(theta)
        return block.remaining_error(block.natural_gradient(noise, slope))

    noise = flat_normal(key, (JUDGE_PAIRS, block.mean.size))
    draws = jax.lax.map(one, jnp.concatenate([noise, -noise]))
    return jax.tree.map(lambda x: 0.5 * (x[:JUDGE_PAIRS] + x[JUDGE_PAIRS:]), draws)


def _judge(
    key: Key, model: MixedModel, data: GroupedData, q: DaviGaussian, legacy: bool
) -> Verdict:
    """Theta by fresh draws; the locals' optimum is known."""
    errors = _errors(key, model, data, q.theta)
    mean, scale = (np.asarray(x).reshape(ESTIMATES, -1, x.shape[-1]).mean(axis=1) for x in errors)
    verdict = judge(mean, scale, cause=Cause.STEP_LENGTH if legacy else Cause.STEPS)
    sd = jnp.sqrt(jnp.sum(q.locals.factor**2, axis=1))
    off = jnp.maximum(jnp.abs(q.locals.mean), jnp.abs(sd - 1))
    left = float(jnp.max(off, initial=0.0))
    if left <= TOLERANCE or not verdict.converged:
        return verdict
    facts = {**verdict.facts, "effects_error": left}
    return Verdict(Status.NOT_CONVERGED, Cause.EFFECTS, facts)
