"""Effects of groups at rows, known groups and new ones, of one grouping factor or of several.

A row's predictor is h'beta + sum_f z_f' alpha_f with one level per factor f. Given theta the known
levels have their exact conditional; levels never seen are independent of it, N(0, Omega_f).
What the posterior asks of a model's effects are the verbs of :class:`EffectsAtRows`; a model with
other effects registers its own at :func:`effects_of`.
"""

import functools
import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from nghvi._core.draws import flat_normal
from nghvi._typing import Data, Key, Scalar
from nghvi.data import Rows
from nghvi.data.elimination import Elimination
from nghvi.data.factors import CrossedRows, CrossedStatistics
from nghvi.data.panel import CrossedPanel
from nghvi.latents import conjugate, schur
from nghvi.latents.rows import whiten_design
from nghvi.models.general_factors import GeneralFactors
from nghvi.models.mixed import MixedModel
from nghvi.models.parameters import MixedParams
from nghvi.models.several_factors import Effects, SeveralFactors, WithFactors
from nghvi.priors import EffectsPrior

ROWS_AT_ONCE = 20_000
"""Rows whose groups' covariances are looked up together; bounds memory."""

Predictor = tuple[Float[Array, " n"], Float[Array, " n"]]
"""Mean and variance of a part of every row's predictor."""
Moments = tuple[tuple[Float[Array, "k r"], Float[Array, "r r k"]], ...]
"""Mean and covariance of the effects of every level, for every factor."""


