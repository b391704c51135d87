"""One sweep of blocked Gibbs sampling: the conditional distributions.

With noise variance v (1 for probit), Omega^-1 = L L', G_k = Z_k'Z_k, D_k = Z_k'X_k, y for
probit standing for the latent utilities y*, and for Student-t every row and sum of squares
weighted by w::

    y*_i | beta, alpha    ~ N(eta_i, 1) truncated to the side of y_i             (probit only)
    nu | e, v             three Metropolis moves, w integrated out            (Student-t only)
    w_i | e, v, nu        ~ Gamma((nu + 1) / 2, rate (nu + e_i^2 / v) / 2),   e = y - eta
    beta | y, v, Omega    ~ N(P^-1 p, P^-1),       the effects integrated out:
        P = X'X / v + I / sd^2 - sum_k F_k'F_k,    p = X'y / v - sum_k F_k'f_k
        F_k = R_k^-1 L^-1 D_k / v,                 f_k = R_k^-1 L^-1 Z_k'y_k / v
        R_k R_k' = I + L^-1 G_k L^-T / v
    alpha_k | beta, y, .. = L^-T u_k,   u_k ~ N(R_k^-T (f_k - F_k beta), (R_k R_k')^-1)
    Omega | alpha                       by its prior: see below
    v | y, beta, alpha                  by its prior, from |y - X beta - Z alpha|^2 (not probit)

Drawing beta without conditioning on the effects keeps the two from holding each other in
place. The linear model sees the data through cross products only, so that a sweep's cost does
not depend on the number of rows.

**Variances and the effects' precision**, one rule for each prior. With S = sum_k alpha_k alpha_k'
over K groups, W = Omega^-1, and v one variance with m squares that sum to s (the noise: residuals;
an independent effect j: m = K, s = S_jj)::

    InverseGamma(a, b)      v | s      ~ IG(a + m/2, b + s/2)
    HalfT(d, A, floor f)    c | v      ~ IG((d + 1)/2, d/v + A^-2)
                            v | c, s   ~ IG((d + m)/2, d/c + s/2 + f^2)
    WishartPrecision(t, d)  W | S      ~ Wishart(d + K, (I/t + S)^-1)
    HuangWand(d, A)         c_j | W    ~ IG((d + r)/2, d W_jj + A^-2)
                            W | c, S   ~ Wishart(d + r - 1 + K, (2 d diag(1/c) + S)^-1)

IG(a, b) has density prop. to v^-(a+1) exp(-b/v). The auxiliary c is drawn afresh from the
present v or W each time, so it is not part of a sampler's state.

All randomness but a few normals is gamma variates of unit scale whose shapes are known
beforehand: b / gamma_a is IG(a, b), and Bartlett's decomposition of a Wishart matrix has roots
of chi^2 = 2 gamma variates on its diagonal. All are drawn in one call, because every call of the
rejection sampler adds about as much to compile as the rest of a sweep.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from nghvi._linalg import small
from nghvi._special import positive_normal
from nghvi._typing import Key, Scalar
from nghvi.data import LinearStatistics, Rows
from nghvi.latents import conjugate
from nghvi.latents.augment import draw_precision
from nghvi.models.mixed import MixedModel
from nghvi.priors import HalfT, HuangWand, InverseGamma, WishartPrecision
from nghvi.responses import Probit, StudentT
from nghvi.responses.student_t import NoiseLaw


def variance_shapes(
    prior: InverseGamma | HalfT, size: int, count: float | Float[Array, ""]
) -> Float[Array, "s size"]:
    """Shapes of the gamma variates for ``size`` variances with ``count`` squares each."""
    if isinstance(prior, InverseGamma):
        return jnp.full((1, size), prior.shape + 0.5 * count)
    halves = 0.5 * (prior.df + jnp.array([1.0, count]))
    return jnp.broadcast_to(halves[:, None], (2, size))


def draw_variances(
    gammas: Float[Array, "s size"],
    prior: InverseGamma | HalfT,
    current: Float[Array, " size"],
    squares: Float[Array, " size"],
) -> Float[Array, " size"]:
    """Variances given the sums of squares of centred normals with those variances."""
    if isinstance(prior, InverseGamma):
        return (prior.scale + 0.5 * squares) / gammas[0]
    auxiliary = (prior.df / current + jnp.asarray(prior.scale) ** -2.0) / gammas[0]
    return (prior.df / auxiliary + 0.5 * squares + prior.floor**2) / gammas[1]


def precision_shapes(
    prior: InverseGamma | HalfT | WishartPrecision | HuangWand, r: int, num_groups: int
) -> Float[Array, "s r"]:
    """Shapes of the gamma variates for the precision of r effects."""
    if isinstance(prior, InverseGamma | HalfT):
        return variance_shapes(prior, r, num_groups)
    if isinstance(prior, WishartPrecision):
        df = r + 1 if prior.df is None else prior.df
        return _bartlett_shapes(df + num_groups, r)[None]
    auxiliary = jnp.full(r, 0.5 * (prior.df + r))
    return jnp.stack([auxiliary, _bartlett_shapes(prior.df + r - 1 + num_groups, r)])


def draw_precision_factor(
    gammas: Float[Array, "s r"],
    normals: Float[Array, "r r"],
    prior: InverseGamma | HalfT | WishartPrecision | HuangWand,
    current: Float[Array, "r r"],
    effects: Float[Array, "k r"],
) -> Float[Array, "r r"]:
    """Lower triangular L with Omega^-1 = L L', given the effects and the present L."""
    if isinstance(prior, InverseGamma | HalfT):
        present = jnp.diagonal(current) ** -2
        variances = draw_variances(gammas, prior, present, jnp.sum(effects**2, axis=0))
        return jnp.diag(variances**-0.5)
    scatter = effects.T @ effects
    if isinstance(prior, WishartPrecision):
        return _wishart_root(gammas[0], normals, jnp.eye(len(scatter)) / prior.scale + scatter)
    diagonal = jnp.sum(current**2, axis=1)
    auxiliary = (prior.df * diagonal + jnp.asarray(prior.scale) ** -2.0) / gammas[0]
    return _wishart_root(gammas[1], normals, jnp.diag(2 * prior.df / auxiliary) + scatter)


