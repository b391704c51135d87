"""Moments of the effects at few rows as functions of theta, where each elimination takes long.

Given theta, the effects of the known levels of row i add N(m_i, v s_i^2) to its predictor. As in
:mod:`nghvi.models.lookups` these depend on few coordinates x, those of the covariances relative to
the noise variance v, and with d = (1, fitted beta - beta) ::

    m_i = sum_j a_ij(x) d_j

Over the posterior the functions a_ij and log s_i^2 hardly vary if there are many levels. Quadratic
functions of standardised x are put through as many points as these have terms, and checked at draws
of theta. Beta and v enter exactly.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from nghvi._programs import program
from nghvi.data.factors import CrossedStatistics
from nghvi.models import lookups
from nghvi.models.parameters import MixedParams
from nghvi.models.several_factors import SeveralFactors
from nghvi.posterior.effects import Predictor, SummedFactorsAtRows, effects_of
from nghvi.posterior.mixed_posterior import MixedPosterior, params_at

FEW_ROWS, NUMBERS_AT_ONCE = 64, 2e7
"""Most rows that are solved for, and how many numbers, rows times effects, they may take."""
AWAY = np.sqrt(3.0)
"""Distance of the points from the centre, in posterior sds."""
CHECKS, CLOSE = 6, 0.02
"""Number of draws at which an expansion is checked, and the largest error, in conditional sds of
the effects, with which it is used."""
SAVED = 2
"""The factor by which an expansion must need fewer eliminations than there are draws."""
NONE = 1e-30
"""The variance of rows without known levels, whose logarithm is needed."""


class Expansion(eqx.Module):
    """The functions a and log s^2 at some rows."""

    centre: Float[Array, " p"]
    whitening: Float[Array, "p p"]
    log_noise: Float[Array, ""]
    """The logarithm of the noise variance at which x is the effects' own coordinates."""
    coefficients: Float[Array, "t o n"]
    """Of every term, for a_i0, ..., a_iq and log s_i^2."""

    def __call__(
        self, params: MixedParams, model: SeveralFactors, data: CrossedStatistics
    ) -> Predictor:
        """Return the mean and variance of the effects' part of every row's predictor."""
        x, d = lookups.coordinates(model, params, data, self.log_noise)
        terms = _terms(self.whitening @ (x - self.centre))
        *along, log_variance = jnp.tensordot(terms, self.coefficients, 1)
        return d @ jnp.stack(along), jnp.exp(log_variance + params.dispersion[0])


def _terms(z: Float[Array, " p"]) -> Float[Array, " t"]:
    """Return 1, every z_i, and every product of two."""
    return jnp.concatenate([jnp.ones(1), z, jnp.outer(z, z)[np.tril_indices(z.size)]])


def _points(p: int) -> Float[np.ndarray, "t p"]:
    """Return as many standardised points as a quadratic function of p variables has terms."""
    unit = AWAY * np.eye(p)
    between = (unit[:, None] + unit)[np.tril_indices(p, -1)] / np.sqrt(2)
    return np.concatenate([np.zeros((1, p)), unit, -unit, between])


def expanded(
    posterior: MixedPosterior,
    rows: Float[np.ndarray, "n d"],
    codes: Int[np.ndarray, "n ..."],
    draws: int,
) -> Expansion | None:
    """Return the expansion at rows whose prediction would take that many draws.

    None if that would not save time, or if it is not near enough at the draws that check it.
    """
    effects, data, pool = effects_of(posterior.model), posterior.parts[0], posterior.inference.pool
    if not (isinstance(effects, SummedFactorsAtRows) and isinstance(data, CrossedStatistics)):
        return None
    model, plan = effects.model, data.plan
    few = len(rows) <= FEW_ROWS and len(rows) * sum(plan.columns) < NUMBERS_AT_ONCE
    points = _points(model.effects_prior.size(model.num_effects))
    saves = SAVED * (len(points) + CHECKS) <= draws and plan.size > lookups.LEAST_SIZE
    if not (few and saves and (codes < effects.num_known((data,))).any()):
        return None
    checks = pool.resample(CHECKS, np.random.default_rng(0))
    theta = np.concatenate([pool.theta, checks])
    start = jax.device_put(pool.weight @ pool.theta)
    found = lookups.coordinates_of(model, data, jax.device_put(theta), start)
    x, d, _, log_noise = map(np.asarray, found)
    centre = pool.weight @ x[:-CHECKS]
    covariance = (pool.weight * (x[:-CHECKS] - centre).T) @ (x[:-CHECKS] - centre)
    root = np.linalg.cholesky(covariance)
    asked = np.concatenate([centre + points @ root.T, x[-CHECKS:]])
    arrays = map(jax.device_put, (start, asked, rows, codes))
    values = np.asarray(_moments(effects, data, *arrays))
    if not np.isfinite(values).all():
        return None
    terms = np.asarray(_all_terms(jax.device_put(np.linalg.solve(root, (asked - centre).T).T)))
    coefficients = np.linalg.solve(terms[:-CHECKS], values[:-CHECKS].reshape(len(points), -1))
    missed = (terms[-CHECKS:] @ coefficients).reshape(values[-CHECKS:].shape) - values[-CHECKS:]
    of_mean = np.einsum("sj,sjn->sn", d[-CHECKS:], missed[:, :-1])
    of_mean /= np.exp(0.5 * (values[-CHECKS:, -1] + log_noise))
    if not max(np.abs(of_mean).max(), 0.5 * np.abs(missed[:, -1]).max()) < CLOSE:
        return None
    coefficients = coefficients.reshape(len(points), *values.shape[1:])
    whole = centre, np.linalg.inv(root), log_noise, coefficients
    return Expansion(*map(jax.device_put, whole))


@program
def _all_terms(z: Float[Array, "s p"]) -> Float[Array, "s t"]:
    return jax.vmap(_terms)(z)


@program
def _moments(
    effects: SummedFactorsAtRows,
    data: CrossedStatistics,
    start: Float[Array, " m"],
    x: Float[Array, "s p"],
    rows: Float[Array, "n d"],
    codes: Int[Array, "n f"],
) -> Float[Array, "s o n"]:
    """Return a_i0, ..., a_iq and log s_i^2 at every x."""
    model, params = effects.model, params_at(effects.model, data, start)
    design, number = effects.known_design(params, rows, codes, data), np.arange(len(rows))[:, None]
    columns = []
    for f in data.plan.order:
        z, level = design[f]
        zero = jnp.zeros((len(rows), z.shape[1], data.factors[f].num_groups))
        columns.append(zero.at[number, np.arange(z.shape[1]), level[:, None]].set(z))

    def one(x: Array) -> Array:
        _, products = lookups.parts_at(model, data, params, x, tuple(columns))
        own = products[-len(rows) :]
        variance = jnp.diagonal(own[:, -len(rows) :]) / jnp.exp(params.dispersion[0])
        along = own[:, : -len(rows)].T
        return jnp.concatenate([along, jnp.log(jnp.maximum(variance, NONE))[None]])

    return jax.lax.map(one, x)