class EffectsAtRows(eqx.Module):
    """The effects of a model with one grouping factor.

    ``parts``: the data of all known groups, one part after the other. ``codes``: the position of
    each row's group among the known ones, beyond them a number per new group; with several factors
    a column per factor.
    """

    model: MixedModel

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many effects each factor has."""
        return (self.model.num_effects,)

    @property
    def priors(self) -> tuple[EffectsPrior, ...]:
        """The prior of the effects' covariance Omega, one per factor."""
        return (self.model.effects_prior,)

    def num_known(self, parts: tuple[Data, ...]) -> Int[np.ndarray, "..."]:
        """How many levels are known: a number, or one per factor."""
        return np.array(sum(part.num_groups for part in parts))

    def in_pairs(self, data: Data) -> bool:
        """Whether draws that are averaged should come in pairs of opposite deviations."""
        return False

    def precision_factors(self, params: MixedParams) -> tuple[Float[Array, "r r"], ...]:
        """The Cholesky factor of the effects' precision, one per factor."""
        return (self.model.precision_factor(params),)

    def labelled(self, data: Data, tables: Effects) -> Effects:
        """Tables in the order of the levels' labels."""
        return (data.in_original_order(tables[0]),)

    def draw(self, key: Key, params: MixedParams, data: Data) -> Effects:
        """A draw of the effects of all levels of some data, in the order of their labels."""
        return self.labelled(data, (self.model.draw_effects(key, params, data),))

    def draw_all(self, key: Key, params: MixedParams, parts: tuple[Data, ...]) -> Effects:
        """A draw of the effects of all known levels, those that were added later included."""
        keys = jax.random.split(key, len(parts))
        drawn = [self.draw(k, params, part) for k, part in zip(keys, parts, strict=True)]
        return tuple(map(jnp.concatenate, zip(*drawn, strict=True)))

    def with_new(
        self, known: Effects, params: MixedParams, key: Key, number: tuple[int, ...]
    ) -> Effects:
        """Tables with so many more levels of every factor, drawn from the population."""
        keys = [key] if len(known) == 1 else jax.random.split(key, len(known))
        parts = zip(known, keys, self.precision_factors(params), number, strict=True)
        return tuple(
            jnp.concatenate([table, conjugate.colour(flat_normal(k, (len(lower), new)), lower)])
            for table, k, lower, new in parts
        )

    def at_rows(
        self, design: Float[Array, "n r"], tables: Effects, codes: Int[Array, "n ..."]
    ) -> Float[Array, " n"]:
        """sum_f z_f' alpha_f, from tables of all levels that codes name."""
        levels = codes.reshape(len(design), -1).T
        parts = zip(self._split(design), tables, levels, strict=True)
        found = (jnp.sum(z * table[at], axis=1) for z, table, at in parts)
        return sum(found, jnp.zeros(len(design)))

    def _split(self, design: Float[Array, "n r"]) -> list[Float[Array, "n r"]]:
        return jnp.split(design, list(itertools.accumulate(self.sizes))[:-1], axis=1)

    def predictor(
        self,
        draw: tuple[Key, MixedParams, Scalar],
        design: Float[Array, "n r"],
        codes: Int[Array, "n ..."],
        parts: tuple[Data, ...],
    ) -> Predictor:
        """Mean and variance of the effects' part of every row given theta.

        The last of ``draw`` is a standard normal for levels whose effects must be drawn.
        """
        key, params, standard = draw
        number = self.num_known(parts)
        rows = self._at_known(params, design, codes, number)
        if self.are_integrated(parts[0]):
            mean, variance = self._moments_at(params, rows, parts)
            return mean, variance + rows.population
        levels = zip(np.atleast_1d(number), self.sizes, strict=True)
        # Drawing is expensive, and predictions for the population need none.
        tables = jax.lax.cond(
            jnp.any(codes < number),
            lambda: self._draw_for_predictor(key, params, standard, parts),
            lambda: tuple(jnp.zeros((k, r)) for k, r in levels),
        )
        # One direction suffices: a new level's part of the predictor has variance z' Omega z. It is
        # the same in all rows, so that a row's prediction does not depend on the others.
        new = jnp.sqrt(rows.population) * standard
        return self.at_rows(rows.design, tables, rows.position) + new, jnp.zeros(len(design))

    def are_integrated(self, data: Data) -> bool:
        """Whether predictions know the effects' distribution given theta, which is normal then."""
        return self.model.response.conjugate

    def _at_known(
        self, params: MixedParams, design: Float[Array, "n r"], codes: Array, number: np.ndarray
    ) -> "AtKnown":
        known = (codes < number).reshape(len(design), -1).T
        white, seen, population = [], [], jnp.zeros(len(design))
        lower = self.precision_factors(params)
        for z, root, k in zip(self._split(design), lower, known, strict=True):
            each = whiten_design(z, root)
            population += jnp.where(k, 0.0, jnp.sum(each**2, axis=1))
            white.append(jnp.where(k[:, None], each, 0.0))
            seen.append(jnp.where(k[:, None], z, 0.0))
        position = jnp.minimum(codes, number - 1)
        return AtKnown(jnp.concatenate(seen, axis=1), white, position, population)

    def _moments_at(
        self, params: MixedParams, rows: "AtKnown", parts: tuple[Data, ...]
    ) -> Predictor:
        mean, covariance = self._conditional(params, parts)

        def variance_of(row: tuple[Array, Array]) -> Array:
            return row[0] @ covariance[row[1]] @ row[0]

        at = (rows.design, rows.position)
        variance = jax.lax.map(variance_of, at, batch_size=ROWS_AT_ONCE)
        return self.at_rows(rows.design, (mean,), rows.position), variance

    def _draw_for_predictor(
        self, key: Key, params: MixedParams, standard: Scalar, parts: tuple[Data, ...]
    ) -> Effects:
        return self.draw_all(key, params, parts)

    def _conditional(
        self, params: MixedParams, parts: tuple[Data, ...]
    ) -> tuple[Float[Array, "k r"], Float[Array, "k r r"]]:
        """Conditional means and covariances of all groups, in the order of their labels."""
        means, covariances = [], []
        for part in parts:
            mean, covariance = conjugate.moments(self.model.conditional(params, part))
            means.append(part.in_original_order(mean))
            covariances.append(part.in_original_order(jnp.moveaxis(covariance, -1, 0)))
        return jnp.concatenate(means), jnp.concatenate(covariances)

    def mean_squares(self, params: MixedParams, data: Data) -> Float[Array, " r"]:
        """Mean square over the rows of every column with effects."""
        coef, random = self.model.all_coef(params), self.model.random
        moments = data.moments(lambda x: self.model.features(params, x), coef, random)
        return jnp.diagonal(jnp.sum(moments.gram, axis=-1)) / moments.num_rows

    def moments(self, key: Key, params: MixedParams, data: Data) -> Moments:
        """Means and covariances of the effects given theta, in the data's own order.

        Where they have no closed form: one draw, and covariances of 0.
        """
        return (self.model.effect_moments(key, params, data),)


class AtKnown(NamedTuple):
    """Rows as known levels see them, and what the others add."""

    design: Float[Array, "n r"]
    """Columns with effects; 0 where a row's level is new."""
    white: list[Float[Array, "n r"]]
    """The design in units of the effects' sds, one entry per factor."""
    position: Int[Array, "n ..."]
    population: Float[Array, " n"]
    """Variance of the effects of new levels."""


