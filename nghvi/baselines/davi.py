"""DAVI (Tan 2021, 2025): variational inference for theta and re-parametrised effects together.

Effects are standardised by their exact conditional given theta (:func:`effects_from_locals`)::

    alpha_k = m_k(theta) + L_k(theta) a_k,     alpha_k | theta, y ~ N(m_k, L_k L_k')
    log p~(theta, a) = log g(theta, alpha(theta, a)) + sum_k log|L_k|
                     = log p(y | theta) + log p(theta) + sum_k log N(a_k; 0, I)

and ``q = N(theta; mu, C C') prod_k N(a_k; mu_k, C_k C_k')``, all factors lower triangular and
free. The second line is what is computed: it is the first without the detour over alpha, and
needs sums over rows only. It also says that the optimum has ``a_k ~ N(0, I)``, and that the ELBO
there is the one of a full covariance Gaussian for theta with the exact conditional of alpha.

Natural gradient at one draw x = mean + C z, with v = C'(grad log p~ - grad log q) = C'grad + z::

    mean: C v,      C: C M,  M = tril(v z') - diag(v z')/2,
    (C M)_ij = z_j (sum_{l >= j} C_il v_l - C_ij v_j / 2)

Step rule (SNNGM): directions are divided by their norm over all of lambda, averaged with momentum
0.9 (bias corrected), and taken with length 0.001 sqrt(dim lambda). As published the length is
constant and C <- C + rho C M, which can carry a diagonal entry into zero, where its gradient
vanishes. Corrected, the length falls linearly to zero over the second half of the steps, and
C <- C (strict(rho M) + diag(exp(rho M_ii))), which keeps every diagonal positive.
"""

import time
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from threadpoolctl import threadpool_limits

from nghvi._core.direction import OrdinaryGradient
from nghvi._core.draws import AntitheticDraws, flat_normal
from nghvi._core.evaluate import draw, evaluate
from nghvi._core.hybrid import HybridVI, Info
from nghvi._core.model import unraveller
from nghvi._core.score import Integrated
from nghvi._core.step_rules import normalise, robbins_monro
from nghvi._core.variational import RemainingError
from nghvi._linalg import small
from nghvi._linalg.damped_cg import exact_solve
from nghvi._linalg.packed import pack_lower
from nghvi._linalg.tree import materialise, tree_norm, tree_where
from nghvi._typing import Data, Key, PyTree, Scalar
from nghvi.data import Rows
from nghvi.infer import SIDE_BY_SIDE, Inference
from nghvi.models.mixed import GroupedData, MixedModel, MixedParams, prepare
from nghvi.models.published_start import published_start
from nghvi.networks import Identity
from nghvi.recipes.fresh import judge_by_fresh_draws
from nghvi.recipes.importance import Pool, pareto_shape
from nghvi.recipes.run import Progress, Run
from nghvi.recipes.verdict import TOLERANCE, Verdict
from nghvi.variational import CholeskyGaussian

CHUNK = 100
STEP_LENGTH = 0.001
"""Times the root of the number of variational parameters."""
LINEAR_SPREAD, NETWORK_SPREAD = 1.0, 0.1
"""Standard deviations of all parts of q at the start."""
DRAWS = 2000

_momentum = optax.chain(normalise(), optax.ema(0.9, debias=True))


