"""Long-run reference draws from the exact posterior of linear and probit mixed models.

Blocked Gibbs sampling. One sweep, with noise variance v (1 for probit), Omega^-1 = L L',
G_k = Z_k'Z_k, D_k = Z_k'X_k, and y for probit standing for the latent utilities y*::

    y*_i | beta, alpha    ~ N(eta_i, 1) truncated to the side of y_i             (probit only)
    beta | y, v, Omega    ~ N(P^-1 p, P^-1),       the effects integrated out:
        P = X'X / v + I / sd^2 - sum_k F_k'F_k,    p = X'y / v - sum_k F_k'f_k
        F_k = R_k^-1 L^-1 D_k / v,                 f_k = R_k^-1 L^-1 Z_k'y_k / v
        R_k R_k' = I + L^-1 G_k L^-T / v
    alpha_k | beta, y, .. = L^-T u_k,   u_k ~ N(R_k^-T (f_k - F_k beta), (R_k R_k')^-1)
    Omega | alpha                       by its prior: see variance_draws
    v | y, beta, alpha                  by its prior, from |y - X beta - Z alpha|^2 (linear only)

Drawing beta without conditioning on the effects keeps the two from holding each other in
place. The linear model sees the data through cross products only, so that a sweep's cost does
not depend on the number of rows. Draws move slowly where a variance of the effects is near
zero or badly determined, for probit more than for the linear model: judge a run by its
effective sample size.
"""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int

from nghvi._linalg import small
from nghvi._special import positive_normal
from nghvi._typing import Key, Scalar
from nghvi.baselines.variance_draws import draw_precision_factor, draw_variances
from nghvi.data.grouped import LinearStatistics, Rows
from nghvi.latents import conjugate
from nghvi.models.mixed import MixedModel
from nghvi.networks import Identity
from nghvi.responses import Gaussian, Probit


class GibbsDraws(NamedTuple):
    """Draws with leading axes (chains, draws); groups in the order of their codes."""

    coef: Float[Array, "c s q"]
    noise_var: Float[Array, "c s"]
    """Ones for probit."""
    effects_cov: Float[Array, "c s r r"]
    """Omega."""
    effects: Float[Array, "c s k r"] | None
    """None where the effects were not kept."""
    effects_mean: Float[Array, "k r"]
    effects_sd: Float[Array, "k r"]


class _State(NamedTuple):
    coef: Float[Array, " q"]
    effects: Float[Array, "k r"]
    """In memory order."""
    noise_var: Scalar
    precision_factor: Float[Array, "r r"]


class _Running(NamedTuple):
    """Mean of the effects so far and their summed squared deviations from it."""

    count: Scalar
    mean: Float[Array, "k r"]
    squares: Float[Array, "k r"]

    def add(self, values: Float[Array, "k r"]) -> "_Running":
        count = self.count + 1
        mean = self.mean + (values - self.mean) / count
        return _Running(count, mean, self.squares + (values - self.mean) * (values - mean))


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
    """Draw from the posterior of a linear or probit mixed model.

    Every chain starts at a random point and makes ``burn_in`` sweeps before its first draw.
    ``keep_effects=False`` saves the memory of chains x draws x groups x effects numbers; mean
    and sd of every effect are given in either case.
    """
    _require_supported(model, rows)
    for name, value, least in (("draws", draws, 1), ("burn_in", burn_in, 0), ("chains", chains, 1)):
        if value != int(value) or value < least:
            raise ValueError(f"gibbs({name}={value!r}): {name} must be an integer >= {least}.")
    statistics = LinearStatistics.from_rows(rows, model.random)
    linear = isinstance(model.response, Gaussian)
    if not linear:
        # Utilities take the place of y and change with every sweep: there is no fit to centre at.
        statistics = dataclasses.replace(statistics, centre=jnp.zeros_like(statistics.centre))
    sweeps = jnp.ones(int(draws), int).at[0].add(int(burn_in))
    keys = jax.random.split(key, int(chains))
    return _run(keys, sweeps, model, statistics, None if linear else rows, keep_effects)


