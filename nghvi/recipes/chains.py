"""Draws of a small network, moved from q towards its posterior by Hamiltonian chains.

The posterior of a network has many modes, of which q describes one or two, and only those that
climbs find. Chains that begin at draws of q leave them. With a momentum p ~ N(0, I), sds S of q and
g the gradient of log p(y, theta), a transition repeats a few times::

    p += (e / 2) S g(theta),    theta += e S p,    p += (e / 2) S g(theta)

and the end is taken with probability min(1, exp(H - H')), H = p'p / 2 - log p(y, theta), and the
old theta otherwise. This leaves the posterior as it is, so that it cannot take the distribution of
the draws farther away from the posterior, however short the chains are. The step e is adapted
during the first transitions, whose draws are left out.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from nghvi._core.draws import flat_normal
from nghvi._core.evaluate import evaluation_size
from nghvi._core.model import LatentModel, MarginalModel, unraveller
from nghvi._core.variational import Variational
from nghvi._programs import program
from nghvi._typing import Data, Key
from nghvi.families import Mixture
from nghvi.models.collapsed import Collapsed
from nghvi.recipes.deep import is_used
from nghvi.recipes.importance import Pool
from nghvi.recipes.settings import Settings

CHAINS, TRANSITIONS, LEFT_OUT = 40, 40, 16
"""Number of chains, of transitions of each, and of the first ones, whose draws are left out."""
AT_ONCE = 8
"""Number of transitions per call of the program: Ctrl-C is heard between calls."""
FEWEST, MOST = 12, 24
"""Number of steps in a transition, which varies lest chains return to where they began."""
ACCEPTED, ADAPTATION, JITTER = 0.8, 0.3, 0.3
"""Share of transitions that should be accepted, how fast log e follows it, and by what share the
steps of single chains differ from e."""
FIRST_STEP = 0.2
"""The first e: sds of q are those given the other coordinates, which bound stable steps."""
LARGEST_DIMENSION, LARGEST_EVALUATION = 100, 5_000
"""Numbers of parameters, and numbers touched by one evaluation, beyond which chains would take many
times as long as the fit."""


class Chains(NamedTuple):
    """Where all chains are, and the logarithm of e."""

    theta: Float[Array, "c m"]
    log_step: Float[Array, ""]


def chains_suit(settings: Settings, model: LatentModel, data: Data, q: Variational) -> bool:
    """Return whether chains should move the draws: those of small networks that are in use.

    A fit of so many steps as were asked for is left as it is.
    """
    if settings.steps is not None or not isinstance(model, Collapsed):
        return False
    small = q.dim <= LARGEST_DIMENSION and evaluation_size(model, data) <= LARGEST_EVALUATION
    return small and is_used(model, data, q)


def moved_pool(
    key: Key, q: Variational, model: MarginalModel, data: Data, log_evidence: float = np.nan
) -> Pool:
    """Return draws that chains from draws of q have reached.

    ``member`` of the pool tells from which member of a mixture the chain of a draw came;
    ``log_evidence`` is what draws of q say.
    """
    chains, unit, member = _begun(jax.random.fold_in(key, 0), q)
    reached = []
    for first in range(0, TRANSITIONS, AT_ONCE):
        adapts = jax.device_put(np.asarray(ADAPTATION * (first < LEFT_OUT)))
        chains, theta = _continued(
            jax.random.fold_in(key, 1 + first), chains, unit, adapts, model, data
        )
        reached.append(np.asarray(theta))
    draws = np.concatenate(reached)[LEFT_OUT:]
    pool = Pool.plain(draws.reshape(-1, q.dim))._replace(chains=CHAINS, log_evidence=log_evidence)
    if not isinstance(q, Mixture):
        return pool
    return pool._replace(member=np.tile(np.asarray(member), len(draws)))


@program
def _begun(key: Key, q: Variational) -> tuple[Chains, Float[Array, " m"], Int[Array, " c"]]:
    """Return chains at draws of q, the sds of its first member, and the member of each draw."""
    theta = jax.vmap(q.transport)(flat_normal(key, (CHAINS, q.noise_dim)))
    begun = Chains(theta, jnp.log(FIRST_STEP))
    if not isinstance(q, Mixture):
        return begun, q.standard_deviation(), jnp.zeros(CHAINS, int)
    return begun, q.members[0].standard_deviation(), q.member_of(theta)


@program
def _continued(
    key: Key,
    chains: Chains,
    unit: Float[Array, " m"],
    adaptation: Float[Array, ""],
    model: MarginalModel,
    data: Data,
) -> tuple[Chains, Float[Array, "t c m"]]:
    """Return the chains after some transitions, and their draws after each of them."""
    unravel = unraveller(model, data)
    density = jax.vmap(jax.value_and_grad(lambda theta: model.log_marginal(unravel(theta), data)))

    def transition(chains: Chains, key: Key) -> tuple[Chains, Array]:
        of_momentum, of_steps, of_number, of_choice = jax.random.split(key, 4)
        start, number = chains.theta, len(chains.theta)
        momentum = flat_normal(of_momentum, start.shape)
        jitter = 1 + JITTER * jax.random.uniform(of_steps, (number, 1), minval=-1.0)
        steps = jax.random.randint(of_number, (), FEWEST, MOST + 1)

        def leap(i: Array, state: tuple) -> tuple:
            theta, p, slope, before, _ = state
            e = jnp.where(i == 0, 0.0, jitter * jnp.exp(chains.log_step)) * unit  # 0: for the slope
            p = p + 0.5 * e * slope
            theta = theta + e * p
            value, slope = density(theta)
            return theta, p + 0.5 * e * slope, slope, jnp.where(i == 0, value, before), value

        nothing = jnp.zeros(number)
        begin = (start, momentum, jnp.zeros_like(start), nothing, nothing)
        end, p, _, before, after = jax.lax.fori_loop(0, steps + 1, leap, begin)
        gain = after - before + 0.5 * jnp.sum(momentum**2 - p**2, axis=1)
        probability = jnp.exp(jnp.minimum(jnp.where(jnp.isnan(gain), -jnp.inf, gain), 0.0))
        taken = jax.random.uniform(of_choice, (number,)) < probability
        theta = jnp.where(taken[:, None], end, start)
        follow = adaptation * (jnp.mean(probability) - ACCEPTED)
        return Chains(theta, chains.log_step + follow), theta

    return jax.lax.scan(transition, chains, jax.random.split(key, AT_ONCE))
