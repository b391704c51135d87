"""Effects of several factors at rows, known levels and new ones in any combination.

A row's predictor is h'beta + sum_f z_f' alpha_f. Given theta the known levels it names are jointly
normal with the conditional mean and covariance of :mod:`nghvi.latents.schur`; levels never seen
are independent of them, N(0, Omega_f). Where there are too many covariances, effects are drawn
instead, in pairs of opposite deviations, whose average has no error.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from nghvi._core.draws import flat_normal
from nghvi._typing import Key
from nghvi.data.elimination import Elimination
from nghvi.data.factors import CrossedStatistics
from nghvi.latents import conjugate, schur
from nghvi.latents.rows import whiten_design
from nghvi.models.mixed import MixedParams
from nghvi.models.several_factors import Effects, SeveralFactors


def at_rows(
    model: SeveralFactors,
    design: Float[Array, "n r"],
    effects: Effects,
    codes: Int[Array, "n f"],
) -> Float[Array, " n"]:
    """sum_f z_f' alpha_f, from tables of all levels that codes name."""
    parts = zip(_split(model, design), effects, codes.T, strict=True)
    return sum((jnp.sum(z * table[at], axis=1) for z, table, at in parts), jnp.zeros(len(design)))


def _split(model: SeveralFactors, design: Float[Array, "n r"]) -> list[Float[Array, "n r"]]:
    return jnp.split(design, list(itertools.accumulate(model.effects))[:-1], axis=1)


def labelled(data: CrossedStatistics, effects: Effects) -> Effects:
    """Tables in the order of the levels' labels."""
    pairs = zip(data.factors, effects, strict=True)
    return tuple(factor.in_original_order(each) for factor, each in pairs)


def drawn(model: SeveralFactors, data: CrossedStatistics, key: Key, params: MixedParams) -> Effects:
    """A draw of the effects of all levels."""
    return labelled(data, model.draw_effects(key, params, data))


def with_new(
    model: SeveralFactors,
    known: Effects,
    params: MixedParams,
    key: Key,
    number: tuple[int, ...],
) -> Effects:
    """Tables with so many more levels of every factor, drawn from the population."""
    keys, lowers = jax.random.split(key, len(known)), model.precision_factors(params)
    parts = zip(known, keys, lowers, number, strict=True)
    return tuple(
        jnp.concatenate([table, conjugate.colour(flat_normal(k, (len(lower), new)), lower)])
        for table, k, lower, new in parts
    )


def predictor(
    model: SeveralFactors,
    data: CrossedStatistics,
    draw: tuple[Key, MixedParams, Array],
    design: Float[Array, "n r"],
    codes: Int[Array, "n f"],
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Mean and variance of the effects' part of every row; codes beyond the levels are new."""
    key, params, standard = draw
    number = np.array([factor.num_groups for factor in data.factors])
    known = codes < number
    position = jnp.minimum(codes, number - 1)
    white = [
        whiten_design(z, lower)
        for z, lower in zip(_split(model, design), model.precision_factors(params), strict=True)
    ]
    new = sum(
        (jnp.where(k, 0.0, jnp.sum(w**2, axis=1)) for w, k in zip(white, known.T, strict=True)),
        jnp.zeros(len(design)),
    )
    seen = [
        jnp.where(k[:, None], z, 0.0) for z, k in zip(_split(model, design), known.T, strict=True)
    ]
    if model.draws_for(data):
        effects = labelled(data, model.draw_effects(key, params, data, jnp.sign(standard)))
        located = at_rows(model, jnp.concatenate(seen, axis=1), effects, position)
        return located + jnp.sqrt(new) * standard, jnp.zeros(len(design))
    conditional = model.joint_conditional(params, data)
    means = model.coloured(schur.mean(conditional, data.plan), params, data)
    located = at_rows(model, jnp.concatenate(seen, axis=1), labelled(data, means), position)
    memory = [f.original_order[p] for f, p in zip(data.factors, position.T, strict=True)]
    masked = [jnp.where(k[:, None], w, 0.0) for w, k in zip(white, known.T, strict=True)]
    variance = _row_variance(schur.covariance(conditional, data.plan), data.plan, masked, memory)
    return located, variance + new


def _row_variance(
    covariance: schur.Covariance,
    plan: Elimination,
    design: list[Float[Array, "n r"]],
    level: list[Int[Array, " n"]],
) -> Float[Array, " n"]:
    """z' Cov z of rows with one level of every factor, in the order in which those were given."""
    first = plan.order[0]
    own = covariance.own[level[first]]
    total = jnp.einsum("ni,nij,nj->n", design[first], own, design[first])
    columns, values, start = [], [], 0
    for f, r, k in zip(plan.order[1:], plan.effects[1:], plan.levels[1:], strict=True):
        columns += [start + level[f] * r + effect for effect in range(r)]
        values += list(design[f].T)
        start += k * r
    for i, (column, value) in enumerate(zip(columns, values, strict=True)):
        cross = jnp.sum(design[first] * covariance.cross[level[first], :, column], axis=1)
        total += 2 * value * cross
        for other, factor in zip(columns[: i + 1], values[: i + 1], strict=True):
            twice = 1 if other is column else 2
            total += twice * value * factor * covariance.others[column, other]
    return total


def average_moments(
    model: SeveralFactors,
    data: CrossedStatistics,
    params: MixedParams,
    to_raw: tuple[Float[Array, "r r"], ...],
) -> tuple[tuple[Float[Array, "k r"], Float[Array, "k r"]], ...]:
    """E[alpha] and E[alpha^2] of every factor over draws of theta, without storing draws."""

    def add(total: tuple, each: MixedParams) -> tuple[tuple, None]:
        found = []
        moments = model.moments_by_factor(each, data)
        for (mean, cov), (first, second), back in zip(moments, total, to_raw, strict=True):
            raw = mean @ back.T
            variance = jnp.einsum("ia,abk,ib->ki", back, cov, back)
            found.append((first + raw, second + raw**2 + variance))
        return tuple(found), None

    zero = tuple(
        (jnp.zeros((factor.num_groups, r)),) * 2
        for factor, r in zip(data.factors, model.effects, strict=True)
    )
    number = len(params.coef)
    sums, _ = jax.lax.scan(add, zero, params)
    return tuple(
        (factor.in_original_order(first / number), factor.in_original_order(second / number))
        for factor, (first, second) in zip(data.factors, sums, strict=True)
    )