def _bartlett_shapes(df: float, r: int) -> Float[Array, " r"]:
    """Half the degrees of freedom df, df - 1, ... on the diagonal."""
    return 0.5 * (df - jnp.arange(r))


def _wishart_root(
    gammas: Float[Array, " r"], normals: Float[Array, "r r"], rate: Float[Array, "r r"]
) -> Float[Array, "r r"]:
    """Lower triangular L with L L' ~ Wishart(df, rate^-1), df set by the gammas' shapes."""
    standard = jnp.tril(normals, -1) + jnp.diag(jnp.sqrt(2 * gammas))
    # rate = U U' with U upper triangular (a Cholesky factor with rows and columns reversed):
    # then rate^-1 = U^-T U^-1 has a lower triangular root, and so has the draw. Inverting the
    # rate, or squaring the draw to factorise it again, would lose half the digits.
    upper = jnp.linalg.cholesky(rate[::-1, ::-1])[::-1, ::-1]
    return solve_triangular(upper, standard, lower=False, trans=1)


MOVES = (0.1, 0.4, 1.5)
"""Sds of the moves of log nu or so: one of them suits any number of rows."""


class State(NamedTuple):
    """Where a chain stands between two sweeps."""

    coef: Float[Array, " q"]
    effects: Float[Array, "k r"]
    """In memory order."""
    noise_var: Scalar
    precision_factor: Float[Array, "r r"]
    degrees: Scalar
    """Degrees of freedom of the noise: finite for Student-t only."""


