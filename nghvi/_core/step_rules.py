"""How far to go: named optax chains. Each receives a direction of -ELBO and returns an update.

Every factory is cached, so that equal settings give the same object and nothing is compiled
twice.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from nghvi._linalg.tree import tree_norm
from nghvi._typing import PyTree


class ScaleState(NamedTuple):
    """Steps taken and a switch that silences the rule (0) without compiling another one."""

    step: Int[Array, ""]
    switch: Float[Array, ""]


@functools.lru_cache
def robbins_monro(hold: int) -> optax.GradientTransformation:
    """Step length 1 for ``hold`` steps, then 2/3, 2/4, 2/5, ...: an average of Newton steps.

    With 2 in the numerator what the first steps got wrong is forgotten like 1/t^2 (with 1, like
    1/t) at the price of a third more noise.
    """
    return _scheduled(lambda t: jnp.minimum(1.0, 2.0 / jnp.maximum(t - hold + 3, 1)))


@functools.lru_cache
def constant_then_linear(length: float, num_steps: int) -> optax.GradientTransformation:
    """A constant step for the first half, then linear decay to zero."""
    return _scheduled(lambda t: length * jnp.clip(2 * (1 - t / num_steps), 0.0, 1.0))


def _scheduled(length) -> optax.GradientTransformation:  # type: ignore[no-untyped-def]
    def init(params: PyTree) -> ScaleState:
        return ScaleState(jnp.zeros((), jnp.int32), jnp.ones(()))

    def update(
        direction: PyTree, state: ScaleState, params: PyTree | None = None
    ) -> tuple[PyTree, ScaleState]:
        factor = -state.switch * length(state.step)
        return jax.tree.map(lambda x: factor * x, direction), ScaleState(
            state.step + 1, state.switch
        )

    return optax.GradientTransformation(init, update)


def normalise() -> optax.GradientTransformation:
    """Divide by the norm over all leaves, every step (Algorithm 1, step d, as printed)."""

    def scale(direction: PyTree) -> PyTree:
        norm = tree_norm(direction)
        return jax.tree.map(lambda x: x / jnp.where(norm > 0, norm, 1.0), direction)

    return optax.stateless(lambda direction, params: scale(direction))


def _ema(decay: float) -> optax.GradientTransformation:
    return optax.ema(decay, debias=False)


@functools.lru_cache
def printed_rule(
    momentum: float = 0.6, decay: float = 0.95, eps: float = 1e-6
) -> optax.GradientTransformation:
    """Algorithm 1 as printed: normalise, momentum, ADADELTA."""
    return optax.chain(
        normalise(), _ema(momentum), optax.scale_by_adadelta(decay, eps), optax.scale(-1.0)
    )


@functools.lru_cache
def coded_rule(
    momentum: float = 0.6, decay: float = 0.95, eps: float = 1e-6, longest: float = 50.0
) -> optax.GradientTransformation:
    """Algorithm 1 as coded: clip the norm at 50, momentum, ADADELTA."""
    return optax.chain(
        optax.clip_by_global_norm(longest),
        _ema(momentum),
        optax.scale_by_adadelta(decay, eps),
        optax.scale(-1.0),
    )


@functools.lru_cache
def adadelta_rule(decay: float = 0.95, eps: float = 1e-6) -> optax.GradientTransformation:
    """The ordinary gradient variant: ADADELTA on the raw gradient."""
    return optax.chain(optax.scale_by_adadelta(decay, eps), optax.scale(-1.0))


@functools.lru_cache
def adam_rule(length: float, num_steps: int, hold: float = 0.5) -> optax.GradientTransformation:
    """Adam: constant length for the share ``hold`` of the steps, then a cosine to 1 %."""
    constant = int(hold * num_steps)
    schedule = optax.join_schedules(
        [
            optax.constant_schedule(length),
            optax.cosine_decay_schedule(length, max(num_steps - constant, 1), alpha=0.01),
        ],
        [constant],
    )
    return optax.chain(optax.scale_by_adam(), optax.scale_by_learning_rate(schedule))