class FactorsAtRows(EffectsAtRows):
    """The effects of several grouping factors."""

    model: WithFactors

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.model.effects

    @property
    def priors(self) -> tuple[EffectsPrior, ...]:
        return self.model.parts

    def num_known(self, parts: tuple[Data, ...]) -> Int[np.ndarray, "..."]:
        return np.array(parts[0].num_levels)

    def precision_factors(self, params: MixedParams) -> tuple[Float[Array, "r r"], ...]:
        return self.model.precision_factors(params)

    def labelled(self, data: CrossedStatistics | CrossedRows, tables: Effects) -> Effects:
        return data.labelled(tables)

    def draw(self, key: Key, params: MixedParams, data: Data) -> Effects:
        return self.labelled(data, self.model.draw_effects(key, params, data))

    def mean_squares(self, params: MixedParams, data: Data) -> Float[Array, " r"]:
        rows = data if isinstance(data, Rows) else data.rows
        design = self.model.design(self.model.features(params, rows.x))
        return jnp.sum(rows.weighted(design**2), axis=0) / rows.num_rows

    def moments(self, key: Key, params: MixedParams, data: Data) -> Moments:
        return self.model.moments_by_factor(key, params, data)


class SummedFactorsAtRows(FactorsAtRows):
    """With a Gaussian response: levels that a row names together are correlated.

    Where there are too many covariances, effects are drawn instead, in pairs of opposite
    deviations, whose average has no error.
    """

    model: SeveralFactors

    def in_pairs(self, data: CrossedStatistics | CrossedPanel) -> bool:
        return self.model.draws_for(data)

    def are_integrated(self, data: CrossedStatistics | CrossedPanel) -> bool:
        return not self.model.draws_for(data)

    def _moments_at(self, params: MixedParams, rows: AtKnown, parts: tuple[Data, ...]) -> Predictor:
        model, data = self.model, parts[0]
        conditional = model.joint_conditional(params, data)
        means = model.coloured(schur.mean(conditional, data.plan), params, data.plan)
        memory = list(data.in_memory(tuple(rows.position.T)))
        covariance = schur.covariance(conditional, data.plan)
        variance = _row_variance(covariance, data.plan, rows.white, memory)
        return self.at_rows(rows.design, self.labelled(data, means), rows.position), variance

    def _draw_for_predictor(
        self, key: Key, params: MixedParams, standard: Scalar, parts: tuple[Data, ...]
    ) -> Effects:
        effects = self.model.draw_effects(key, params, parts[0], jnp.sign(standard))
        return self.labelled(parts[0], effects)

    def mean_squares(self, params: MixedParams, data: Data) -> Float[Array, " r"]:
        if isinstance(data, Rows):
            return super().mean_squares(params, data)
        sums = self.model.sums(params, data)
        squares = [jnp.diagonal(jnp.sum(gram, axis=-1)) for gram in sums.gram]
        return jnp.concatenate(data.plan.in_given_order(tuple(squares))) / sums.num_rows


@functools.singledispatch
def effects_of(model: Any) -> EffectsAtRows:
    """The effects of a model at rows."""
    return EffectsAtRows(model)


effects_of.register(SeveralFactors, SummedFactorsAtRows)
effects_of.register(GeneralFactors, FactorsAtRows)


def average_moments(
    effects: EffectsAtRows,
    data: Data,
    keys: Key,
    params: MixedParams,
    to_raw: tuple[Float[Array, "r r"], ...],
) -> tuple[tuple[Float[Array, "k r"], Float[Array, "k r"]], ...]:
    """E[alpha] and E[alpha^2] of every factor over draws of theta, without storing draws."""

    def add(total: tuple, draw: tuple[Key, MixedParams]) -> tuple[tuple, None]:
        found = []
        moments = effects.moments(*draw, data)
        for (mean, cov), (first, second), back in zip(moments, total, to_raw, strict=True):
            raw = mean @ back.T
            variance = jnp.einsum("ia,abk,ib->ki", back, cov, back)
            found.append((first + raw, second + raw**2 + variance))
        return tuple(found), None

    levels = np.atleast_1d(effects.num_known((data,)))
    zero = tuple((jnp.zeros((k, r)),) * 2 for k, r in zip(levels, effects.sizes, strict=True))
    sums, _ = jax.lax.scan(add, zero, (keys, params))
    number = len(keys)
    means, squares = (tuple(each / number for each in half) for half in zip(*sums, strict=True))
    pairs = zip(effects.labelled(data, means), effects.labelled(data, squares), strict=True)
    return tuple(pairs)


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