class Noise(NamedTuple):
    """The random numbers of one sweep, except for those of every row."""

    coef: Float[Array, " q"]
    effects: Float[Array, "r k"]
    precision: Float[Array, "r r"]
    precision_gammas: Float[Array, "s r"]
    variance_gammas: Float[Array, "t 1"]


def sweep(
    key: Key, state: State, model: MixedModel, statistics: LinearStatistics, rows: Rows | None
) -> State:
    """One pass over all conditional distributions."""
    key_rows, key_noise = jax.random.split(key)
    if rows is not None and isinstance(model.response, StudentT):
        key_degrees, key_rows = jax.random.split(key_rows)
        state = state._replace(degrees=_draw_degrees(key_degrees, state, model, rows))
        statistics = _reweigh(key_rows, state, model, statistics, rows)
    elif rows is not None:
        statistics = _augment(key_rows, state, model, statistics, rows)
    noise = draw_noise(key_noise, model, statistics)
    coef, effects = draw_location(noise, state, model, statistics)
    factor, noise_var = state.precision_factor, state.noise_var
    if model.num_effects > 0:
        factor = draw_precision_factor(
            noise.precision_gammas, noise.precision, model.priors.effects, factor, effects
        )
    if not isinstance(model.response, Probit):
        squares = _residual_squares(coef, effects, model, statistics)
        (noise_var,) = draw_variances(
            noise.variance_gammas, model.priors.noise, noise_var[None], squares[None]
        )
    return State(coef, effects, noise_var, factor, state.degrees)


def draw_noise(key: Key, model: MixedModel, statistics: LinearStatistics) -> Noise:
    """Two calls for everything: see the top of the file for the reason."""
    q, r, num_groups = statistics.centre.size, model.num_effects, statistics.num_groups
    key_normals, key_gammas = jax.random.split(key)
    normals = jax.random.normal(key_normals, (q + r * num_groups + r * r,))
    shapes = [precision_shapes(model.priors.effects, r, num_groups), jnp.zeros((0, 1))]
    if not isinstance(model.response, Probit):
        shapes[1] = variance_shapes(model.priors.noise, 1, statistics.num_rows)
    gammas = jax.random.gamma(key_gammas, jnp.concatenate([s.ravel() for s in shapes]))
    return Noise(
        *_cut(normals, (q,), (r, num_groups), (r, r)),
        *_cut(gammas, shapes[0].shape, shapes[1].shape),
    )


