"""One iteration of NAGVAC.

With S draws ``theta = mu + b e1 + c e2`` and ``h = grad log p(y, theta)`` the gradient of the
ELBO is::

    mean of (h, e1 h, e2 h) + (0, P b, c diag P),   P = (b b' + C^2)^-1

and ``n = F^-1 gradient`` with the exact Fisher information or its diagonal blocks. The first
iteration only takes n for the average; iteration t > 1 moves::

    average <- 0.6 average + 0.4 min(1, 50 / |n|) n
    lambda  <- lambda + 0.1 min(1, 100 / t) average

A step that did not lower the validation loss stands, but its part of the average is taken back.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nghvi._core.hybrid import Info
from nghvi._core.model import unraveller
from nghvi._linalg.damped_cg import exact_solve
from nghvi._linalg.tree import tree_norm, tree_where
from nghvi._typing import Key, Scalar
from nghvi.data import Rows
from nghvi.families.factor import FactorGaussian
from nghvi.latents import conjugate
from nghvi.latents.rows import conditional_mode
from nghvi.models.mixed import MixedModel
from nghvi.paper.methods.likelihood_score import likelihood_score, sobol_normals
from nghvi.paper.methods.one_factor import METRICS, entropy_gradient
from nghvi.paper.methods.ridge import Ridge

DRAWS, EFFECT_DRAWS = 10, 20
LONGEST, MOMENTUM = 50.0, 0.6
HOLD = 100
"""Iteration from which the step length falls like 1 / t."""
ADAPT_EVERY = 4


class Iterate(NamedTuple):
    """What the next iteration needs."""

    q: FactorGaussian
    average: FactorGaussian
    """Running average of natural gradients."""
    precisions: Float[Array, " 2"]
    loss: Scalar
    best: FactorGaussian
    best_loss: Scalar
    stale: Int[Array, ""]
    """Iterations since the best."""
    step: Int[Array, ""]
    length: Scalar
    """Step length at first; 0 leaves q where it is."""


class Nagvac(eqx.Module):
    """One iteration; ``watched`` are the rows on which the loss is read."""

    ridge: Ridge
    from_prior: bool = eqx.field(static=True)
    fisher: str = eqx.field(static=True)
    validated: bool = eqx.field(static=True)

    def gradient(
        self, key: Key, q: FactorGaussian, precisions: Array, model: MixedModel, rows: Rows
    ) -> tuple[FactorGaussian, tuple[Array, Array, Array]]:
        """Gradient of the ELBO; mean log target and log q, and the number of bad draws."""
        key_theta, key_effects = jax.random.split(key)
        noise = sobol_normals(key_theta, DRAWS, (q.noise_dim,))

        def score(draw: tuple[Key, Array]) -> tuple[Array, Array]:
            value, slope = likelihood_score(*draw, model, rows, EFFECT_DRAWS, self.from_prior)
            prior, pull = jax.value_and_grad(self.ridge.log_prior)(draw[1], precisions)
            return value + prior, slope + pull

        theta = jax.vmap(q.transport)(noise)
        target, slope = jax.lax.map(score, (jax.random.split(key_effects, DRAWS), theta))
        good = jnp.isfinite(target) & jnp.all(jnp.isfinite(slope), axis=1)
        pulled = q.pull_back(noise, jnp.where(good[:, None], slope, 0.0))
        gradient = jax.tree.map(jnp.add, pulled, entropy_gradient(q))
        mean = jnp.sum(jnp.where(good, target, 0.0)) / jnp.maximum(jnp.sum(good), 1)
        return gradient, (mean, jnp.mean(jax.vmap(q.log_density)(theta)), jnp.sum(~good))

    def step(
        self, key: Key, now: Iterate, model: MixedModel, rows: Rows, watched: Rows
    ) -> tuple[Iterate, Info]:
        """One iteration, numbered from 1."""
        step = now.step + 1
        gradient, draws = self.gradient(key, now.q, now.precisions, model, rows)
        direction = METRICS[self.fisher](now.q, gradient)
        norm = tree_norm(direction)
        first = step == 1
        share = jnp.where(first, 1.0, (1 - MOMENTUM) * jnp.minimum(1.0, LONGEST / norm))
        average = jax.tree.map(lambda a, b: MOMENTUM * a + share * b, now.average, direction)
        length = jnp.where(first, 0.0, now.length * jnp.minimum(1.0, HOLD / step))
        moved = now.q.retract(jax.tree.map(lambda x: length * x, average))
        good = jnp.isfinite(tree_norm((moved, average)))
        q = tree_where(good, moved, now.q)
        loss = predictive_loss(q.mean, model, rows, watched)
        adapted = jnp.where(step % ADAPT_EVERY == 0, self.ridge.adapt(q), now.precisions)
        better = loss < now.best_loss if self.validated else jnp.asarray(True)
        rose = (loss >= now.loss) & self.validated
        following = Iterate(
            q,
            tree_where(good & ~rose, average, now.average),
            adapted,
            loss,
            tree_where(better, q, now.best),
            jnp.where(better, loss, now.best_loss),
            jnp.where(better, 0, now.stale + 1),
            step,
            now.length,
        )
        error = now.q.remaining_error(gradient)
        return following, Info(*draws, ~good, tree_norm(gradient), norm, error, exact_solve())


def predictive_loss(
    theta: Float[Array, " m"], model: MixedModel, rows: Rows, watched: Rows
) -> Scalar:
    """Mean -log p(y) of the watched rows, effects at their mode given ``rows``."""
    params = unraveller(model, rows)(theta)
    mode = conditional_mode(model.row_problem(params, rows)).effects
    effects = conjugate.colour(mode, model.precision_factor(params))
    known = rows.in_original_order(effects)[jnp.argsort(watched.original_order)]
    h = watched.features(lambda x: model.features(params, x))
    eta = h @ params.coef + jnp.sum(model.design(h) * watched.expand(known), axis=1)
    log_prob = model.response.log_prob(watched.y, eta, params.dispersion)
    return -watched.total(log_prob) / watched.num_rows