class Block(NamedTuple):
    """N(mean, C C') with C lower triangular; locals have a last axis, their groups."""

    mean: Float[Array, "d *k"]
    factor: Float[Array, "d d *k"]

    @property
    def diagonal(self) -> Float[Array, "d *k"]:
        """Diagonal of C."""
        return jnp.einsum("ii...->i...", self.factor)

    @property
    def size(self) -> int:
        """Number of free parameters."""
        d, groups = self.mean.shape[0], self.mean[:1].size
        return groups * (d + d * (d + 1) // 2)

    def transport(self, noise: Float[Array, "d *k"]) -> Float[Array, "d *k"]:
        """The draw made of this noise."""
        return self.mean + jnp.sum(self.factor * noise[None], axis=1)

    def log_density(self, noise: Float[Array, "d *k"]) -> Scalar:
        """Log density of that draw."""
        return _log_normal(noise) - jnp.sum(jnp.log(jnp.abs(self.diagonal)))

    def natural_gradient(
        self, noise: Float[Array, "d *k"], slope: Float[Array, "d *k"]
    ) -> "Block":
        """Natural gradient of the ELBO at one draw; ``slope``: gradient of the log target there."""
        white = jnp.sum(self.factor * slope[:, None], axis=0) + noise
        terms = self.factor * white[None]
        tails = jnp.flip(jnp.cumsum(jnp.flip(terms, 1), axis=1), 1)
        return Block(jnp.sum(terms, axis=1), (tails - 0.5 * terms) * noise[None])

    def add(self, update: "Block") -> "Block":
        """The published update."""
        return Block(self.mean + update.mean, self.factor + update.factor)

    def retract(self, update: "Block") -> "Block":
        """The same with the diagonal of C^-1 dC exponentiated: signs never change."""
        relative = update.diagonal / self.diagonal
        more = jnp.expm1(relative) - relative
        return Block(
            self.mean + update.mean, self.factor + update.factor + self.factor * more[None]
        )


class DaviGaussian(NamedTuple):
    """q(theta) and all q(a_k)."""

    theta: Block
    locals: Block


class DaviFit(NamedTuple):
    """A fit with its local part, groups in the order of their codes."""

    inference: Inference
    """``elbo`` is that of theta and locals together; the rest concerns theta."""
    local_mean: Float[np.ndarray, "k r"]
    local_factor: Float[np.ndarray, "k r r"]
    local_kl: Float[np.ndarray, " k"]
    """KL(N(mu_k, C_k C_k') || N(0, I)) in nats: 0 at the optimum."""


def davi(
    model: MixedModel,
    rows: Rows,
    *,
    seed: int = 0,
    steps: int = 10_000,
    legacy: bool = False,
    progress: Progress | None = None,
) -> Inference:
    """Fit a mixed model with Gaussian response by DAVI; ``legacy``: the step rule as published."""
    return davi_fit(model, rows, seed=seed, steps=steps, legacy=legacy, progress=progress).inference


@threadpool_limits.wrap(limits=1, user_api="blas")
def davi_fit(
    model: MixedModel,
    rows: Rows,
    *,
    seed: int = 0,
    steps: int = 10_000,
    legacy: bool = False,
    progress: Progress | None = None,
) -> DaviFit:
    """:func:`davi` with what it found about the effects."""
    if not model.response.conjugate:
        raise ValueError(
            "davi needs the exact conditional of the effects, which is known for a Gaussian "
            f"response, not for {type(model.response).__name__}."
        )
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise ValueError(f"davi(steps={steps!r}): steps must be an integer >= 1.")
    begun = time.perf_counter()
    data = prepare(model, rows)
    key_steps, key_judge, key_elbo, key_pool = jax.random.split(jax.random.key(seed), 4)
    start = davi_start(model, data, seed)
    found, trace = _climb(key_steps, model, data, start, steps, legacy, progress)
    q = CholeskyGaussian(found.theta.mean, pack_lower(found.theta.factor))
    verdict = _judge(key_judge, model, data, q, found.locals, legacy)
    seconds = time.perf_counter() - begun
    batch = max(1, SIDE_BY_SIDE // max(model.evaluation_size(data), 1))
    judged = evaluate(key_elbo, q, model, data, draws=DRAWS, batch=batch)
    kl = _local_kl(found.locals)
    inference = Inference(
        model,
        data,
        q,
        verdict,
        Run(q, verdict, (("davi", trace),), steps, seconds, None),
        Pool.plain(draw(key_pool, q, 2 * DRAWS)[0]),
        judged.elbo - float(jnp.sum(kl)),  # q(a) does not depend on theta: no draws needed
        judged.elbo_se,
        judged.log_evidence,
        pareto_shape(judged.log_ratio),
    )
    by_group = (found.locals.mean.T, jnp.moveaxis(found.locals.factor, -1, 0), kl)
    return DaviFit(inference, *(np.asarray(data.in_original_order(x)) for x in by_group))


def davi_start(model: MixedModel, data: GroupedData, seed: int) -> DaviGaussian:
    """Where the published algorithm starts."""
    theta, r, k = published_start(model, data, seed), model.num_effects, data.num_groups
    spread = LINEAR_SPREAD if isinstance(model.trunk, Identity) else NETWORK_SPREAD
    local_factor = jnp.broadcast_to(jnp.eye(r)[:, :, None], (r, r, k))
    return DaviGaussian(
        Block(theta, spread * jnp.eye(theta.size)),
        Block(jnp.zeros((r, k)), spread * local_factor),
    )


def effects_from_locals(
    model: MixedModel, params: MixedParams, standardised: Float[Array, "r k"], data: GroupedData
) -> tuple[Float[Array, "k r"], Scalar]:
    """alpha(theta, a) and sum_k log|L_k|, groups in memory order.

    The root of the conditional covariance is the inverse transposed of its precision's: which
    root is taken turns a_k, and leaves N(0, I) as it is.
    """
    root, forward = model.conditional(params, data)
    effects = small.solve_lower(root, forward + standardised, transpose=True)
    return effects.T, -jnp.sum(small.half_log_det(root))


def _log_normal(x: Float[Array, "*d"]) -> Scalar:
    return -0.5 * (jnp.sum(x**2) + x.size * np.log(2 * np.pi))


def log_target(
    theta: Float[Array, " m"], standardised: Float[Array, "r k"], model: MixedModel, data: Data
) -> Scalar:
    """log p~(theta, a)."""
    return model.log_marginal(unraveller(model, data)(theta), data) + _log_normal(standardised)


def davi_step(
    key: Key,
    q: DaviGaussian,
    rule: PyTree,
    length: Scalar,
    model: MixedModel,
    data: GroupedData,
    legacy: bool,
) -> tuple[DaviGaussian, PyTree, Info]:
    """One draw, one gradient, one step."""
    m = q.theta.mean.size
    normals = flat_normal(key, (m + q.locals.mean.size,))
    noise = (normals[:m], normals[m:].reshape(q.locals.mean.shape))
    theta = materialise(q.theta.transport(noise[0]))
    standardised = q.locals.transport(noise[1])
    target, slopes = jax.value_and_grad(log_target, argnums=(0, 1))(
        theta, standardised, model, data
    )
    log_q = q.theta.log_density(noise[0]) + q.locals.log_density(noise[1])
    direction = DaviGaussian(
        *(b.natural_gradient(z, g) for b, z, g in zip(q, noise, slopes, strict=True))
    )
    update, moved_rule = _momentum.update(direction, rule)
    update = jax.tree.map(lambda x: length * x, update)
    moves = (b.add(u) if legacy else b.retract(u) for b, u in zip(q, update, strict=True))
    moved = DaviGaussian(*moves)
    # As everywhere in the library, a step that leads nowhere is not taken.
    good = jnp.isfinite(tree_norm(moved))
    variance = jnp.sum(q.theta.factor**2, axis=1)
    left = RemainingError(
        direction.theta.mean / jnp.sqrt(variance),
        jnp.sum(q.theta.factor * direction.theta.factor, axis=1) / variance,
    )
    info = Info(
        target,
        log_q,
        (~jnp.isfinite(target)).astype(int),
        ~good,
        jnp.full((), jnp.nan),  # the ordinary gradient is never formed
        tree_norm(direction),
        left.largest(),
        exact_solve(),
    )
    return tree_where(good, moved, q), tree_where(good, moved_rule, rule), info


def _climb(
    key: Key,
    model: MixedModel,
    data: GroupedData,
    q: DaviGaussian,
    steps: int,
    legacy: bool,
    progress: Progress | None,
) -> tuple[DaviGaussian, Info]:
    carry, traces = (q, _momentum.init(q)), []
    for begin in range(0, steps, CHUNK):
        count = min(CHUNK, steps - begin)
        span = jnp.asarray([begin, count, steps])
        carry, info = _run_chunk(key, carry, span, model, data, legacy)
        traces.append(jax.tree.map(lambda x, count=count: np.asarray(x)[:count], info))
        if progress is not None:
            progress("davi", begin + count, steps, traces[-1])
    return carry[0], jax.tree.map(lambda *x: np.concatenate(x), *traces)


@eqx.filter_jit
def _run_chunk(
    key: Key, carry: tuple, span: Array, model: MixedModel, data: GroupedData, legacy: bool
) -> tuple[tuple, Info]:
    """At most CHUNK steps, recorded; a shorter last chunk runs the same program."""
    begin, count, steps = span
    longest = STEP_LENGTH * np.sqrt(sum(block.size for block in carry[0]))

    def step(carry: tuple, t: Array) -> tuple[tuple, Info]:
        share = 1.0 if legacy else jnp.minimum(1.0, 2 * (1 - t / steps))
        *carry, info = davi_step(
            jax.random.fold_in(key, t), *carry, longest * share, model, data, legacy
        )
        return tuple(carry), info

    def recorded(i: Array, loop: tuple[tuple, Info]) -> tuple[tuple, Info]:
        carry, info = step(loop[0], begin + i)
        return carry, jax.tree.map(lambda trace, x: trace.at[i].set(x), loop[1], info)

    shapes = jax.eval_shape(step, carry, begin)[1]
    blank = jax.tree.map(lambda s: jnp.zeros((CHUNK, *s.shape), s.dtype), shapes)
    return jax.lax.fori_loop(0, count, recorded, (carry, blank))


def _local_kl(block: Block) -> Float[Array, " k"]:
    squares = jnp.sum(block.factor**2, axis=(0, 1)) + jnp.sum(block.mean**2, axis=0)
    log_det = jnp.sum(jnp.log(jnp.abs(block.diagonal)), axis=0)
    return 0.5 * (squares - block.mean.shape[0]) - log_det


def _judge(
    key: Key,
    model: MixedModel,
    data: GroupedData,
    q: CholeskyGaussian,
    block: Block,
    legacy: bool,
) -> Verdict:
    """Theta by fresh draws; the optimum of the locals is known."""
    remedy = "take more steps" + (" or use legacy=False" if legacy else "")
    rule = robbins_monro(0)
    fresh = HybridVI(AntitheticDraws(32), Integrated(), OrdinaryGradient(), rule, every_error=True)
    verdict = judge_by_fresh_draws(fresh, remedy, 10, 10)(key, model, data, q, ())
    sd = jnp.sqrt(jnp.sum(block.factor**2, axis=1))
    left = float(jnp.max(jnp.maximum(jnp.abs(block.mean), jnp.abs(sd - 1)), initial=0.0))
    if left <= TOLERANCE or not verdict.converged:
        return verdict
    sentence = f"Not converged: effects given theta are {left:.2g} sd from their optimum; {remedy}."
    return verdict._replace(converged=False, sentence=sentence)