def _cut(values: Float[Array, " n"], *shapes: tuple[int, ...]) -> list[Array]:
    """A vector as arrays of these shapes."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [x.reshape(s) for x, s in zip(jnp.split(values, ends[:-1]), shapes, strict=True)]


def _augment(
    key: Key, state: State, model: MixedModel, statistics: LinearStatistics, rows: Rows
) -> LinearStatistics:
    """The statistics with newly drawn utilities instead of y."""
    sign, design = 2 * rows.y - 1, model.design(rows.x)
    utility = sign * positive_normal(key, sign * _predictor(state, model, rows))
    return dataclasses.replace(
        statistics,
        cross_total=rows.x.T @ rows.weighted(utility),
        effects_cross=rows.sum(design * utility[:, None]).T,
    )


def _predictor(state: State, model: MixedModel, rows: Rows) -> Float[Array, " n"]:
    """eta of every row."""
    random = jnp.sum(model.design(rows.x) * rows.expand(state.effects), axis=1)
    return rows.x @ state.coef + random


def _draw_degrees(key: Key, state: State, model: MixedModel, rows: Rows) -> Scalar:
    """Random walk of the coordinate of nu in the dispersion, the noise variance held."""
    eta = _predictor(state, model, rows)

    def log_target(degrees: Scalar) -> Scalar:
        dispersion = NoiseLaw(state.noise_var, degrees).dispersion()
        fit = rows.total(model.response.log_prob(rows.y, eta, dispersion))
        return fit + model.response.log_prior(dispersion, model.priors)

    def move(carry: tuple[Scalar, Scalar], step: tuple[Array, Array]) -> tuple[tuple, None]:
        degrees, height = carry
        shift, log_uniform = step
        shifted = NoiseLaw(state.noise_var, degrees).dispersion() + jnp.stack([0.0, shift])
        candidate = NoiseLaw.of(shifted).degrees
        reached = log_target(candidate)
        accept = log_uniform < reached - height
        return (jnp.where(accept, candidate, degrees), jnp.where(accept, reached, height)), None

    key_shift, key_accept = jax.random.split(key)
    shifts = jnp.asarray(MOVES) * jax.random.normal(key_shift, (len(MOVES),))
    log_uniforms = -jax.random.exponential(key_accept, (len(MOVES),))
    start = state.degrees, log_target(state.degrees)
    return jax.lax.scan(move, start, (shifts, log_uniforms))[0][0]


def _reweigh(
    key: Key, state: State, model: MixedModel, statistics: LinearStatistics, rows: Rows
) -> LinearStatistics:
    """The statistics of rows with newly drawn weights w, y about zero."""
    error, design = rows.y - _predictor(state, model, rows), model.design(rows.x)
    weight = state.noise_var * draw_precision(key, error, state.noise_var, state.degrees)
    weighted = rows.weighted(weight)[:, None] * rows.x
    cross = design[:, :, None] * (weight[:, None] * rows.x)[:, None]
    return dataclasses.replace(
        statistics,
        gram_total=weighted.T @ rows.x,
        cross_total=weighted.T @ rows.y,
        square_total=rows.total(weight * rows.y**2),
        effects_gram=rows.gram(design, weight),
        effects_design=jnp.moveaxis(rows.sum(cross), 0, -1),
        effects_cross=rows.sum(design * (weight * rows.y)[:, None]).T,
    )


def draw_location(
    noise: Noise, state: State, model: MixedModel, statistics: LinearStatistics
) -> tuple[Float[Array, " q"], Float[Array, "k r"]]:
    """Coefficients with the effects integrated out, then the effects given them.

    The statistics hold residuals about ``centre`` for y, so the draw is of beta - centre.
    """
    noise_var, factor = state.noise_var, state.precision_factor
    prior_precision = jnp.asarray(model.priors.coef_sd) ** -2.0
    eye = jnp.eye(statistics.centre.size)
    precision = statistics.gram_total / noise_var + prior_precision * eye
    right = statistics.cross_total / noise_var - prior_precision * statistics.centre
    if model.num_effects == 0:
        delta = _normal_from_precision(noise.coef, precision, right)
        return statistics.centre + delta, state.effects
    conditional = conjugate.condition(
        statistics.effects_gram, statistics.effects_cross, noise_var, factor
    )
    design = jax.vmap(lambda column: small.solve_lower(conditional.root, column), 1, 1)(
        statistics.effects_design / noise_var
    )
    precision = precision - jnp.einsum("iqk,ipk->qp", design, design)
    right = right - jnp.einsum("iqk,ik->q", design, conditional.forward)
    delta = _normal_from_precision(noise.coef, precision, right)
    forward = conditional.forward - jnp.einsum("iqk,q->ik", design, delta)
    effects = small.solve_lower(conditional.root, forward + noise.effects, transpose=True)
    return statistics.centre + delta, effects.T


def _normal_from_precision(
    normals: Float[Array, " q"], precision: Float[Array, "q q"], right: Float[Array, " q"]
) -> Float[Array, " q"]:
    """A draw of N(P^-1 p, P^-1)."""
    root = jnp.linalg.cholesky(precision)
    forward = solve_triangular(root, right, lower=True)
    return solve_triangular(root, forward + normals, lower=True, trans=1)


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


def covariance(factor: Float[Array, "r r"]) -> Float[Array, "r r"]:
    """Omega = (L L')^-1."""
    inverse = small.inverse_lower(factor)
    return inverse.T @ inverse
