"""Algorithm 1: one step of hybrid variational inference.

The gradient of the ELBO is taken along the path (the score of q at fixed lambda), so that its
noise vanishes as q approaches the posterior::

    grad_lambda ELBO = E[ (d theta / d lambda)' (grad log g(theta, z) - grad log q(theta)) ]

Signs: optax minimises, so gradients and directions are those of -ELBO.
"""

from typing import Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from nghvi._core.direction import Direction
from nghvi._core.draws import DrawScheme
from nghvi._core.model import LatentModel
from nghvi._core.score import Score
from nghvi._core.step_rules import Adam, NaturalSteps
from nghvi._core.variational import RemainingError, Variational
from nghvi._linalg.tree import SolveInfo, map_in_parts, materialise, tree_norm, tree_where
from nghvi._typing import Data, Key, Latents, PyTree

Q = TypeVar("Q", bound=Variational)


class State(NamedTuple, Generic[Q]):
    """What the next step needs: q, the latents of every draw, and the state of the step rule."""

    q: Q
    latents: Latents
    rule: PyTree


class Info(NamedTuple):
    """What a step records for the trace of a run."""

    log_target: Float[Array, ""]
    """Mean over the good draws of the log target that the score rule returns."""
    log_q: Float[Array, ""]
    bad_draws: Int[Array, ""]
    """Number of draws at which the density or its gradient was not finite."""
    rejected: Bool[Array, ""]
    """Whether the step led to numbers that are not finite, and so was not taken."""
    gradient_norm: Float[Array, ""]
    direction_norm: Float[Array, ""]
    remaining: RemainingError
    solve: SolveInfo


class HybridVI(eqx.Module):
    """An algorithm, made of four choices: draws, score, direction and step rule."""

    draws: DrawScheme
    score: Score
    direction: Direction
    step_rule: optax.GradientTransformation | Adam | NaturalSteps
    batch: int | None = eqx.field(static=True, default=None)
    """Number of draws evaluated side by side; None means all. It bounds memory, nothing else."""
    every_error: bool = eqx.field(static=True, default=False)
    """Whether to trace the remaining error of every coordinate, not only the largest one."""

    def init(self, key: Key, model: LatentModel, data: Data, q: Q) -> State[Q]:
        """Return the state before the first step."""
        latents = jax.vmap(
            lambda key: self.score.init_latents(
                key, q.transport(jnp.zeros(q.noise_dim)), model, data
            )
        )(jax.random.split(key, self.draws.count(q.noise_dim)))
        return State(q, latents, self.step_rule.init(q))

    def step(
        self, key: Key, state: State[Q], model: LatentModel, data: Data
    ) -> tuple[State[Q], Info]:
        """Take one step of Algorithm 1; return the next state and what to record."""
        q = state.q
        gradient, latents, draws = self.gradient(key, q, state.latents, model, data)  # (a), (b)
        direction, solve = self.direction(q, gradient)  # (c)
        update, rule = self.step_rule.update(direction, state.rule, q)  # (d), (e)
        moved = q.retract(self.direction.push(q, update))  # (f)
        # A step to numbers that are not finite is not taken: the last good state survives.
        good = jnp.isfinite(tree_norm(moved))
        moved, rule = tree_where(good, moved, q), tree_where(good, rule, state.rule)
        error = q.remaining_error(gradient)
        if error is None:
            unknown = jnp.full(q.dim, jnp.nan)
            error = RemainingError(unknown, unknown)
        error = error if self.every_error else error.largest()
        info = Info(*draws, ~good, tree_norm(gradient), tree_norm(direction), error, solve)
        return State(moved, latents, rule), info

    def gradient(
        self, key: Key, q: Q, latents: Latents, model: LatentModel, data: Data
    ) -> tuple[Q, Latents, tuple[Array, Array, Array]]:
        """Return the gradient of -ELBO in lambda, new latents, and figures for the trace.

        The figures are log target, log q and the number of bad draws.
        """
        key_theta, key_latents = jax.random.split(key)
        noise = self.draws(key_theta, q.noise_dim)
        theta = materialise(jax.vmap(q.transport)(noise))  # (a) theta = h(noise, lambda)
        log_target, score, latents = self._scores(key_latents, theta, latents, model, data)  # (b)
        log_q, score_q = jax.vmap(jax.value_and_grad(q.log_density))(theta)
        good = jnp.isfinite(log_target) & jnp.all(jnp.isfinite(score), axis=1)
        # All means are over the good draws; ``pull_back`` divides by the number of all.
        number = jnp.maximum(jnp.sum(good), 1)
        residual = jnp.where(good[:, None], score_q - score, 0.0) * (good.size / number)
        target, log_q = (jnp.sum(jnp.where(good, x, 0.0)) / number for x in (log_target, log_q))
        return q.pull_back(noise, residual), latents, (target, log_q, jnp.sum(~good))

    def _scores(
        self, key: Key, theta: Array, latents: Latents, model: LatentModel, data: Data
    ) -> tuple[Array, Array, Latents]:
        """Apply the score rule to every draw, at most ``batch`` of them side by side."""

        def one(draw: tuple) -> tuple:
            return self.score(draw[0], draw[1], draw[2], model, data)

        draws = (jax.random.split(key, theta.shape[0]), theta, latents)
        return map_in_parts(one, draws, self.batch or theta.shape[0])