def _require_supported(model: MixedModel, rows: Rows) -> None:
    if not isinstance(model.trunk, Identity):
        raise ValueError(
            f"gibbs needs a trunk whose features are the columns themselves, not a "
            f"{type(model.trunk).__name__}: the weights' conditional distribution is not known. "
            "Use Identity(num_inputs), or fit the deep model variationally."
        )
    if not isinstance(model.response, Gaussian | Probit):
        raise ValueError(
            f"gibbs knows the conditional distributions of Gaussian and Probit responses, not of "
            f"{type(model.response).__name__}. Use one of those two, or fit the model variationally."
        )
    if rows.x.shape[1] != model.trunk.num_features:
        raise ValueError(
            f"the model has {model.trunk.num_features} columns and the data {rows.x.shape[1]}: "
            "build the trunk as Identity(rows.x.shape[1])."
        )
    # The priors check their parameters against the number of effects; nothing is computed.
    jax.eval_shape(lambda: model.log_prior(model.init_params(jax.random.key(0), rows)))


@eqx.filter_jit
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
        def advance(_: Array, carry: tuple[Key, _State]) -> tuple[Key, _State]:
            key, state = carry
            key, key_sweep = jax.random.split(key)
            return key, _sweep(key_sweep, state, model, statistics, rows)

        def record(carry: tuple, count: Array) -> tuple[tuple, tuple]:
            key, state, running = carry
            # Burn-in is a first draw that takes longer: the sweep is compiled once.
            key, state = jax.lax.fori_loop(0, count, advance, (key, state))
            effects = statistics.in_original_order(state.effects)
            kept = effects if keep_effects else None
            out = (state.coef, state.noise_var, _covariance(state.precision_factor), kept)
            return (key, state, running.add(effects)), out

        key_start, key_sweeps = jax.random.split(key)
        state = _start(key_start, model, statistics, rows)
        nothing = jnp.zeros_like(state.effects)
        running = _Running(jnp.zeros(()), nothing, nothing)
        (_, _, running), out = jax.lax.scan(record, (key_sweeps, state, running), sweeps)
        return out, running

    out, running = jax.vmap(chain)(keys)
    mean = jnp.mean(running.mean, axis=0)
    between = jnp.mean((running.mean - mean[None]) ** 2, axis=0)
    within = jnp.mean(running.squares, axis=0) / sweeps.size
    return GibbsDraws(*out, mean, jnp.sqrt(within + between))


def _start(key: Key, model: MixedModel, statistics: LinearStatistics, rows: Rows | None) -> _State:
    """A start that differs between chains by a factor of e or so in every variance."""
    key_params, key_noise, key_effects = jax.random.split(key, 3)
    params = model.init_params(key_params, statistics if rows is None else rows)
    free = params.effects + jax.random.normal(key_effects, params.effects.shape)
    noise_var = jnp.ones(())
    if rows is None:
        noise_var = jnp.exp(params.dispersion[0] + jax.random.normal(key_noise))
    factor = model.precision_factor(params._replace(effects=free))
    effects = jnp.zeros((statistics.num_groups, model.num_effects))
    return _State(params.coef, effects, noise_var, factor)


def _sweep(
    key: Key,
    state: _State,
    model: MixedModel,
    statistics: LinearStatistics,
    rows: Rows | None,
) -> _State:
    """One pass over all conditional distributions."""
    key_utility, key_location, key_effects, key_noise = jax.random.split(key, 4)
    if rows is not None:
        statistics = _augment(key_utility, state, model, statistics, rows)
    coef, effects = _draw_location(key_location, state, model, statistics)
    factor, noise_var = state.precision_factor, state.noise_var
    if model.num_effects > 0:
        factor = draw_precision_factor(key_effects, model.priors.effects, factor, effects)
    if isinstance(model.response, Gaussian):
        squares = _residual_squares(coef, effects, model, statistics)
        noise_var = draw_variances(
            key_noise, model.response.noise, noise_var, squares, statistics.num_rows
        )
    return _State(coef, effects, noise_var, factor)


