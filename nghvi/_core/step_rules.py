"""How far to go: step rules, which receive a direction of -ELBO and return an update.

Every factory of an optax chain is cached, so that equal settings give the same object and nothing
is compiled twice.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from nghvi._linalg.tree import tree_norm
from nghvi._typing import PyTree


class ScaleState(NamedTuple):
    """Number of steps taken, and a switch that silences the rule (0) without recompiling it."""

    step: Int[Array, ""]
    switch: Float[Array, ""]


@functools.lru_cache
def robbins_monro(hold: int) -> optax.GradientTransformation:
    """Return the rule with length 1 for ``hold`` steps, then 2/3, 2/4, 2/5, ...

    It averages Newton steps. With 2 in the numerator, the errors of the first steps are forgotten
    like 1/t^2 (with 1, like 1/t), at the price of a third more noise.
    """
    return _scheduled(lambda step: robbins_monro_length(step, hold))


def robbins_monro_length(step: Int[Array, ""] | int, hold: int) -> Float[Array, ""]:
    """Return the length of step number ``step``, counted from 0."""
    return jnp.minimum(1.0, 2.0 / jnp.maximum(step - hold + 3, 1))


def _scheduled(length: Callable[[Array], Array]) -> optax.GradientTransformation:
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
    """Return the rule that divides by the norm of all leaves (Algorithm 1, step d, as printed)."""

    def scale(direction: PyTree) -> PyTree:
        norm = tree_norm(direction)
        return jax.tree.map(lambda x: x / jnp.where(norm > 0, norm, 1.0), direction)

    return optax.stateless(lambda direction, params: scale(direction))


@functools.lru_cache
def published_rule(
    momentum: float,
    learning_rate: float | None,
    decay: float,
    epsilon: float,
    longest: float | str | None = None,
) -> optax.GradientTransformation:
    """Return the rule that bounds the direction, averages it, and then scales it.

    ``momentum``: weight of the running average of directions; ``learning_rate``: None scales by
    ADADELTA, with ``decay`` and ``epsilon``; ``longest``: the length to which longer directions are
    cut, ``"normalise"`` to bring all of them to length 1, or None to leave them.
    """
    if isinstance(longest, str):
        bound = [normalise()]
    else:
        bound = [] if longest is None else [optax.clip_by_global_norm(longest)]
    average = [optax.ema(momentum, debias=False)] if momentum else []
    if learning_rate is None:
        length = [optax.scale_by_adadelta(decay, epsilon), optax.scale(-1.0)]
    else:
        length = [optax.scale(-learning_rate)]
    return optax.chain(*bound, *average, *length)


class Adam(eqx.Module):
    """Adam with constant length for the share ``hold`` of the steps, then a cosine down to 1 %.

    Its numbers are data, not code, so stages that differ only in them share one program.
    """

    length: float | Array = eqx.field(converter=jnp.asarray)
    num_steps: float | Array = eqx.field(converter=jnp.asarray)
    hold: float | Array = eqx.field(converter=jnp.asarray)

    def init(self, params: PyTree) -> PyTree:
        """Return the state before the first step."""
        return _ADAM.init(params)

    def update(
        self, direction: PyTree, state: PyTree, params: PyTree | None = None
    ) -> tuple[PyTree, PyTree]:
        """Return the update and the next state."""
        scaled, following = _ADAM.update(direction, state)
        factor = -self.length * _falling(state.count / self.num_steps, self.hold)
        return jax.tree.map(lambda x: factor * x, scaled), following


class NaturalState(NamedTuple):
    """Running average of the mean's natural gradients, and the number of steps taken."""

    momentum: Float[Array, " m"]
    step: Int[Array, ""]


class NaturalSteps(eqx.Module):
    """Natural gradient steps of a diagonal Gaussian in its own units: mean / sd and log sd.

    In these units the Fisher matrix is the identity for the mean and twice that for the log sds.
    The mean moves by ``length`` times an average of natural gradients whose norm is at most
    sqrt(m); the log sds move by ``widening`` times theirs, by a quarter at most. Both lengths are
    constant for the share ``hold`` of the steps and then fall along a cosine to 1 %.
    """

    length: float | Array = eqx.field(converter=jnp.asarray)
    widening: float | Array = eqx.field(converter=jnp.asarray)
    num_steps: float | Array = eqx.field(converter=jnp.asarray)
    hold: float | Array = eqx.field(converter=jnp.asarray)

    def init(self, params: PyTree) -> NaturalState:
        """Return the state before the first step."""
        return NaturalState(jnp.zeros_like(params.mean), jnp.zeros((), int))

    def update(
        self, direction: PyTree, state: NaturalState, params: PyTree | None = None
    ) -> tuple[PyTree, NaturalState]:
        """Return the update and the next state."""
        momentum = MEMORY * state.momentum + (1 - MEMORY) * direction.mean
        average = momentum / (1 - MEMORY ** (state.step + 1.0))
        longest = jnp.sqrt(average.size) / (jnp.linalg.norm(average) + 1e-30)
        share = _falling(state.step / self.num_steps, self.hold)
        mean = -self.length * share * jnp.minimum(1.0, longest) * average
        scale = jnp.clip(-0.5 * self.widening * share * direction.scale, -0.25, 0.25)
        update = dataclasses.replace(direction, mean=mean, scale=scale)
        return update, NaturalState(momentum, state.step + 1)


MEMORY = 0.9
"""Weight of the past in the running average of :class:`NaturalSteps`."""


def _falling(done: float | Array, hold: float | Array) -> Array:
    """Return 1 up to the share ``hold`` of the steps, then a cosine that falls to 0.01."""
    left = jnp.clip((done - hold) / (1 - hold), 0.0, 1.0)
    return 0.01 + 0.99 * 0.5 * (1 + jnp.cos(jnp.pi * left))


_ADAM = optax.scale_by_adam()
