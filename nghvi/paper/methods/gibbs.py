"""Long-run reference draws from the exact posterior of linear, Student-t and probit mixed models.

Chains of blocked Gibbs sweeps (``sweep`` has the equations) run side by side. They mix slowly where
a variance of the effects is near zero or poorly determined, for probit more than for the linear
model, so judge a run by its effective sample size.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from nghvi._core.errors import InputError
from nghvi._programs import program
from nghvi._typing import Key, Scalar
from nghvi.data import LinearStatistics, Rows
from nghvi.models.mixed import MixedModel
from nghvi.paper.methods.sweep import State, covariance, sweep
from nghvi.responses import Gaussian, Probit, StudentT
from nghvi.responses.student_t import NoiseLaw


class GibbsDraws(NamedTuple):
    """Draws with leading axes (chains, draws); groups in the order of their codes."""

    coef: Float[Array, "c s q"]
    noise_var: Float[Array, "c s"]
    """Ones for probit; the squared scale for Student-t."""
    effects_cov: Float[Array, "c s r r"]
    """Omega."""
    effects: Float[Array, "c s k r"] | None
    """None where the effects were not kept."""
    effects_mean: Float[Array, "k r"]
    effects_sd: Float[Array, "k r"]
    degrees: Float[Array, "c s"]
    """Degrees of freedom of the noise: finite for Student-t only."""


class _Running(NamedTuple):
    """Mean of the effects so far and their summed squared deviations from it."""

    number: Scalar
    mean: Float[Array, "k r"]
    squares: Float[Array, "k r"]

    def add(self, values: Float[Array, "k r"]) -> "_Running":
        number = self.number + 1
        mean = self.mean + (values - self.mean) / number
        return _Running(number, mean, self.squares + (values - self.mean) * (values - mean))


def gibbs(
    key: Key,
    model: MixedModel,
    rows: Rows,
    *,
    draws: int = 10_000,
    burn_in: int = 1_000,
    chains: int = 4,
    keep_effects: bool = True,
) -> GibbsDraws:
    """Draw from the posterior of a linear, Student-t or probit mixed model.

    Every chain starts at a random point and makes ``burn_in`` sweeps before its first draw.
    ``keep_effects=False`` saves the memory for chains x draws x groups x effects numbers; the mean
    and sd of every effect are returned in either case.
    """
    _require_supported(model, rows)
    for name, value, least in (("draws", draws, 1), ("burn_in", burn_in, 0), ("chains", chains, 1)):
        if not isinstance(value, int | np.integer) or value < least:
            raise InputError(f"gibbs({name}={value!r}): {name} must be an integer >= {least}.")
    statistics = LinearStatistics.from_rows(rows, model.random)
    linear = isinstance(model.response, Gaussian)
    if not linear:
        # Utilities or weights change with every sweep: there is no fit to centre at.
        statistics = dataclasses.replace(statistics, centre=jnp.zeros_like(statistics.centre))
    sweeps = jnp.ones(draws, int).at[0].add(burn_in)
    keys = jax.random.split(key, chains)
    return _run(keys, sweeps, model, statistics, None if linear else rows, keep_effects)


def _require_supported(model: MixedModel, rows: Rows) -> None:
    if not model.trunk.linear:
        raise InputError(
            "gibbs needs a trunk whose features are the columns themselves, not a "
            f"{type(model.trunk).__name__}: the weights' conditional distribution is not known. "
            "Use Identity(num_inputs), or fit the deep model variationally."
        )
    if not isinstance(model.response, Gaussian | StudentT | Probit):
        raise InputError(
            "gibbs knows the conditional distributions of Gaussian, StudentT and Probit responses, "
            f"not of {type(model.response).__name__}. Use one of them, or fit the model "
            "variationally."
        )
    if rows.x.shape[1] != model.trunk.num_features:
        raise InputError(
            f"the model has {model.trunk.num_features} columns and the data {rows.x.shape[1]}: "
            "build the trunk as Identity(rows.x.shape[1])."
        )
    # The priors check their parameters against the number of effects; nothing is computed.
    jax.eval_shape(lambda: model.log_prior(model.init_params(jax.random.key(0), rows)))


@program
def _run(
    keys: Key,
    sweeps: Int[Array, " s"],
    model: MixedModel,
    statistics: LinearStatistics,
    rows: Rows | None,
    keep_effects: bool,
) -> GibbsDraws:
    """All chains side by side; ``sweeps`` made before each draw. No rows for a linear model."""

    def chain(key: Key) -> tuple[tuple, _Running]:
        def advance(_: Array, carry: tuple[Key, State]) -> tuple[Key, State]:
            key, state = carry
            key, key_sweep = jax.random.split(key)
            return key, sweep(key_sweep, state, model, statistics, rows)

        def record(carry: tuple, count: Array) -> tuple[tuple, tuple]:
            key, state, running = carry
            # Burn-in is a first draw that takes longer: the sweep is compiled once.
            key, state = jax.lax.fori_loop(0, count, advance, (key, state))
            effects = statistics.in_original_order(state.effects)
            kept = effects if keep_effects else None
            omega = covariance(state.precision_factor)
            out = (state.coef, state.noise_var, omega, kept, state.degrees)
            return (key, state, running.add(effects)), out

        key_start, key_sweeps = jax.random.split(key)
        state = _start(key_start, model, statistics, rows)
        nothing = jnp.zeros_like(state.effects)
        running = _Running(jnp.zeros(()), nothing, nothing)
        (_, _, running), out = jax.lax.scan(record, (key_sweeps, state, running), sweeps)
        return out, running

    (coef, noise_var, effects_cov, effects, degrees), running = jax.vmap(chain)(keys)
    mean = jnp.mean(running.mean, axis=0)
    between = jnp.mean((running.mean - mean[None]) ** 2, axis=0)
    within = jnp.mean(running.squares, axis=0) / sweeps.size
    sd = jnp.sqrt(within + between)
    return GibbsDraws(coef, noise_var, effects_cov, effects, mean, sd, degrees)


def _start(key: Key, model: MixedModel, statistics: LinearStatistics, rows: Rows | None) -> State:
    """A start that differs between chains by a factor of e or so in every variance."""
    # Without weights to draw, the initial parameters make no use of the key.
    params = model.init_params(key, statistics if rows is None else rows)
    noise = jax.random.normal(key, (1 + params.effects.size,))
    factor = model.precision_factor(params._replace(effects=params.effects + noise[1:]))
    noisy = model.response.num_dispersion > 0
    noise_var = jnp.exp(params.dispersion[0] + noise[0]) if noisy else jnp.ones(())
    heavy = isinstance(model.response, StudentT)
    degrees = NoiseLaw.of(params.dispersion).degrees if heavy else jnp.full((), jnp.inf)
    effects = jnp.zeros((statistics.num_groups, model.num_effects))
    return State(params.coef, effects, noise_var, factor, degrees)