def _augment(
    key: Key, state: _State, model: MixedModel, statistics: LinearStatistics, rows: Rows
) -> LinearStatistics:
    """The statistics with newly drawn utilities in the place of y."""
    sign = 2 * rows.y - 1
    eta = rows.x @ state.coef
    design = model.design(rows.x)
    if model.num_effects > 0:
        eta = eta + jnp.sum(design * rows.expand(state.effects), axis=1)
    utility = rows.masked(sign * positive_normal(key, sign * eta))
    statistics = dataclasses.replace(statistics, cross_total=rows.x.T @ utility)
    if model.num_effects == 0:
        return statistics
    cross = rows.sum(design * utility[:, None]).T
    return dataclasses.replace(statistics, effects_cross=cross)


def _draw_location(
    key: Key, state: _State, model: MixedModel, statistics: LinearStatistics
) -> tuple[Float[Array, " q"], Float[Array, "k r"]]:
    """Coefficients with the effects integrated out, then the effects given them.

    The statistics hold residuals about ``centre`` for y, so the draw is of beta - centre.
    """
    key_coef, key_effects = jax.random.split(key)
    noise_var, factor = state.noise_var, state.precision_factor
    prior_precision = model.priors.coef_sd**-2
    eye = jnp.eye(statistics.centre.size)
    precision = statistics.gram_total / noise_var + prior_precision * eye
    right = statistics.cross_total / noise_var - prior_precision * statistics.centre
    if model.num_effects == 0:
        delta = _normal_from_precision(key_coef, precision, right)
        return statistics.centre + delta, state.effects
    conditional = conjugate.condition(
        statistics.effects_gram, statistics.effects_cross, noise_var, factor
    )
    inverse = solve_triangular(factor, jnp.eye(model.num_effects), lower=True)
    whitened = jnp.einsum("ij,jqk->iqk", inverse / noise_var, statistics.effects_design)
    design = jax.vmap(lambda column: small.solve_lower(conditional.root, column), 1, 1)(whitened)
    precision = precision - jnp.einsum("iqk,ipk->qp", design, design)
    right = right - jnp.einsum("iqk,ik->q", design, conditional.forward)
    delta = _normal_from_precision(key_coef, precision, right)
    forward = conditional.forward - jnp.einsum("iqk,q->ik", design, delta)
    effects = conjugate.sample(key_effects, conditional._replace(forward=forward), factor)
    return statistics.centre + delta, effects


def _normal_from_precision(
    key: Key, precision: Float[Array, "q q"], right: Float[Array, " q"]
) -> Float[Array, " q"]:
    """A draw of N(P^-1 p, P^-1)."""
    root = jnp.linalg.cholesky(precision)
    forward = solve_triangular(root, right, lower=True) + jax.random.normal(key, right.shape)
    return solve_triangular(root, forward, lower=True, trans=1)


def _residual_squares(
    coef: Float[Array, " q"],
    effects: Float[Array, "k r"],
    model: MixedModel,
    statistics: LinearStatistics,
) -> Scalar:
    """|y - X beta - Z alpha|^2 from the statistics."""
    moments = statistics.moments(lambda x: x, coef, model.random)
    if model.num_effects == 0:
        return moments.square
    fitted = jnp.einsum("ijk,kj->ik", moments.gram, effects)
    # A perfect fit leaves rounding of either sign; a variance needs a sum that is not negative.
    return jnp.maximum(moments.square + jnp.sum(effects.T * (fitted - 2 * moments.cross)), 0.0)


def _covariance(factor: Float[Array, "r r"]) -> Float[Array, "r r"]:
    """Omega = (L L')^-1."""
    inverse = solve_triangular(factor, jnp.eye(factor.shape[0]), lower=True)
    return inverse.T @ inverse
